// combine() for floats that are combined in float32.
#include "executor/host/kernels_table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "executor/host/kernels_small_float.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "executor/host/kernels_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropewalk::executor {
namespace HWY_NAMESPACE {

void small_float(detail::CombineTable& table) {
  add_kernels<Float16>(table, DataType::kFloat16);
  add_kernels<Bfloat16>(table, DataType::kBfloat16);
  add_kernels<Float8e4m3>(table, DataType::kFloat8e4m3);
  add_kernels<Float8e5m2>(table, DataType::kFloat8e5m2);
}

}  // namespace HWY_NAMESPACE
}  // namespace ropewalk::executor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ropewalk::executor {

HWY_EXPORT(small_float);

void detail::add_small_float_kernels(CombineTable& table) {
  HWY_DYNAMIC_DISPATCH(small_float)(table);
}

}  // namespace ropewalk::executor
#endif
