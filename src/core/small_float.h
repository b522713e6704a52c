// 8- and 16-bit floats, one value at a time: for constants and checks. The kernels have their own.
#pragma once

#include <cstdint>

#include "core/types.h"

namespace ropewalk {

/// The bits of `value` in kFloat16, kBfloat16, kFloat8e4m3 or kFloat8e5m2, rounded to nearest even.
/// Too large values become infinity, or NaN in float8e4m3, which has no infinity.
std::uint16_t encode_small_float(DataType type, float value);

/// The value of the low bits of `bits`.
float decode_small_float(DataType type, std::uint16_t bits);

}  // namespace ropewalk
