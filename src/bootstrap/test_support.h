// For the tests of the bootstrap: ranks as threads.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/error.h"

namespace ropewalk::bootstrap {

/// Far enough for the slowest machine: no test waits for it unless it fails.
inline Deadline soon() { return std::chrono::steady_clock::now() + std::chrono::seconds(60); }
inline Deadline in_ms(int ms) {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(ms);
}

/// Loopback, so that tests do not depend on the machine's interfaces.
inline Config quiet_config() {
  Config config;
  config.set("SOCKET_IFNAME", "lo", "test");
  config.set("TIMEOUT", "60s", "test");
  return config;
}

/// Runs `body` for `size` ranks as threads, then lets them leave.
inline void run_ranks(int size, const std::function<void(Bootstrap&)>& body,
                      const Config& config = quiet_config()) {
  Context context;
  const UniqueId id = make_unique_id(config, context);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto self = Bootstrap::join(id, rank, size, config, soon(), context);
        body(*self);
        self->leave();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << rank << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// The error of `body`, or kInternal and "no error".
inline std::pair<Errc, std::string> error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return {error.code(), error.what()};
  }
  return {Errc::kInternal, "no error"};
}

}  // namespace ropewalk::bootstrap
