// Structures from callers of any version: their common header, and reading them.
#pragma once

#include <algorithm>
#include <climits>
#include <cstddef>
#include <cstring>

#include "capi/nccl/nccl_api.h"
#include "core/error.h"

namespace ropewalk::nccl {

/// A copy of a caller's structure of an older or a newer version: fields that it is too short for
/// keep their values in `defaults`, and fields that this library does not know are left out.
///
/// @param smallest bytes that every version has
/// @throws Error kInvalidArgument for a structure that was not initialized
template <typename Structure>
Structure copy_known(const Structure& given, Structure defaults, std::size_t smallest,
                     const char* name, const char* initializer) {
  if (given.magic != kNcclMagic) {
    throw Error(Errc::kInvalidArgument, "{}: not made by {}", name, initializer);
  }
  if (given.size < smallest) {
    throw Error(Errc::kInvalidArgument, "{}: a size of {} bytes is too small", name, given.size);
  }
  std::memcpy(&defaults, &given, std::min(given.size, sizeof defaults));
  return defaults;
}

/// A field that may be undefined.
/// @throws Error kInvalidArgument outside `low` to `high`
inline void require_within(int value, int low, int high, const char* structure, const char* field) {
  if (value == kNcclUndefInt || (value >= low && value <= high)) return;
  throw Error(Errc::kInvalidArgument, "{}: {} is {}, outside {} to {}", structure, field, value,
              low, high);
}

/// The bounds of how many blocks a kernel may have.
inline void require_bounds(int least, int most, const char* structure) {
  require_within(least, 1, INT_MAX, structure, "minCTAs");
  require_within(most, 1, INT_MAX, structure, "maxCTAs");
  if (least != kNcclUndefInt && most != kNcclUndefInt && least > most) {
    throw Error(Errc::kInvalidArgument, "{}: minCTAs is {}, more than maxCTAs, {}", structure,
                least, most);
  }
}

}  // namespace ropewalk::nccl
