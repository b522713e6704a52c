// What may carry the links of windows, in tests of programs that define RW_SOFTWARE_SISCI.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/runtime.h"
#include "core/error.h"
#include "transport/registry.h"
#include "transport/window/sisci/testing/fabric.h"

namespace ropewalk::comm::testing {

#ifdef RW_TEST_PSM2
// libfabric's tests of the same program may load libpsm2 first.
[[maybe_unused]] inline const int kPsm2Environment = setenv("HFI_SYSFS_PATH", "/sys/class", 0);
#endif

/// What may carry the links of a window.
struct Network {
  std::string_view name;
  std::string_view transport;  ///< the setting NET
  std::vector<std::pair<const char*, const char*>> settings;
};

/// Each transport of this build that can be used on one host, also where its hardware is missing.
inline const std::vector<Network>& networks() {
  static const std::vector<Network> built = [] {
    std::vector<Network> all = {
        {"tcp", "tcp", {}},
        {"tcp_encrypted", "tcp", {{"NET_ENCRYPT", "1"}}},
        {"shm", "shm", {}},
        {"auto", "auto", {}},
        {"ofi", "ofi", {}},
#ifdef RW_TEST_PSM2
        {"psm2", "psm2", {{"PSM2_DEVICE", "shm"}}},
#endif
        {"sisci", "sisci", {{"SISCI_LIBRARY", RW_SOFTWARE_SISCI}}},
        {"rails", "rails", {{"RAILS", "tcp,shm"}}},
    };
    const std::vector<std::string_view> compiled = transport::compiled_providers();
    std::erase_if(all, [&](const Network& each) {
      return std::ranges::find(compiled, each.transport) == compiled.end();
    });
    return all;
  }();
  return built;
}

/// The software bridges of all tests: their library does not look again where they are.
inline const transport::SoftwareFabric& bridges() {
#ifdef RW_STAND_IN_CUDA
  static const transport::SoftwareFabric made("cuda_library " RW_STAND_IN_CUDA "\n");
#else
  static const transport::SoftwareFabric made;
#endif
  return made;
}

/// Has the one of networks() called `name` carry what ranks send each other, also within a host.
inline void use_network(Runtime& runtime, std::string_view name) {
  (void)bridges();
  const auto found = std::ranges::find(networks(), name, &Network::name);
  RW_ASSERT(found != networks().end());
  runtime.set("LINKS", "network", "test");
  runtime.set("NET", std::string(found->transport), "test");
  for (const auto& [setting, value] : found->settings) runtime.set(setting, value, "test");
}

}  // namespace ropewalk::comm::testing
