// For tests: the ranks of a communicator as threads of this process.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <exception>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "bootstrap/unique_id.h"
#include "comm/communicator.h"
#include "comm/runtime.h"

namespace ropewalk::comm::testing {

// Settings that keep the tests to themselves: no measuring, no files.
inline void quiet(Runtime& runtime) {
  runtime.set("TUNE", "0", "test");
  runtime.set("TOPOLOGY_CACHE", "off", "test");
  runtime.set("TIMEOUT", "60", "test");
}

// Runs `body` on every rank of a new communicator, each in a thread.
inline void with_ranks(int size, Runtime& runtime, const std::function<void(Communicator&)>& body) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::vector<std::thread> threads;
  std::atomic<int> failures{0};
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        const std::unique_ptr<Communicator> comm = Communicator::join(id, r, size, runtime);
        body(*comm);
        comm->finalize();
      } catch (const std::exception& error) {
        ++failures;
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(failures, 0);
}

}  // namespace ropewalk::comm::testing
