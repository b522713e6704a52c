// ncclConfig_t of any version.
#pragma once

#include "capi/nccl/nccl_api.h"

namespace ropewalk::nccl {

/// What Ropewalk takes from a configuration. The other fields are checked for sense and otherwise
/// hints for NVIDIA's algorithms.
struct CommConfig {
  bool blocking = true;
};

/// `config` may be nullptr: then `inherited`, which also fills fields that are undefined.
/// @throws Error kInvalidArgument naming the field
CommConfig read_config(const ncclConfig_t* config, const CommConfig& inherited);

}  // namespace ropewalk::nccl
