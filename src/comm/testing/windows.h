// What tests of windows in host and in GPU memory share.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "comm/runtime.h"
#include "core/error.h"
#include "core/testing/pattern.h"
#include "message/window_memory.h"
#include "transport/registry.h"
#include "transport/window/sisci/testing/fabric.h"

namespace ropewalk::comm::testing {

/// Different in each byte, rank and turn.
inline std::vector<std::byte> pattern(std::size_t bytes, int rank, int turn) {
  std::vector<std::byte> made(bytes);
  ropewalk::testing::fill_pattern(
      made.data(), bytes,
      static_cast<std::uint64_t>(rank) << 32U | static_cast<std::uint32_t>(turn));
  return made;
}

/// With what `body` is refused. An error that breaks a communicator is kInternal, "broke: ...".
template <typename Body>
std::pair<Errc, std::string> refusal_of(Body&& body) {
  try {
    body();
  } catch (const message::Refused& error) {
    return {error.code(), error.what()};
  } catch (const Error& error) {
    return {Errc::kInternal, std::string("broke: ") + error.what()};
  }
  return {Errc::kInternal, "no error"};
}

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

/// Has the one of networks() called `name` carry what ranks send each other, also within a host.
inline void use_network(Runtime& runtime, std::string_view name) {
  // Once for all tests: the software library does not look again where they are.
  static const transport::SoftwareFabric bridges;
  const auto found = std::ranges::find(networks(), name, &Network::name);
  RW_ASSERT(found != networks().end());
  runtime.set("LINKS", "network", "test");
  runtime.set("NET", std::string(found->transport), "test");
  for (const auto& [setting, value] : found->settings) runtime.set(setting, value, "test");
}

}  // namespace ropewalk::comm::testing
