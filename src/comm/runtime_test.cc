// Tests of the objects that a process's communicators share.
#include "comm/runtime.h"

#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/log.h"

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

TEST(Runtime, AnAlgorithmThatIsNoneIsRefusedWhereItIsSet) {
  Runtime runtime;
  EXPECT_THROW(runtime.set("ALGORITHM", "all_reduce=zigzag", "test"), Error);
  EXPECT_EQ(runtime.config().text(Setting::kAlgorithm),
            Runtime().config().text(Setting::kAlgorithm));
}

TEST(Runtime, ASettingOfTheLogHoldsAtOnce) {
  Runtime runtime;
  const std::string before = runtime.config().text(Setting::kDebug);
  runtime.set("DEBUG", "INFO", "test");
  EXPECT_TRUE(log::enabled(log::Level::kInfo, log::kInit));
  runtime.set("DEBUG", "NONE", "test");
  EXPECT_FALSE(log::enabled(log::Level::kWarn, log::kAll));
  runtime.set("DEBUG", before, "test");
}

}  // namespace
}  // namespace ropewalk::comm
