// One end of a connection over a transport that never moves, by a clock of the test's own.
#include "netplugin/comm.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "core/log.h"
#include "netplugin/stall_watch.h"
#include "transport/simple_requests.h"
#include "transport/transport.h"

namespace ropewalk::netplugin {
namespace {

using namespace std::chrono_literals;

StallWatch::Clock::time_point test_time;  // NOLINT: a clock is a function without an object
StallWatch::Clock::time_point now() { return test_time; }

// Polls in vain as often as the clock is read once.
bool begins_at_next_look(StallWatch& watch) {
  for (unsigned poll = 1; poll < StallWatch::kPollsPerLook; ++poll) {
    EXPECT_FALSE(watch.begins()) << "the clock was read at poll " << poll;
  }
  return watch.begins();
}

TEST(StallWatch, ReportsOnceUntilSomethingMoves) {
  StallWatch watch(now);
  for (int round = 0; round < 2; ++round) {
    EXPECT_FALSE(begins_at_next_look(watch));  // from here on it counts
    test_time += StallWatch::kAfter - 1ms;
    EXPECT_FALSE(begins_at_next_look(watch));
    test_time += 1ms;
    EXPECT_TRUE(begins_at_next_look(watch));
    test_time += 10 * StallWatch::kAfter;
    EXPECT_FALSE(begins_at_next_look(watch)) << "it was told already";
    watch.moved();
  }
}

TEST(StallWatch, CountsFromTheLastMove) {
  StallWatch watch(now);
  for (int round = 0; round < 3; ++round) {
    EXPECT_FALSE(begins_at_next_look(watch));
    test_time += StallWatch::kAfter - 1ms;
    EXPECT_FALSE(begins_at_next_look(watch));
    watch.moved();
  }
}

// What the two ends below do next.
struct Script {
  bool starts = true;   // a send
  bool arrives = true;  // a receive
};

class ScriptedReceive final : public transport::Request {
 public:
  explicit ScriptedReceive(const Script& script) : script_(script) {}
  std::optional<std::size_t> test() override {
    return script_.arrives ? std::optional(kBytes.front()) : std::nullopt;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return kBytes; }

 private:
  static constexpr std::array<std::size_t, 1> kBytes = {3};
  const Script& script_;
};

class ScriptedReceiver final : public transport::ReceiveConnection {
 public:
  explicit ScriptedReceiver(const Script& script) : script_(script) {}
  std::unique_ptr<transport::Registration> register_memory(void* data, std::size_t bytes,
                                                           transport::MemoryKind kind) override {
    return transport::HostRegistration::make(data, bytes, kind);
  }
  std::unique_ptr<transport::Request> receive(
      std::span<const transport::ReceiveBuffer> /*buffers*/) override {
    return std::make_unique<ScriptedReceive>(script_);
  }
  std::unique_ptr<transport::Request> flush(
      std::span<const transport::ReceiveBuffer> /*buffers*/) override {
    return nullptr;
  }
  [[nodiscard]] std::string describe() const override { return "the peer sleeps"; }

 private:
  const Script& script_;
};

class ScriptedSender final : public transport::SendConnection {
 public:
  explicit ScriptedSender(const Script& script) : script_(script) {}
  std::unique_ptr<transport::Registration> register_memory(void* data, std::size_t bytes,
                                                           transport::MemoryKind kind) override {
    return transport::HostRegistration::make(data, bytes, kind);
  }
  std::unique_ptr<transport::Request> send(const void* /*data*/, std::size_t bytes,
                                           std::uint32_t /*tag*/,
                                           transport::Registration* /*registration*/) override {
    if (!script_.starts) return nullptr;
    return std::make_unique<transport::FinishedRequest>(std::vector<std::size_t>{bytes});
  }
  [[nodiscard]] std::string describe() const override { return "the peer posts nothing"; }

 private:
  const Script& script_;
};

std::vector<std::string> logged;  // NOLINT: a sink is a function without an object

class ScriptedComm : public ::testing::Test {
 protected:
  ScriptedComm() {
    logged.clear();
    log::set_sink([](log::Level level, std::uint32_t subsystem, const char* text) {
      EXPECT_EQ(level, log::Level::kInfo);
      EXPECT_EQ(subsystem, log::kNet);
      logged.emplace_back(text);
    });
  }
  ~ScriptedComm() override { log::set_sink(nullptr); }

  // Polls until the clock has been read once, and again after the time that makes a stall, twice.
  template <typename Poll>
  static void stall(Poll poll) {
    for (int look = 0; look < 3; ++look) {
      for (unsigned i = 0; i < StallWatch::kPollsPerLook; ++i) poll();
      EXPECT_EQ(logged.size(), look == 0 ? 0U : 1U);
      test_time += StallWatch::kAfter;
    }
  }

  Script script_;
  Memories memories_;
  std::array<std::byte, 8> data_{};
};

TEST_F(ScriptedComm, ReportsOnceAMessageThatDoesNotArrive) {
  Comm comm(std::make_unique<ScriptedReceiver>(script_), memories_, "connection 7", nullptr, now);
  void* const memory =
      comm.register_memory(data_.data(), data_.size(), transport::MemoryKind::kHost);
  for (int round = 0; round < 2; ++round) {  // what arrived ends a stall
    logged.clear();
    const Part part{data_.data(), data_.size(), 0, memory};
    void* const request = comm.receive({&part, 1});
    ASSERT_NE(request, nullptr);
    script_.arrives = false;
    stall([&] { EXPECT_FALSE(comm.test(request).done); });
    EXPECT_EQ(logged, std::vector<std::string>{
                          "connection 7: nothing has moved for 10 s: the peer sleeps"});
    script_.arrives = true;
    const Outcome outcome = comm.test(request);
    EXPECT_TRUE(outcome.done);
    EXPECT_EQ(outcome.count, 1U);
    EXPECT_EQ(outcome.bytes[0], 3U);
  }
}

TEST_F(ScriptedComm, Holds64RequestsAtOnce) {
  Comm comm(std::make_unique<ScriptedReceiver>(script_), memories_, "connection 9", nullptr, now);
  const Part part;
  std::set<void*> requests;
  for (int i = 0; i < 64; ++i) requests.insert(comm.receive({&part, 1}));
  EXPECT_EQ(requests.size(), 64U);
  EXPECT_FALSE(requests.contains(nullptr));
  EXPECT_EQ(comm.receive({&part, 1}), nullptr);
  EXPECT_TRUE(comm.test(*requests.begin()).done);
  EXPECT_NE(comm.receive({&part, 1}), nullptr);
}

TEST_F(ScriptedComm, ReportsOnceAMessageThatCannotBeStarted) {
  Comm comm(std::make_unique<ScriptedSender>(script_), memories_, "connection 8", nullptr, now);
  for (int round = 0; round < 2; ++round) {  // a started operation ends a stall
    logged.clear();
    script_.starts = false;
    stall([&] { EXPECT_EQ(comm.send({}), nullptr); });
    EXPECT_EQ(logged, std::vector<std::string>{
                          "connection 8: nothing has moved for 10 s: the peer posts nothing"});
    script_.starts = true;
    EXPECT_NE(comm.send({}), nullptr);
  }
}

}  // namespace
}  // namespace ropewalk::netplugin
