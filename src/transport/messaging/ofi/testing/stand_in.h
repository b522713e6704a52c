// For tests over the stand-ins for libfabric.
#pragma once

#ifdef RW_STAND_IN_LIBFABRIC

#include "core/settings.h"
#include "transport/messaging/testing/stand_in.h"

namespace ropewalk::transport::ofi {

using messaging::testing::connect_to_itself;
using messaging::testing::heard;
using messaging::testing::Hearing;
using messaging::testing::lines_with;
using messaging::testing::until;

class StandInFabric : public messaging::testing::StandInFunctions {
 public:
  StandInFabric() : StandInFunctions(RW_STAND_IN_LIBFABRIC, "stand_in_libfabric_") {}
};

#ifdef RW_STRICT_LIBFABRIC
/// Of the stand-in for a provider that demands registration modes, and has NICs.
class StrictFabric : public messaging::testing::StandInFunctions {
 public:
  StrictFabric() : StandInFunctions(RW_STRICT_LIBFABRIC, "strict_libfabric_") {}
};
#endif

/// Settings for the stand-ins for libfabric and CUDA.
inline Config over_stand_ins() {
  Config config;
  config.set("SOCKET_IFNAME", "=lo", "test");
  config.set("OFI_PROVIDER", "tcp;ofi_rxm", "test");
  config.set("OFI_LIBRARY", RW_STAND_IN_LIBFABRIC, "test");
  config.set("CUDA_LIBRARY", RW_STAND_IN_CUDA, "test");
  return config;
}

}  // namespace ropewalk::transport::ofi

#endif  // RW_STAND_IN_LIBFABRIC
