// What a process's communicators share.
#include "comm/runtime.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

namespace ropewalk::comm {
namespace {

TEST(Runtime, SettingsMadeAtOnceAreAllKept) {
  // Of two threads that each read, change and write back all settings, one would undo the other's.
  const std::vector<std::string> names = {"TIMEOUT", "SPIN", "PEER_LOSS_TIME", "SLOT_BYTES"};
  for (int round = 0; round < 200; ++round) {
    Runtime runtime;
    const std::string value = std::to_string(1000 + round);
    std::vector<std::thread> threads;
    for (const std::string& name : names) {
      threads.emplace_back([&runtime, &value, name] {
        runtime.set(name, name == "SLOT_BYTES" ? value : value + "us", "test");
      });
    }
    for (std::thread& thread : threads) thread.join();
    const Config config = runtime.config();
    ASSERT_EQ(config.duration(Setting::kTimeout).count(), (1000 + round) * 1000) << round;
    ASSERT_EQ(config.duration(Setting::kSpin).count(), (1000 + round) * 1000) << round;
    ASSERT_EQ(config.duration(Setting::kPeerLossTime).count(), (1000 + round) * 1000) << round;
    ASSERT_EQ(config.bytes(Setting::kSlotBytes), static_cast<std::size_t>(1000 + round)) << round;
  }
}

}  // namespace
}  // namespace ropewalk::comm
