// Ranks whose kernels wait for one that stays away: blocks of host threads stand in for the GPUs'.
#include "comm/device_stop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/test_support.h"
#include "core/ticks.h"
#include "executor/block/handshake.h"
#include "executor/block/testing/case.h"
#include "schedule/compile.h"
#include "trace/device_times.h"

namespace ropewalk::comm {
namespace {

using executor::Control;
using executor::LaunchArgs;
using executor::Pack;
using executor::PackedPrograms;
using executor::testing::Case;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kStopRanks = 3;
constexpr std::size_t kStopCount = 8;
constexpr std::uint32_t kCall = 2;
constexpr std::uint64_t kTimeoutNs = 100'000'000;

CollectiveCall all_reduce() {
  CollectiveCall call;
  call.count = kStopCount;
  return call;
}

// What rank 2 does while the others' GPUs are in collective 2.
enum class Absence : std::uint8_t { kNotCalled, kNotBegun };

// What the errors of ranks 0 and 1 say.
std::map<int, std::string> told(Absence absence) {
  Case test;
  test.schedule = schedule::compile("two_shot", {Collective::kAllReduce, kStopRanks, 0, 1});
  test.count = kStopCount;
  const schedule::CheckReport report = schedule::check(test.schedule);
  executor::testing::Machine machine(kStopRanks, 1, test.protocol, test.shape);
  std::latch prepared(kStopRanks);
  std::latch ended(kStopRanks);
  std::array<std::string, kStopRanks> texts;
  bootstrap::run_ranks(kStopRanks, [&](bootstrap::Bootstrap& bootstrap) {
    const int rank = bootstrap.rank();
    trace::CallRecords records(16, false);
    std::vector<std::uint64_t> memory(64);
    trace::DeviceTimes times{std::span(memory)};
    times.calibrate({executor::HostBlock::clock_ns(), ticks()});
    records.set_device_times(&times);
    trace::RollCall roll_call(bootstrap, records);
    const auto enqueue = [&](std::uint32_t number) {
      const std::uint64_t scheduled = ticks();
      const trace::StampRange range = times.next(1);
      records.launched(records.begin(operation_of(all_reduce()), number, 0, true), range, scheduled,
                       nullptr);
      return times.stamps(range);
    };
    // The first collective is over.
    const executor::LaunchStamps first = enqueue(1);
    for (std::size_t word = 0; word < 2; ++word) {
      first.words[word] =
          executor::LaunchStamps::stamp(first.launch, executor::HostBlock::clock_ns());
    }
    prepared.arrive_and_wait();
    if (rank == 2) {
      if (absence == Absence::kNotBegun) (void)enqueue(kCall);
      ended.arrive_and_wait();
      return;
    }
    Control control;
    executor::testing::Machine::Ends ends(machine, rank);
    const PackedPrograms programs = executor::testing::pack_for(
        test.protocol, {executor::make_program(test.schedule, report, rank, 0)}, ends);
    LaunchArgs args = make_args(test, programs, machine, rank, control);
    std::vector<float> input(64);
    std::vector<float> output(64);
    args.call.input = reinterpret_cast<std::byte*>(input.data());
    args.call.output = reinterpret_cast<std::byte*>(output.data());
    args.call.tag = tag_of(all_reduce(), kCall);
    args.links.timeout_ns = kTimeoutNs;
    args.links.stamps = enqueue(kCall);
    std::vector<std::thread> threads;
    std::vector<std::unique_ptr<executor::HostBlockShared>> blocks;
    std::vector<std::vector<Pack>> shared;
    executor::testing::run_block<executor::ElementOf<DataType::kFloat32>, RedOp::kSum>(
        args, test, 0, threads, blocks, shared);
    for (std::thread& thread : threads) thread.join();
    const std::optional<Error> error = stop_error(control.stop, rank);
    ASSERT_TRUE(error.has_value());
    EXPECT_EQ(error->code(), Errc::kTimeout);
    const trace::Waiting waiting =
        waiting_on_device(stop_call(control.stop), records, rank, kStopRanks, {});
    texts[static_cast<std::size_t>(rank)] =
        error->what() + missing(roll_call.ask(waiting.left), waiting);
    ended.arrive_and_wait();
  });
  return {{0, texts[0]}, {1, texts[1]}};
}

TEST(DeviceStop, NamesARankThatHasNotCalled) {
  for (const auto& [rank, text] : told(Absence::kNotCalled)) {
    EXPECT_THAT(text, HasSubstr(fmt::format("all_reduce: a kernel of rank {} waited", rank)));
    EXPECT_THAT(text, HasSubstr("rank 2 has not entered it, collective 2"));
    EXPECT_THAT(text, HasSubstr("rank 2 has last completed all_reduce of 8 float32 (sum)"));
    EXPECT_THAT(text, Not(HasSubstr(rank == 0 ? "rank 1" : "; rank 0")));
  }
}

TEST(DeviceStop, NamesARankWhoseGpuHasNotBegun) {
  for (const auto& [rank, text] : told(Absence::kNotBegun)) {
    EXPECT_THAT(text,
                HasSubstr("; rank 2 has enqueued it, collective 2, and its GPU has not begun"));
    EXPECT_THAT(text, HasSubstr("; rank 2 has last completed all_reduce of 8 float32 (sum), "
                                "collective 1"));
    EXPECT_THAT(text, Not(HasSubstr("not entered")));
    EXPECT_THAT(text, Not(HasSubstr(rank == 0 ? "rank 1" : "; rank 0")));
  }
}

// A launch of messages has no number: who is waited for is told by those that are at work.
TEST(DeviceStop, FindsThePeersOfMessages) {
  trace::CallRecords records(16, false);
  std::vector<std::uint64_t> memory(64);
  trace::DeviceTimes times{std::span(memory)};
  records.set_device_times(&times);
  const trace::StampRange launch = times.next(3);
  const executor::LaunchStamps stamps = times.stamps(launch);
  for (int peer = 1; peer <= 3; ++peer) {
    PointToPointCall call;
    call.peer = peer;
    call.count = 1;
    records.launched(records.begin(operation_of(call), 0, 0, true),
                     launch.part(static_cast<std::uint32_t>(peer - 1), 1), ticks(), nullptr);
  }
  stamps.words[0] = executor::LaunchStamps::stamp(stamps.launch, 100);
  stamps.words[1] = executor::LaunchStamps::stamp(stamps.launch, 200);
  stamps.words[2] = executor::LaunchStamps::stamp(stamps.launch, 110);
  const trace::Waiting waiting = waiting_on_device(std::nullopt, records, 0, 4, {});
  EXPECT_FALSE(waiting.call.has_value());
  EXPECT_THAT(waiting.peers, ::testing::ElementsAre(2));
}

TEST(DeviceStop, IsNoErrorWhereBlocksWereToldTo) {
  executor::StopRecord stop;
  EXPECT_FALSE(stop_error(stop, 0).has_value());
  stop.reason = static_cast<std::uint32_t>(executor::StopReason::kAborted);
  EXPECT_FALSE(stop_error(stop, 0).has_value());
  stop.reason = static_cast<std::uint32_t>(executor::StopReason::kWrongSize);
  stop.peer = 3;
  stop.got = 5;
  stop.expected = 8;
  ASSERT_TRUE(stop_error(stop, 1).has_value());
  EXPECT_THAT(stop_error(stop, 1)->what(), HasSubstr("5 bytes for or from rank 3, where 8"));
  EXPECT_FALSE(stop_call(stop).has_value());
}

TEST(DeviceStop, NamesARankThatUsesASymmetricWindowOtherwise) {
  executor::StopRecord stop;
  stop.reason = static_cast<std::uint32_t>(executor::StopReason::kWrongLocation);
  stop.peer = 3;
  stop.own.call = 7;
  stop.own.collective = static_cast<std::uint8_t>(static_cast<unsigned>(Collective::kAllGather) |
                                                  unsigned{executor::kByCopyEngines});
  stop.got = executor::OutputLocation{2, 8192}.packed();
  stop.expected = executor::OutputLocation{2, 4096}.packed();
  const std::optional<Error> error = stop_error(stop, 1);
  ASSERT_TRUE(error.has_value());
  EXPECT_EQ(error->code(), Errc::kInvalidUsage);
  EXPECT_THAT(error->what(),
              HasSubstr("all_gather by copy engines, call 7: the output of rank 1 is "
                        "4096 bytes into window 2, that of rank 3 is 8192 bytes"));
}

TEST(DeviceStop, NamesACallByCopyEnginesThatWaitedTooLong) {
  executor::StopRecord stop;
  stop.reason = static_cast<std::uint32_t>(executor::StopReason::kTimeout);
  stop.own.count = 5;
  stop.own.collective = static_cast<std::uint8_t>(static_cast<unsigned>(Collective::kBroadcast) |
                                                  unsigned{executor::kByCopyEngines});
  const std::optional<Error> error = stop_error(stop, 2);
  ASSERT_TRUE(error.has_value());
  EXPECT_THAT(error->what(), HasSubstr("broadcast: the copies of rank 2 waited"));
}

}  // namespace
}  // namespace ropewalk::comm
