// NCCL's element types as Ropewalk's, which have the same numbers.
#pragma once

#include "capi/nccl/nccl_api.h"
#include "core/error.h"
#include "core/types.h"

namespace ropewalk::nccl {

/// @throws Error kInvalidArgument for a number that is none
inline DataType type_of(ncclDataType_t type) {
  if (static_cast<int>(type) < 0 || static_cast<int>(type) >= kNumDataTypes) {
    throw Error(Errc::kInvalidArgument, "datatype: {} is none", static_cast<int>(type));
  }
  return static_cast<DataType>(type);
}

}  // namespace ropewalk::nccl
