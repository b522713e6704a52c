// combine() for integers of 8 and 32 bits.
#include "executor/host/kernels_table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "executor/host/kernels_integer.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "executor/host/kernels_inl.h"

HWY_BEFORE_NAMESPACE();
namespace ropewalk::executor {
namespace HWY_NAMESPACE {

void integer(detail::CombineTable& table) {
  add_kernels<Integer<std::int8_t>>(table, DataType::kInt8);
  add_kernels<Integer<std::uint8_t>>(table, DataType::kUint8);
  add_kernels<Integer<std::int32_t>>(table, DataType::kInt32);
  add_kernels<Integer<std::uint32_t>>(table, DataType::kUint32);
}

}  // namespace HWY_NAMESPACE
}  // namespace ropewalk::executor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ropewalk::executor {

HWY_EXPORT(integer);

void detail::add_integer_kernels(CombineTable& table) { HWY_DYNAMIC_DISPATCH(integer)(table); }

}  // namespace ropewalk::executor
#endif
