#include "core/small_float.h"

#include <cmath>
#include <limits>

#include "core/error.h"

namespace ropewalk {
namespace {

struct Format {
  int exponent_bits;
  int mantissa_bits;
  bool has_infinity;
};

Format format_of(DataType type) {
  switch (type) {
    case DataType::kFloat16: return {5, 10, true};
    case DataType::kBfloat16: return {8, 7, true};
    case DataType::kFloat8e4m3: return {4, 3, false};
    case DataType::kFloat8e5m2: return {5, 2, true};
    default: throw Error(Errc::kInternal, "{} is not a small float type", name(type));
  }
}

}  // namespace

std::uint16_t encode_small_float(DataType type, float value) {
  const Format f = format_of(type);
  const unsigned sign =
      std::signbit(value) ? 1U << static_cast<unsigned>(f.exponent_bits + f.mantissa_bits) : 0U;
  const unsigned exponent_mask = (1U << static_cast<unsigned>(f.exponent_bits)) - 1U;
  const auto mantissa_shift = static_cast<unsigned>(f.mantissa_bits);
  const unsigned infinity = exponent_mask << mantissa_shift;
  const unsigned nan = infinity | ((1U << mantissa_shift) - 1U);
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | nan);
  const unsigned overflow = f.has_infinity ? infinity : nan;
  const double magnitude = std::fabs(static_cast<double>(value));
  if (std::isinf(magnitude)) return static_cast<std::uint16_t>(sign | overflow);
  if (magnitude == 0) return static_cast<std::uint16_t>(sign);
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  int exponent = 0;
  std::frexp(magnitude, &exponent);
  exponent -= 1;                                 // magnitude = 1.x * 2^exponent
  if (exponent < 1 - bias) exponent = 1 - bias;  // subnormal
  // The value in units of the last place; nearbyint rounds half to even in the default mode.
  const auto units =
      static_cast<unsigned>(std::nearbyint(std::ldexp(magnitude, f.mantissa_bits - exponent)));
  // Adding instead of or-ing lets a carry out of the mantissa raise the exponent.
  const unsigned implicit = 1U << mantissa_shift;
  const unsigned biased =
      units < implicit
          ? units
          : (static_cast<unsigned>(exponent + bias) << mantissa_shift) + (units - implicit);
  const unsigned largest = f.has_infinity ? infinity : nan;
  return static_cast<std::uint16_t>(sign | (biased >= largest ? overflow : biased));
}

float decode_small_float(DataType type, std::uint16_t bits) {
  const Format f = format_of(type);
  const auto mantissa_shift = static_cast<unsigned>(f.mantissa_bits);
  const unsigned exponent_mask = (1U << static_cast<unsigned>(f.exponent_bits)) - 1U;
  const unsigned exponent = (bits >> mantissa_shift) & exponent_mask;
  const unsigned mantissa = bits & ((1U << mantissa_shift) - 1U);
  const bool negative = (bits >> static_cast<unsigned>(f.exponent_bits + f.mantissa_bits)) & 1U;
  const int bias = (1 << (f.exponent_bits - 1)) - 1;
  double value = 0;
  if (exponent == exponent_mask && f.has_infinity) {
    value = mantissa == 0 ? std::numeric_limits<double>::infinity()
                          : std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == exponent_mask && mantissa == (1U << mantissa_shift) - 1U) {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (exponent == 0) {
    value = std::ldexp(mantissa, 1 - bias - f.mantissa_bits);
  } else {
    value = std::ldexp(mantissa + (1U << mantissa_shift),
                       static_cast<int>(exponent) - bias - f.mantissa_bits);
  }
  return static_cast<float>(negative ? -value : value);
}

}  // namespace ropewalk
