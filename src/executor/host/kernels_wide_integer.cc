// combine() for integers of 64 bits.
#include "executor/host/kernels_table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "executor/host/kernels_wide_integer.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "executor/host/kernels_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropewalk::executor {
namespace HWY_NAMESPACE {

void wide_integer(detail::CombineTable& table) {
  add_kernels<Integer<std::int64_t>>(table, DataType::kInt64);
  add_kernels<Integer<std::uint64_t>>(table, DataType::kUint64);
}

}  // namespace HWY_NAMESPACE
}  // namespace ropewalk::executor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ropewalk::executor {

HWY_EXPORT(wide_integer);

void detail::add_wide_integer_kernels(CombineTable& table) {
  HWY_DYNAMIC_DISPATCH(wide_integer)(table);
}

}  // namespace ropewalk::executor
#endif
