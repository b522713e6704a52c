// combine() for floats that are combined as they are stored.
#include "executor/host/kernels_table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "executor/host/kernels_float.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "executor/host/kernels_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropewalk::executor {
namespace HWY_NAMESPACE {

void float_types(detail::CombineTable& table) {
  add_kernels<Float<float>>(table, DataType::kFloat32);
  add_kernels<Float<double>>(table, DataType::kFloat64);
}

}  // namespace HWY_NAMESPACE
}  // namespace ropewalk::executor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ropewalk::executor {

HWY_EXPORT(float_types);

void detail::add_float_kernels(CombineTable& table) { HWY_DYNAMIC_DISPATCH(float_types)(table); }

}  // namespace ropewalk::executor
#endif
