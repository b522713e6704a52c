// Element types and operators, one value at a time, for blocks of threads. Results equal those of
// executor/host/kernels.h bit for bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "core/host_device.h"
#include "core/types.h"
#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#else
#include "core/small_float.h"
#endif

namespace ropewalk::executor {

/// Types that are combined as they are stored.
template <typename T>
struct PlainElement {
  using Stored = T;
  using Compute = T;
  RW_HOST_DEVICE static T decode(T value) { return value; }
  RW_HOST_DEVICE static T encode(T value) { return value; }
};

/// Types of 8 and 16 bits that are combined in float32.
template <DataType kType, typename Bits>
struct SmallFloatElement {
  using Stored = Bits;
  using Compute = float;
#ifdef __CUDACC__
  __device__ static float decode(Bits bits) {
    if constexpr (kType == DataType::kFloat16) {
      return __half2float(__ushort_as_half(bits));
    } else if constexpr (kType == DataType::kBfloat16) {
      return __bfloat162float(__ushort_as_bfloat16(bits));
    } else {
      constexpr auto kForm = kType == DataType::kFloat8e4m3 ? __NV_E4M3 : __NV_E5M2;
      return __half2float(__half(__nv_cvt_fp8_to_halfraw(bits, kForm)));
    }
  }
  __device__ static Bits encode(float value) {
    if constexpr (kType == DataType::kFloat16) {
      return __half_as_ushort(__float2half_rn(value));
    } else if constexpr (kType == DataType::kBfloat16) {
      return __bfloat16_as_ushort(__float2bfloat16_rn(value));
    } else {
      constexpr auto kForm = kType == DataType::kFloat8e4m3 ? __NV_E4M3 : __NV_E5M2;
      return __nv_cvt_float_to_fp8(value, __NV_NOSAT, kForm);
    }
  }
#else
  static float decode(Bits bits) { return decode_small_float(kType, bits); }
  static Bits encode(float value) { return static_cast<Bits>(encode_small_float(kType, value)); }
#endif
};

template <DataType kType>
struct ElementOf;
template <>
struct ElementOf<DataType::kInt8> : PlainElement<std::int8_t> {};
template <>
struct ElementOf<DataType::kUint8> : PlainElement<std::uint8_t> {};
template <>
struct ElementOf<DataType::kInt32> : PlainElement<std::int32_t> {};
template <>
struct ElementOf<DataType::kUint32> : PlainElement<std::uint32_t> {};
template <>
struct ElementOf<DataType::kInt64> : PlainElement<std::int64_t> {};
template <>
struct ElementOf<DataType::kUint64> : PlainElement<std::uint64_t> {};
template <>
struct ElementOf<DataType::kFloat32> : PlainElement<float> {};
template <>
struct ElementOf<DataType::kFloat64> : PlainElement<double> {};
template <>
struct ElementOf<DataType::kFloat16> : SmallFloatElement<DataType::kFloat16, std::uint16_t> {};
template <>
struct ElementOf<DataType::kBfloat16> : SmallFloatElement<DataType::kBfloat16, std::uint16_t> {};
template <>
struct ElementOf<DataType::kFloat8e4m3> : SmallFloatElement<DataType::kFloat8e4m3, std::uint8_t> {};
template <>
struct ElementOf<DataType::kFloat8e5m2> : SmallFloatElement<DataType::kFloat8e5m2, std::uint8_t> {};

/// Bytes that are only moved: no code for combining is made.
struct CopiedElement : PlainElement<std::uint8_t> {};
template <typename Element>
inline constexpr bool kOnlyCopied = std::is_same_v<Element, CopiedElement>;

/// Integers wrap. Float max and min return the other operand when one is NaN, and the left one of
/// two equal ones. kAvg and kPreMulSum combine as kSum.
template <RedOp kOp, typename T>
RW_HOST_DEVICE inline T apply(T a, T b) {
  if constexpr (kOp == RedOp::kMax || kOp == RedOp::kMin) {
    const bool take = kOp == RedOp::kMax ? b > a : b < a;
    return take || a != a ? b : a;
  } else if constexpr (std::is_floating_point_v<T>) {
    return kOp == RedOp::kProd ? a * b : a + b;
  } else {
    // In a type that is not promoted to a signed one: unsigned arithmetic wraps.
    using Word = std::conditional_t<(sizeof(T) > 4), std::uint64_t, std::uint32_t>;
    const auto x = static_cast<Word>(a);
    const auto y = static_cast<Word>(b);
    return static_cast<T>(kOp == RedOp::kProd ? x * y : x + y);
  }
}

/// Finished values of an average.
template <typename T>
RW_HOST_DEVICE inline T divide(T value, std::uint32_t divisor) {
  if constexpr (sizeof(T) < 8 && std::is_integral_v<T>) {
    return static_cast<T>(static_cast<std::int64_t>(value) / static_cast<std::int64_t>(divisor));
  } else {
    return value / static_cast<T>(divisor);
  }
}

}  // namespace ropewalk::executor
