// Handshakes around copies as memory operations of streams, with software that stands in for CUDA's
// driver: its streams are threads that do everything late and in order. Copies between pinned
// buffers stand for those between GPUs. Where a graph would be launched again, the same operations
// with the same values are enqueued again: all that a graph keeps of them.
#include "handshake/stream_handshake.h"

#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "executor/block/handshake.h"
#include "handshake/testing/pinned_words.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::handshake {
namespace {

namespace gpus = transport::window;
using executor::CallTag;
using executor::Control;
using executor::StopReason;
using std::chrono::milliseconds;
using testing::PinnedWords;
using testing::stand_in_gpus;
using TestClock = std::chrono::steady_clock;

HandshakeCall call_of(std::uint32_t number, std::uint64_t count = 7, std::uint64_t offset = 4096) {
  HandshakeCall call;
  call.tag.count = count;
  call.tag.call = number;
  call.tag.collective = static_cast<std::uint8_t>(static_cast<unsigned>(Collective::kAllGather) |
                                                  unsigned{executor::kByCopyEngines});
  call.location = executor::OutputLocation{3, offset}.packed();
  return call;
}

// Ranks whose calls are all-gathers of one word, each with a stream.
class StreamRanks {
 public:
  static constexpr std::size_t kMostCalls = 64;

  explicit StreamRanks(int ranks, bool check_tags = true)
      : n_(static_cast<std::size_t>(ranks)),
        memory_(HandshakeWords::bytes(ranks)),
        words_(memory_.data(), reinterpret_cast<std::uint64_t>(memory_.data()), ranks) {
    for (int r = 0; r < ranks; ++r) {
      ranks_.push_back(std::make_unique<Rank>(n_));
      Rank& rank = *ranks_.back();
      gpus::Gpu& gpu = gpu_of(r);
      const gpus::CurrentContext current(gpu.cuda(), gpu.context());
      gpu.cuda().check(gpu.cuda().stream_create(&rank.stream, gpus::kCuStreamNonBlocking, 0), "");
      rank.handshake =
          std::make_unique<StreamHandshake>(gpu.cuda(), words_, rank.control, r, check_tags);
    }
  }
  ~StreamRanks() {
    for (const auto& rank : ranks_) std::atomic_ref(rank->control.abort).store(1);
    for (int r = 0; r < static_cast<int>(n_); ++r) {
      EXPECT_TRUE(idle_within(r, std::chrono::seconds(30)));
      gpu_of(r).cuda().warn(gpu_of(r).cuda().stream_destroy(of(r).stream), "");
    }
  }
  StreamRanks(const StreamRanks&) = delete;
  StreamRanks& operator=(const StreamRanks&) = delete;

  // Round `round` by `rank`, which gives its own word of it; what came is kept.
  void enqueue(int rank, const HandshakeCall& call, std::size_t round, bool captured = false) {
    Rank& own = of(rank);
    const auto self = static_cast<std::size_t>(rank);
    const gpus::CurrentContext current(gpu_of(rank).cuda(), gpu_of(rank).context());
    HandshakeWords::store(own.inputs.data()[round], word(rank, round));
    copy(rank, own.output.data(), own.blank.data(), n_);  // as a program clears its output
    own.handshake->enter(call, captured, own.stream);
    for (const auto& peer : ranks_) {
      copy(rank, peer->output.data() + self, own.inputs.data() + round, 1);
    }
    own.handshake->leave(call, own.stream);
    copy(rank, own.results.data() + round * n_, own.output.data(), n_);
  }
  static std::uint64_t word(int rank, std::size_t round) {
    return round * 1000 + static_cast<std::uint64_t>(rank) + 1;
  }
  [[nodiscard]] std::size_t wrong(int rank, std::size_t round) const {
    std::size_t wrong = 0;
    for (std::size_t peer = 0; peer < n_; ++peer) {
      const std::uint64_t found =
          ranks_[static_cast<std::size_t>(rank)]->results.at(round * n_ + peer);
      wrong += found != word(static_cast<int>(peer), round) ? 1 : 0;
    }
    return wrong;
  }
  [[nodiscard]] std::uint64_t output(int rank, std::size_t peer) const {
    return ranks_[static_cast<std::size_t>(rank)]->output.at(peer);
  }

  [[nodiscard]] bool idle(int rank) const {
    return gpu_of(rank).cuda().stream_query(ranks_[static_cast<std::size_t>(rank)]->stream) ==
           gpus::kCuSuccess;
  }
  [[nodiscard]] bool idle_within(int rank, TestClock::duration limit) const {
    const auto end = TestClock::now() + limit;
    while (!idle(rank)) {
      if (TestClock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }
  [[nodiscard]] bool all_idle() const {
    bool all = true;
    for (int r = 0; r < static_cast<int>(n_); ++r) {
      all = idle_within(r, std::chrono::seconds(60)) && all;
    }
    return all;
  }
  // Waits until the rank has written down why it stops.
  [[nodiscard]] StopReason reason(int rank) const {
    const auto end = TestClock::now() + std::chrono::seconds(20);
    for (;;) {
      const Control& control = ranks_[static_cast<std::size_t>(rank)]->control;
      const auto reason = static_cast<StopReason>(
          std::atomic_ref(const_cast<std::uint32_t&>(control.stop.reason)).load());
      if (reason > StopReason::kAborted || TestClock::now() > end) return reason;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  // Of two ranks. The other one may find nothing more, once this one's words are spoiled.
  [[nodiscard]] int first_to_tell() const {
    const auto end = TestClock::now() + std::chrono::seconds(20);
    while (!stopped(0) && !stopped(1) && TestClock::now() < end) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return stopped(0) ? 0 : 1;
  }
  [[nodiscard]] bool stopped(int rank) const {
    const Control& control = ranks_[static_cast<std::size_t>(rank)]->control;
    return std::atomic_ref(const_cast<std::uint32_t&>(control.stop.reason)).load() != 0;
  }
  [[nodiscard]] const executor::StopRecord& stop(int rank) const {
    return ranks_[static_cast<std::size_t>(rank)]->control.stop;
  }
  void abort(int rank) { std::atomic_ref(of(rank).control.abort).store(1); }
  StreamHandshake& handshake(int rank) { return *of(rank).handshake; }
  [[nodiscard]] const HandshakeWords& words() const { return words_; }
  // Each rank's body in a thread of its own, as a process.
  void on_all(const std::function<void(int)>& body) const {
    std::vector<std::thread> hosts;
    for (int r = 0; r < static_cast<int>(n_); ++r) hosts.emplace_back(body, r);
    for (std::thread& host : hosts) host.join();
  }

 private:
  struct Rank {
    explicit Rank(std::size_t n)
        : inputs(8 * kMostCalls), output(8 * n), blank(8 * n), results(8 * n * kMostCalls) {}
    PinnedWords inputs, output, blank, results;
    Control control;
    gpus::CuStream stream = nullptr;
    std::unique_ptr<StreamHandshake> handshake;
  };
  static gpus::Gpu& gpu_of(int rank) { return stand_in_gpus().at(rank % 2); }
  Rank& of(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }
  void copy(int rank, std::uint64_t* to, const std::uint64_t* from, std::size_t words) {
    gpu_of(rank).cuda().check(
        gpu_of(rank).cuda().copy(reinterpret_cast<std::uint64_t>(to),
                                 reinterpret_cast<std::uint64_t>(from), 8 * words, of(rank).stream),
        "copy");
  }

  std::size_t n_;
  PinnedWords memory_;
  HandshakeWords words_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

// Calls one behind the other, without any other order between the ranks: copies must find outputs
// that have been read, and outputs must be whole behind them.
void expect_right_rounds(int ranks, std::size_t rounds, bool same_call) {
  StreamRanks job(ranks);
  job.on_all([&](int r) {
    for (std::size_t round = 0; round < rounds; ++round) {
      if ((round + static_cast<std::size_t>(r)) % 5 == 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(700));
      }
      const auto number = static_cast<std::uint32_t>(same_call ? 1 : round + 1);
      job.enqueue(r, call_of(number), round, same_call);
    }
  });
  ASSERT_TRUE(job.all_idle());
  for (int r = 0; r < ranks; ++r) {
    for (std::size_t round = 0; round < rounds; ++round) EXPECT_EQ(job.wrong(r, round), 0U);
    EXPECT_FALSE(job.stopped(r));
    // As they were at first: a graph finds what it was captured with.
    EXPECT_EQ(HandshakeWords::load(job.words().state(r)), 0U);
    for (int by = 0; by < ranks; ++by) {
      EXPECT_EQ(HandshakeWords::load(job.words().entered(r, by)), 0U);
      EXPECT_EQ(HandshakeWords::load(job.words().left(r, by)), 0U);
    }
  }
}

TEST(StreamHandshake, OrdersCopiesOfTwoRanks) { expect_right_rounds(2, 60, false); }
TEST(StreamHandshake, OrdersCopiesOfManyRanks) { expect_right_rounds(7, 20, false); }
TEST(StreamHandshake, OfARankAloneIsNothing) { expect_right_rounds(1, 3, false); }

TEST(StreamHandshake, WritesTheSameValuesAgainWhereGraphsAreLaunchedAgain) {
  expect_right_rounds(2, 60, true);
  expect_right_rounds(5, 30, true);
}

// More operations than one submission takes.
TEST(StreamHandshake, OfMoreRanksThanABatchHasOperations) { expect_right_rounds(90, 1, false); }

TEST(StreamHandshake, CopiesNothingBeforeThePeerIsThere) {
  StreamRanks job(2);
  job.enqueue(0, call_of(1), 0);
  EXPECT_FALSE(job.idle_within(0, milliseconds(60)));
  EXPECT_EQ(job.output(1, 0), 0U);
  job.enqueue(1, call_of(1), 0);
  ASSERT_TRUE(job.all_idle());
  EXPECT_EQ(job.wrong(0, 0) + job.wrong(1, 0), 0U);
}

// The host looks at each wait, and not at how long the stream has been at work.
TEST(StreamHandshake, ManyShortWaitsAreNoLongOne) {
  StreamRanks job(2);
  // Twelve waits are longer, one is not on a machine that stands still for a second.
  for (int r = 0; r < 2; ++r) job.handshake(r).set_timeout(milliseconds(1500));
  constexpr std::size_t kRounds = 12;
  for (std::size_t round = 0; round < kRounds; ++round) job.enqueue(0, call_of(1), round, true);
  for (std::size_t round = 0; round < kRounds; ++round) {
    std::this_thread::sleep_for(milliseconds(150));
    job.enqueue(1, call_of(1), round, true);
  }
  ASSERT_TRUE(job.all_idle());
  EXPECT_FALSE(job.stopped(0) || job.stopped(1));
  for (std::size_t round = 0; round < kRounds; ++round) EXPECT_EQ(job.wrong(0, round), 0U);
}

TEST(StreamHandshake, EndsAtTheDeadlineAndTellsNobodyThatItHasCopied) {
  StreamRanks job(3);
  job.handshake(0).set_timeout(milliseconds(80));
  const auto begin = TestClock::now();
  job.enqueue(0, call_of(1), 1);
  EXPECT_EQ(job.reason(0), StopReason::kTimeout);
  EXPECT_GE(TestClock::now() - begin, milliseconds(80));
  EXPECT_EQ(job.stop(0).own, call_of(1).tag);
  ASSERT_TRUE(job.idle_within(0, std::chrono::seconds(20)));
  // The others find that all have entered, and must not take the early copies for done.
  job.enqueue(1, call_of(1), 1);
  job.enqueue(2, call_of(1), 1);
  EXPECT_FALSE(job.idle_within(1, milliseconds(100)));
  EXPECT_FALSE(job.idle_within(2, milliseconds(1)));
  job.handshake(1).set_timeout(milliseconds(50));
  EXPECT_EQ(job.reason(1), StopReason::kTimeout);
  EXPECT_TRUE(job.idle_within(1, std::chrono::seconds(20)));
  job.abort(2);
  EXPECT_TRUE(job.idle_within(2, std::chrono::seconds(20)));
  EXPECT_FALSE(job.stopped(2));
}

// They write words of the others that those may be waiting for.
TEST(StreamHandshake, CallsBehindAWaitThatWasEndedAreNoDifference) {
  StreamRanks job(2);
  job.handshake(0).set_timeout(milliseconds(50));
  for (std::uint32_t number = 1; number <= 3; ++number) job.enqueue(0, call_of(number), number);
  EXPECT_EQ(job.reason(0), StopReason::kTimeout);
  EXPECT_EQ(job.stop(0).own, call_of(1).tag);
  ASSERT_TRUE(job.idle_within(0, std::chrono::seconds(20)));
  job.enqueue(1, call_of(1), 1);
  EXPECT_FALSE(job.idle_within(1, milliseconds(100)));
  EXPECT_FALSE(job.stopped(1));
}

TEST(StreamHandshake, EndsWhenTheHostSaysSo) {
  StreamRanks job(3);
  job.enqueue(0, call_of(1), 0);
  EXPECT_FALSE(job.idle_within(0, milliseconds(30)));
  job.abort(0);
  EXPECT_TRUE(job.idle_within(0, std::chrono::seconds(20)));
  EXPECT_FALSE(job.stopped(0));
}

// Whose communicator ends in order while the peers are still behind their copies.
TEST(StreamHandshake, ARankThatHasLeftSpoilsNothing) {
  StreamRanks job(2);
  job.on_all([&](int r) { job.enqueue(r, call_of(1), 0); });
  ASSERT_TRUE(job.all_idle());
  job.abort(0);
  std::this_thread::sleep_for(milliseconds(30));
  EXPECT_EQ(HandshakeWords::load(job.words().spoiled(1)), 0U);
}

TEST(StreamHandshake, NamesARankWhoseCallDiffersBeforeAnyCopy) {
  StreamRanks job(3);
  job.on_all([&](int r) { job.enqueue(r, call_of(1), 0); });
  // A rank that is still leaving this call when another one stops in the next waits for its end.
  ASSERT_TRUE(job.all_idle());
  job.on_all([&](int r) { job.enqueue(r, call_of(2, r == 2 ? 8 : 7), 1); });
  for (int r = 0; r < 3; ++r) ASSERT_EQ(job.reason(r), StopReason::kMismatch);
  EXPECT_EQ(job.stop(0).peer, 2);
  EXPECT_EQ(job.stop(0).own, call_of(2).tag);
  EXPECT_EQ(job.stop(0).theirs, call_of(2, 8).tag);
  EXPECT_EQ(job.stop(1).peer, 2);
  EXPECT_NE(job.stop(2).peer, 2);
  ASSERT_TRUE(job.all_idle());
  for (int r = 0; r < 3; ++r) EXPECT_EQ(job.wrong(r, 0), 0U);
}

TEST(StreamHandshake, NamesARankThatIsACallAhead) {
  StreamRanks job(2);
  job.enqueue(0, call_of(5), 0);
  job.enqueue(1, call_of(6), 0);
  const int first = job.first_to_tell();
  ASSERT_EQ(job.reason(first), StopReason::kMismatch);
  EXPECT_EQ(job.stop(first).own.call, first == 0 ? 5U : 6U);
  EXPECT_EQ(job.stop(first).theirs.call, first == 0 ? 6U : 5U);
}

TEST(StreamHandshake, NamesARankWhoseOutputLiesElsewhere) {
  StreamRanks job(2);
  job.enqueue(0, call_of(1), 0);
  job.enqueue(1, call_of(1, 7, 8192), 0);
  for (int r = 0; r < 2; ++r) ASSERT_EQ(job.reason(r), StopReason::kWrongLocation);
  EXPECT_EQ(job.stop(0).peer, 1);
  EXPECT_EQ(executor::OutputLocation::unpacked(job.stop(0).got).offset, 8192U);
  EXPECT_EQ(executor::OutputLocation::unpacked(job.stop(0).expected).offset, 4096U);
}

// Setting CHECK_CALLS.
TEST(StreamHandshake, ComparesOnlyLocationsWhereCallsAreNotChecked) {
  StreamRanks job(2, false);
  job.enqueue(0, call_of(1, 7), 0);
  job.enqueue(1, call_of(1, 8), 0);
  ASSERT_TRUE(job.all_idle());
  EXPECT_FALSE(job.stopped(0) || job.stopped(1));
  job.enqueue(0, call_of(2), 1);
  job.enqueue(1, call_of(2, 7, 8192), 1);
  ASSERT_EQ(job.reason(job.first_to_tell()), StopReason::kWrongLocation);
}

// A rank whose buffers were not registered alike leaves the call to kernels.
TEST(StreamHandshake, NamesARankThatCalledOtherwise) {
  for (const bool captured : {false, true}) {
    StreamRanks job(3);
    CallTag other = call_of(1).tag;
    other.collective = static_cast<std::uint8_t>(Collective::kAllGather);
    job.enqueue(0, call_of(1), 0, captured);
    job.enqueue(1, call_of(1), 0, captured);
    EXPECT_FALSE(job.idle_within(0, milliseconds(30)));
    EXPECT_FALSE(job.stopped(0));
    job.handshake(2).note(other, captured);
    for (int r = 0; r < 2; ++r) {
      ASSERT_EQ(job.reason(r), StopReason::kMismatch);
      EXPECT_EQ(job.stop(r).peer, 2);
      EXPECT_EQ(job.stop(r).theirs, other);
      EXPECT_EQ(job.stop(r).own, call_of(1).tag);
    }
  }
}

TEST(HandshakeWords, RememberTheLastCalls) {
  PinnedWords memory(HandshakeWords::bytes(2));
  const HandshakeWords words(memory.data(), 1 << 20, 2);
  EXPECT_EQ(words.on_device(words.state(0)), std::uint64_t{1} << 20U);
  EXPECT_EQ(words.on_device(words.spoiled(0)), (std::uint64_t{1} << 20U) + 64);
  const auto value = [](const HandshakeCall& call) { return handshake_value(call, true); };
  for (std::uint32_t number = 1; number <= HandshakeWords::kRunCalls + 1; ++number) {
    words.remember(1, call_of(number), value(call_of(number)), std::nullopt);
  }
  constexpr std::uint32_t kLast = HandshakeWords::kRunCalls + 1;
  EXPECT_FALSE(words.find_call(1, 1).has_value());
  EXPECT_EQ(words.find_call(1, 2), call_of(2));
  EXPECT_EQ(words.find_value(1, value(call_of(kLast))), call_of(kLast));
  EXPECT_FALSE(words.find_call(0, kLast).has_value());
  EXPECT_FALSE(words.find_value(1, 0).has_value());
  // A graph's stays where it is, though the numbers go on.
  words.remember(1, call_of(1), value(call_of(1)), HandshakeWords::kCapturedCalls + 3);
  EXPECT_EQ(words.find_call(1, 1), call_of(1));
  EXPECT_EQ(words.find_value(1, value(call_of(1))), call_of(1));
}

TEST(HandshakeWords, ValuesTellCallsApart) {
  const std::uint64_t value = handshake_value(call_of(1), true);
  EXPECT_NE(value, 0U);
  EXPECT_EQ(value & 7, 0U);
  EXPECT_NE(value, handshake_value(call_of(2), true));
  EXPECT_NE(value, handshake_value(call_of(1, 8), true));
  EXPECT_NE(value, handshake_value(call_of(1, 7, 4104), true));
  EXPECT_EQ(handshake_value(call_of(1), false), handshake_value(call_of(2), false));
  const HandshakeState state{value, HandshakePhase::kLeaving, true};
  EXPECT_EQ(HandshakeState::of(state.word()).word(), state.word());
  EXPECT_EQ(HandshakeState::of(state.word()).value, value);
}

}  // namespace
}  // namespace ropewalk::handshake
