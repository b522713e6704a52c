// The wishes of a caller of any version: ncclConfig_t, ncclCollConfig_t.
#pragma once

#include "capi/nccl/nccl_api.h"
#include "capi/nccl/one_sided.h"
#include "comm/communicator.h"

namespace ropewalk::nccl {

/// What Ropewalk takes from a configuration. The other fields are validated and otherwise
/// hints for NVIDIA's algorithms.
struct CommConfig {
  bool blocking = true;
  comm::BlockBounds blocks;    ///< minCTAs, maxCTAs, cgaClusterSize, CTAPolicy
  SignalCounts signals;        ///< numRmaCtx, numRmaSig; inherited where they are undefined
  bool eager_signals = false;  ///< rmaEagerInit: made with the communicator
};

/// `config` may be nullptr: then `inherited`, which also fills fields that are undefined.
/// @throws Error kInvalidArgument naming the field
CommConfig read_config(const ncclConfig_t* config, const CommConfig& inherited);

/// Of one operation: all fields are hints except mandatory ones. `config` may be nullptr.
/// @throws Error kInvalidArgument naming the field; kInvalidUsage for a demand that Ropewalk cannot
/// meet: an algorithm of NVIDIA's by force, an event
void check_config(const ncclCollConfig_t* config);

}  // namespace ropewalk::nccl
