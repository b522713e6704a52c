#include "trace/call_records.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <thread>
#include <vector>

namespace ropewalk::trace {
namespace {

using State = CallRecords::State;

Operation all_reduce_of(std::size_t count) {
  Operation operation;
  operation.count = count;
  return operation;
}

Operation send_of(std::size_t count) {
  Operation operation = all_reduce_of(count);
  operation.kind = Operation::Kind::kSend;
  return operation;
}

Operation barrier() {
  Operation operation = all_reduce_of(1);
  operation.carried = CarriedType::kNothing;
  return operation;
}

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

TEST(CallRecords, ShowCallsAndTheirProgress) {
  CallRecords records(16, false);
  const std::int64_t before = now_ns();
  Operation reduce = all_reduce_of(7);
  reduce.collective = Collective::kReduce;
  reduce.op = RedOp::kMax;
  reduce.type = DataType::kFloat64;
  reduce.root_or_peer = 3;
  const std::uint16_t ring = records.label_of("ring");
  EXPECT_EQ(records.label_of("ring"), ring);
  EXPECT_NE(records.label_of("chain"), ring);
  const CallRecords::Id first =
      records.begin_started(CallRecords::shape_of(reduce, ring, false), 1);
  records.complete(first);
  Operation send = send_of(9);
  send.carried = CarriedType::kComplex64;
  send.root_or_peer = 2;
  const CallRecords::Id second = records.begin(send, 0, 0, true);
  const CallRecords::Id third = records.begin(barrier(), 2, 0, false);
  records.start(third);

  const std::vector<CallRecords::Record> read = records.read();
  const std::int64_t after = now_ns();
  ASSERT_EQ(read.size(), 3U);
  EXPECT_EQ(read[0].id, first);
  EXPECT_EQ(read[0].call, 1U);
  EXPECT_EQ(read[0].operation, "reduce");
  EXPECT_EQ(read[0].count, 7U);
  EXPECT_EQ(read[0].type, "float64");
  EXPECT_EQ(read[0].op, "max");
  EXPECT_EQ(read[0].root, 3);
  EXPECT_EQ(read[0].peer, -1);
  EXPECT_EQ(read[0].algorithm, "ring");
  EXPECT_FALSE(read[0].on_device);
  EXPECT_EQ(read[0].state, State::kCompleted);
  EXPECT_EQ(read[0].started_ns, read[0].scheduled_ns);
  constexpr std::int64_t kDoubtNs = 100'000;
  EXPECT_GE(read[0].scheduled_ns, before - kDoubtNs);
  EXPECT_GE(read[0].completed_ns, read[0].started_ns);
  EXPECT_LE(read[0].completed_ns, after + kDoubtNs);

  EXPECT_EQ(read[1].id, second);
  EXPECT_EQ(read[1].call, 0U);
  EXPECT_EQ(read[1].operation, "send");
  EXPECT_EQ(read[1].type, "complex64");
  EXPECT_EQ(read[1].peer, 2);
  EXPECT_EQ(read[1].root, -1);
  EXPECT_TRUE(read[1].on_device);
  EXPECT_EQ(read[1].state, State::kScheduled);
  EXPECT_EQ(read[1].started_ns, 0);
  EXPECT_EQ(read[1].algorithm, "");

  EXPECT_EQ(read[2].operation, "barrier");
  EXPECT_EQ(read[2].type, "");
  EXPECT_EQ(read[2].op, "");
  EXPECT_EQ(read[2].state, State::kStarted);
  EXPECT_GT(read[2].started_ns, 0);
}

TEST(CallRecords, ARingKeepsTheLastOnes) {
  CallRecords records(16, false);
  std::vector<CallRecords::Id> ids;
  for (std::uint64_t i = 1; i <= 40; ++i) {
    ids.push_back(records.begin(all_reduce_of(i), i, 0, false));
  }
  // It is kept no more, and nobody else's times change.
  records.complete(ids[3]);
  records.complete(ids[39]);
  const std::vector<CallRecords::Record> read = records.read();
  ASSERT_EQ(read.size(), 16U);
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].count, 25 + i);
    EXPECT_EQ(read[i].state, i == 15 ? State::kCompleted : State::kScheduled);
  }
  EXPECT_EQ(records.num_begun(), 40U);
}

TEST(CallRecords, AllAreKeptWhereAllAreWanted) {
  CallRecords records(16, true);
  std::vector<CallRecords::Id> ids;
  for (std::uint64_t i = 1; i <= 40; ++i) {
    ids.push_back(records.begin(all_reduce_of(i), i, 0, false));
  }
  records.complete(ids[3]);
  const std::vector<CallRecords::Record> read = records.read();
  ASSERT_EQ(read.size(), 40U);
  for (std::size_t i = 0; i < read.size(); ++i) {
    EXPECT_EQ(read[i].count, 1 + i);
    EXPECT_EQ(read[i].state, i == 3 ? State::kCompleted : State::kScheduled);
  }
}

TEST(CallRecords, WithoutCapacityThereAreNone) {
  CallRecords records(0, false);
  const CallRecords::Id id = records.begin(all_reduce_of(1), 1, 0, false);
  EXPECT_EQ(id, 0U);
  records.start(id);
  records.complete(id);
  EXPECT_TRUE(records.read().empty());
}

// Calls that find their data there are timed at every eighth alone, while they follow closely.
TEST(CallRecords, ShortCallsThatFollowCloselySpareTheClock) {
  ShortCallClock clock;
  std::uint64_t now = 1'000'000;
  std::vector<std::uint64_t> read;
  for (std::uint64_t number = 1; number <= 40; ++number) {
    now += 100;
    if (clock.spares(number)) continue;
    EXPECT_EQ(clock.read(number, now, true), number > 1);
    read.push_back(number);
  }
  EXPECT_EQ(read, (std::vector<std::uint64_t>{1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 25, 33}));
  EXPECT_EQ(clock.last(), 1'000'000U + 3'300);
  // After a pause, and where a call waited, each is timed again.
  now += 1'000'000;
  EXPECT_FALSE(clock.read(41, now, true));
  EXPECT_FALSE(clock.spares(42));
  for (std::uint64_t number = 42; number <= 60; ++number) {
    EXPECT_FALSE(clock.spares(number));
    EXPECT_TRUE(clock.read(number, ++now, false));
  }
}

TEST(CallRecords, OfSparedCallsTheTimesAreForgottenAfterAPause) {
  CallRecords records(64, false);
  const auto call_now = [&](std::uint64_t number) {
    records.add_short(CallRecords::shape_of(all_reduce_of(1), 0, false), number);
  };
  // Some run of calls is closely enough; on a busy machine not the first one.
  std::vector<CallRecords::Record> read;
  std::uint64_t number = 0;
  std::size_t unsure = 0;
  for (int attempt = 0; attempt < 1000 && unsure == 0; ++attempt) {
    for (int i = 0; i < 45; ++i) call_now(++number);
    for (const CallRecords::Record& record : records.read()) {
      EXPECT_EQ(record.state, State::kCompleted);
      EXPECT_NE(record.started_ns, 0);
      EXPECT_EQ(record.started_ns, record.completed_ns);
      unsure += record.timed ? 0 : 1;
    }
  }
  // Those behind the last reading: whether there was a pause is not known yet.
  EXPECT_GT(unsure, 0U);
  EXPECT_LT(unsure, 8U);
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  // At the next reading it is.
  for (int i = 0; i < 8; ++i) call_now(++number);
  std::size_t forgotten = 0;
  for (const CallRecords::Record& record : records.read()) forgotten += record.timed ? 0 : 1;
  EXPECT_GE(forgotten, unsure);
  EXPECT_LT(forgotten, 16U);
  // What waits has times of its own.
  CallRecords all(64, true);
  for (int i = 1; i < 40; ++i) {
    all.complete(all.begin_started(CallRecords::shape_of(all_reduce_of(1), 0, false),
                                   static_cast<std::uint64_t>(i)));
  }
  for (const CallRecords::Record& record : all.read()) EXPECT_TRUE(record.timed);
}

// Each record that is read is one that was written, whole.
TEST(CallRecords, AreReadWhileTheyAreWritten) {
  CallRecords records(32, false);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; !stop; ++i) {
      Operation call = all_reduce_of(3 * i);
      call.collective = Collective::kBroadcast;
      call.root_or_peer = static_cast<int>(i % 1000);
      const auto shape = CallRecords::shape_of(call, 0, false);
      if (i % 2 == 0) {
        records.add_short(shape, i);
      } else {
        (void)records.begin_started(shape, i);
      }
    }
  });
  for (int round = 0; round < 200; ++round) {
    for (const CallRecords::Record& record : records.read()) {
      ASSERT_EQ(record.count, 3 * record.call);
      ASSERT_EQ(record.id, record.call);
      ASSERT_EQ(record.root, static_cast<int>(record.call % 1000));
      if (record.call % 2 == 1) {
        ASSERT_EQ(record.state, State::kStarted);
      }
    }
  }
  stop = true;
  writer.join();
}

// ---- of operations on a GPU: the test notes what its blocks would -----------------------

class RecordsOnAGpu : public ::testing::Test {
 protected:
  static constexpr std::size_t kBlocks = 32;
  RecordsOnAGpu() {
    times_.calibrate({kDeviceNs, ticks()});
    begin_ns_ = now_ns();
  }

  // Enqueues one; its blocks note these times after the readings of the clocks, 0: not yet.
  StampRange launch(CallRecords& records, std::uint32_t blocks, std::uint64_t begin,
                    std::uint64_t end) {
    const std::uint64_t scheduled = ticks();
    const StampRange range = times_.next(blocks);
    const CallRecords::Id id = records.begin(all_reduce_of(1), ++calls_, 0, true);
    records.launched(id, range, scheduled, stream_);
    note(range, begin, end);
    return range;
  }
  void note(const StampRange& range, std::uint64_t begin, std::uint64_t end) {
    const executor::LaunchStamps stamps = times_.stamps(range);
    for (std::size_t b = 0; b < range.blocks; ++b) {
      if (begin != 0) {
        stamps.words[2 * b] = executor::LaunchStamps::stamp(stamps.launch, kDeviceNs + begin);
      }
      if (end != 0) {
        stamps.words[2 * b + 1] = executor::LaunchStamps::stamp(stamps.launch, kDeviceNs + end);
      }
    }
  }

  static constexpr std::uint64_t kDeviceNs = 123'456'789'000'000'000;
  std::vector<std::uint64_t> memory_ = std::vector<std::uint64_t>(2 * kBlocks);
  DeviceTimes times_{std::span(memory_)};
  std::uint64_t calls_ = 0;
  std::int64_t begin_ns_ = 0;
  const void* stream_ = nullptr;
};

TEST_F(RecordsOnAGpu, HaveTheirStreamsAndProtocols) {
  CallRecords records(8, false);
  const char streams[2] = {};
  const std::vector<const void*> used = {nullptr, &streams[0], &streams[1], &streams[0], nullptr};
  for (const void* stream : used) {
    stream_ = stream;
    (void)launch(records, 1, 0, 0);
  }
  records.set_label(3, records.label_of("ring", "ll128"));
  records.set_label(4, records.label_of("ring", "ll"));
  std::vector<CallRecords::Record> read = records.read();
  ASSERT_EQ(read.size(), used.size());
  for (std::size_t i = 0; i < used.size(); ++i) EXPECT_EQ(read[i].stream, used[i]);
  EXPECT_EQ(read[2].algorithm, "ring");
  EXPECT_EQ(read[2].protocol, "ll128");
  EXPECT_EQ(read[3].protocol, "ll");
  EXPECT_EQ(read[1].protocol, "");
  // What takes a slot after an operation on a stream has none.
  for (int i = 0; i < 8; ++i) {
    (void)records.begin(all_reduce_of(1), ++calls_, records.label_of("ring"), false);
  }
  for (const CallRecords::Record& record : records.read()) {
    EXPECT_EQ(record.stream, nullptr);
    EXPECT_EQ(record.protocol, "");
  }
}

TEST_F(RecordsOnAGpu, HaveTheTimesThatAreNotedThere) {
  CallRecords records(8, false);
  records.set_device_times(&times_);
  constexpr std::uint64_t kMs = 1'000'000;
  const auto later = std::chrono::milliseconds(40);
  (void)launch(records, 2, 5 * kMs, 7 * kMs);
  (void)launch(records, 1, 8 * kMs, 0);
  (void)launch(records, 3, 0, 0);
  std::this_thread::sleep_for(later);
  const std::vector<CallRecords::Record> read = records.read();
  ASSERT_EQ(read.size(), 3U);
  for (const CallRecords::Record& record : read) {
    EXPECT_TRUE(record.on_device);
    EXPECT_TRUE(record.timed);
  }
  EXPECT_EQ(read[0].state, State::kCompleted);
  EXPECT_GE(read[0].started_ns, read[0].scheduled_ns);
  EXPECT_EQ(read[0].completed_ns - read[0].started_ns, 2 * static_cast<std::int64_t>(kMs));
  EXPECT_EQ(read[1].started_ns - read[0].completed_ns, static_cast<std::int64_t>(kMs));
  EXPECT_LE(read[1].started_ns, now_ns());
  constexpr double kDoubtNs = 1e6;  // of a test's host
  EXPECT_NEAR(static_cast<double>(read[0].started_ns - begin_ns_), 5e6, kDoubtNs);
  EXPECT_EQ(read[1].state, State::kStarted);
  EXPECT_EQ(read[1].completed_ns, 0);
  EXPECT_EQ(read[2].state, State::kScheduled);
  EXPECT_EQ(read[2].started_ns, 0);
}

// They have times although other launches have their memory by now.
TEST_F(RecordsOnAGpu, KeepTimes) {
  for (const bool all : {false, true}) {
    CallRecords records(16, all);
    records.set_device_times(&times_);
    for (std::uint64_t i = 1; i <= 16; ++i) (void)launch(records, 8, 10 * i, 10 * i + 3);
    const std::vector<CallRecords::Record> read = records.read();
    ASSERT_EQ(read.size(), 16U);
    for (const CallRecords::Record& record : read) {
      EXPECT_TRUE(record.timed);
      EXPECT_EQ(record.state, State::kCompleted);
      EXPECT_EQ(record.operation, "all_reduce");
      EXPECT_EQ(record.completed_ns - record.started_ns, 3);
      EXPECT_EQ(record.started_ns - read[0].started_ns,
                10 * static_cast<std::int64_t>(record.id - 1));
    }
  }
}

TEST_F(RecordsOnAGpu, WhoseLaunchesNoteNothingAreNotTimed) {
  CallRecords records(8, false);
  (void)launch(records, 2, 5, 6);
  records.set_device_times(&times_);
  (void)launch(records, kBlocks, 0, 0);
  (void)launch(records, 2, 50, 60);
  records.set_device_times(nullptr);
  for (const CallRecords::Record& record : records.read()) {
    EXPECT_FALSE(record.timed);
    EXPECT_EQ(record.state, State::kScheduled);
  }
}

// Labels with bytes are bounded, and so is what they need.
TEST(CallRecords, OfMoreSizesThanAreKeptHaveNoBytes) {
  CallRecords records(8, false);
  std::uint16_t label = 0;
  std::size_t bytes = 0;
  std::size_t with = 0;
  for (; bytes < 70'000; ++bytes) {
    label = records.label_of("ring", {}, std::vector<SentBytes>{{1, bytes}});
    (void)records.begin(all_reduce_of(1), bytes + 1, label, false);
    const CallRecords::Record last = records.read(1).back();
    EXPECT_EQ(last.algorithm, "ring");
    if (!last.sent.has_value()) continue;
    ++with;
    EXPECT_EQ(*last.sent, (std::vector<SentBytes>{{1, bytes}}));
  }
  EXPECT_GT(with, 10'000U);
  EXPECT_LT(with, bytes);
  EXPECT_EQ(records.label_of("ring", {}, std::vector<SentBytes>{{1, bytes}}), label);
  EXPECT_NE(records.label_of("chain"), label);
}

TEST(CallRecords, CountCalls) {
  CallRecords records(16, false);
  EXPECT_TRUE(records.counts().empty());
  for (int i = 0; i < 40; ++i) (void)records.begin(all_reduce_of(1), 1, 0, i % 2 == 0);
  (void)records.begin(barrier(), 2, 0, false);
  (void)records.begin(send_of(1), 0, 0, false);
  const std::map<std::string, std::uint64_t> expected = {
      {"all_reduce", 40}, {"barrier", 1}, {"send", 1}};
  EXPECT_EQ(records.counts(), expected);
}

}  // namespace
}  // namespace ropewalk::trace
