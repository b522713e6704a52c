// Which of libfabric's providers the tests use.
#pragma once

#include <cstdlib>
#include <string>

namespace ropewalk::transport::ofi {

/// The one over sockets: ROPEWALK_TEST_OFI_SOCKETS, else one that every libfabric from 1.17 on has.
/// From 1.18 on `tcp` does without ofi_rxm; it is what users of a later libfabric get.
inline std::string sockets_provider() {
  const char* chosen = std::getenv("ROPEWALK_TEST_OFI_SOCKETS");
  return chosen != nullptr ? chosen : "tcp;ofi_rxm";
}

}  // namespace ropewalk::transport::ofi
