// Messages by copy engines, with software that stands in for CUDA's driver: its streams are threads
// that do everything late and in order. Copies between pinned buffers stand for those between GPUs.
#include "handshake/copied_messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <thread>
#include <vector>

#include "core/error.h"
#include "handshake/testing/pinned_words.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::handshake {
namespace {

namespace gpus = transport::window;
using executor::Control;
using executor::StopReason;
using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::PinnedWords;
using testing::stand_in_gpus;
using CopiedClock = std::chrono::steady_clock;
using ::testing::HasSubstr;

constexpr std::size_t kWordsOfBuffer = 4096;
constexpr std::uint64_t kBytesOfBuffer = 8 * kWordsOfBuffer;

// One call of a group.
struct Part {
  int peer = 0;
  MessageEnd end = MessageEnd::kSends;
  std::uint64_t offset = 0;  // in words, of the buffer
  std::uint64_t words = 64;
  bool in_window = true;
};
Part sends(int peer, std::uint64_t offset) { return {peer, MessageEnd::kSends, offset}; }
Part receives(int peer, std::uint64_t offset) { return {peer, MessageEnd::kReceives, offset}; }

// Ranks with a buffer, all of which is a window, and a stream each.
class CopyingRanks {
 public:
  explicit CopyingRanks(int ranks)
      : memory_(MessageWords::bytes(ranks)), words_(memory_.data(), memory_.address(), ranks) {
    for (int r = 0; r < ranks; ++r) {
      ranks_.push_back(std::make_unique<Rank>());
      Rank& rank = *ranks_.back();
      const gpus::CurrentContext current(cuda(r), gpu_of(r).context());
      cuda(r).check(cuda(r).stream_create(&rank.stream, gpus::kCuStreamNonBlocking, 0), "");
      rank.messages = std::make_unique<CopiedMessages>(cuda(r), words_, rank.control, r);
    }
  }
  ~CopyingRanks() {
    for (const auto& rank : ranks_) std::atomic_ref(rank->control.abort).store(1);
    for (int r = 0; r < size(); ++r) {
      EXPECT_TRUE(idle_within(r, seconds(30)));
      const gpus::CurrentContext current(cuda(r), gpu_of(r).context());
      of(r).messages.reset();
      cuda(r).warn(cuda(r).stream_destroy(of(r).stream), "");
    }
  }
  CopyingRanks(const CopyingRanks&) = delete;
  CopyingRanks& operator=(const CopyingRanks&) = delete;

  // @return how many of them copy engines carry
  std::size_t group(int rank, const std::vector<Part>& parts) {
    Rank& own = of(rank);
    const gpus::CurrentContext current(cuda(rank), gpu_of(rank).context());
    std::vector<CopiedMessage> copied;
    for (const Part& part : parts) {
      const MessageBuffer buffer{part.in_window ? 1U : 0U, 8 * part.offset, 8 * part.words};
      auto message =
          own.messages->meet(part.peer, part.end, buffer, own.buffer.address() + 8 * part.offset);
      if (!message.has_value()) continue;
      message->peers = of(part.peer).buffer.address() + message->theirs.offset;
      copied.push_back(*message);
    }
    own.messages->begin(copied, own.stream);
    own.messages->end(copied, own.stream);
    return copied.size();
  }
  // Behind what was enqueued: the buffer's words as they are then.
  void keep(int rank, std::uint64_t* to) {
    const gpus::CurrentContext current(cuda(rank), gpu_of(rank).context());
    cuda(rank).check(cuda(rank).copy(reinterpret_cast<std::uint64_t>(to), of(rank).buffer.address(),
                                     kBytesOfBuffer, of(rank).stream),
                     "copy");
  }
  // Keeps the rank's stream from going on until go() is called.
  void hold(int rank) {
    const gpus::CurrentContext current(cuda(rank), gpu_of(rank).context());
    gpus::CuStreamOperation wait;
    wait.operation = gpus::kCuStreamWait64;
    wait.address = of(rank).gate.address();
    wait.value = 1;
    cuda(rank).check(cuda(rank).stream_batch(of(rank).stream, 1, &wait, 0), "hold");
  }
  void go(int rank) { MessageWords::store(*of(rank).gate.data(), 1); }

  [[nodiscard]] std::uint64_t& word(int rank, std::uint64_t at) {
    return of(rank).buffer.data()[at];
  }
  [[nodiscard]] bool idle(int rank) {
    return cuda(rank).stream_query(of(rank).stream) == gpus::kCuSuccess;
  }
  [[nodiscard]] bool idle_within(int rank, CopiedClock::duration limit) {
    const auto end = CopiedClock::now() + limit;
    while (!idle(rank)) {
      if (CopiedClock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    return true;
  }
  [[nodiscard]] bool all_idle() {
    bool all = true;
    for (int r = 0; r < size(); ++r) all = idle_within(r, seconds(60)) && all;
    return all;
  }
  [[nodiscard]] StopReason reason(int rank) {
    const auto end = CopiedClock::now() + seconds(20);
    for (;;) {
      const auto reason =
          static_cast<StopReason>(std::atomic_ref(of(rank).control.stop.reason).load());
      if (reason > StopReason::kAborted || CopiedClock::now() > end) return reason;
      std::this_thread::sleep_for(milliseconds(1));
    }
  }
  [[nodiscard]] bool stopped(int rank) {
    return std::atomic_ref(of(rank).control.stop.reason).load() != 0;
  }
  [[nodiscard]] const executor::StopRecord& stop(int rank) { return of(rank).control.stop; }
  void abort(int rank) { std::atomic_ref(of(rank).control.abort).store(1); }
  void set_timeout(int rank, milliseconds limit) { of(rank).messages->set_timeout(limit); }
  [[nodiscard]] int size() const { return static_cast<int>(ranks_.size()); }

 private:
  struct Rank {
    PinnedWords buffer{kBytesOfBuffer};
    PinnedWords gate{8};
    Control control;
    gpus::CuStream stream = nullptr;
    std::unique_ptr<CopiedMessages> messages;
  };
  static gpus::Gpu& gpu_of(int rank) { return stand_in_gpus().at(rank % 2); }
  static const gpus::CudaApi& cuda(int rank) { return gpu_of(rank).cuda(); }
  Rank& of(int rank) { return *ranks_[static_cast<std::size_t>(rank)]; }

  PinnedWords memory_;
  MessageWords words_;
  std::vector<std::unique_ptr<Rank>> ranks_;
};

TEST(CopiedMessages, WhoeverComesFirstTheOtherOneCopies) {
  for (const int first : {0, 1}) {
    CopyingRanks job(2);
    for (std::uint64_t i = 0; i < 64; ++i) job.word(0, 128 + i) = 1000 + i;
    for (const int rank : {first, 1 - first}) {
      EXPECT_EQ(job.group(rank, {rank == 0 ? sends(1, 128) : receives(0, 640)}), 1U);
      // Its host goes on at once, its stream waits.
      if (rank == first) {
        EXPECT_FALSE(job.idle_within(rank, milliseconds(30)));
      }
    }
    ASSERT_TRUE(job.all_idle());
    for (std::uint64_t i = 0; i < 64; ++i) EXPECT_EQ(job.word(1, 640 + i), 1000 + i);
    EXPECT_EQ(job.word(1, 704), 0U);
    EXPECT_FALSE(job.stopped(0) || job.stopped(1));
  }
}

TEST(CopiedMessages, AreLeftToKernelsWhereTheFirstRanksBufferIsInNoWindow) {
  CopyingRanks job(2);
  Part staged = sends(1, 0);
  staged.in_window = false;
  EXPECT_EQ(job.group(0, {staged}), 0U);
  EXPECT_EQ(job.group(1, {receives(0, 0)}), 0U);
  // The second one's need not be.
  job.word(0, 0) = 7;
  EXPECT_EQ(job.group(1, {receives(0, 512)}), 1U);
  EXPECT_EQ(job.group(0, {staged}), 1U);
  ASSERT_TRUE(job.all_idle());
  EXPECT_EQ(job.word(1, 512), 7U);
}

// Each rank's stream clears its buffer's halves and keeps what comes: copies must find buffers that
// were asked for, and be done when the stream goes on.
TEST(CopiedMessages, KeepTheOrderOfStreams) {
  constexpr std::size_t kRounds = 200;
  CopyingRanks job(3);
  std::vector<std::unique_ptr<PinnedWords>> kept;
  for (int r = 0; r < 3; ++r) {
    kept.push_back(std::make_unique<PinnedWords>(kRounds * kBytesOfBuffer));
    for (std::uint64_t i = 0; i < 2048; ++i) {
      job.word(r, i) = static_cast<std::uint64_t>(r + 1) << 32U | i;
    }
  }
  std::vector<std::thread> hosts;
  for (int r = 0; r < 3; ++r) {
    hosts.emplace_back([&, r] {
      std::mt19937 random(static_cast<unsigned>(r));
      const int next = (r + 1) % 3;
      const int before = (r + 2) % 3;
      for (std::size_t round = 0; round < kRounds; ++round) {
        if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
        const std::uint64_t from = 64 * (round % 31);
        job.group(r, {sends(next, from), receives(before, 2048), sends(before, from + 1),
                      receives(next, 3072)});
        job.keep(r, kept[static_cast<std::size_t>(r)]->data() + round * kWordsOfBuffer);
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  ASSERT_TRUE(job.all_idle());
  std::size_t wrong = 0;
  for (int r = 0; r < 3; ++r) {
    const auto high = [](int rank) { return static_cast<std::uint64_t>(rank + 1) << 32U; };
    for (std::size_t round = 0; round < kRounds; ++round) {
      const std::uint64_t* const words =
          kept[static_cast<std::size_t>(r)]->data() + round * kWordsOfBuffer;
      const std::uint64_t from = 64 * (round % 31);
      for (std::uint64_t i = 0; i < 64; ++i) {
        wrong += words[2048 + i] != (high((r + 2) % 3) | (from + i)) ? 1U : 0U;
        wrong += words[3072 + i] != (high((r + 1) % 3) | (from + 1 + i)) ? 1U : 0U;
      }
    }
    EXPECT_FALSE(job.stopped(r));
  }
  EXPECT_EQ(wrong, 0U);
}

// One rank has both messages in a group, the other one after the other in either order.
TEST(CopiedMessages, OfAGroupRunAtOnce) {
  for (const bool receives_first : {true, false}) {
    for (const bool group_first : {true, false}) {
      CopyingRanks job(2);
      job.word(0, 0) = 11;
      job.word(1, 0) = 12;
      const auto group = [&] { job.group(0, {sends(1, 0), receives(1, 512)}); };
      if (group_first) group();
      job.group(1, {receives_first ? receives(0, 512) : sends(0, 0)});
      job.group(1, {receives_first ? sends(0, 0) : receives(0, 512)});
      if (!group_first) group();
      ASSERT_TRUE(job.all_idle());
      EXPECT_EQ(job.word(0, 512), 12U);
      EXPECT_EQ(job.word(1, 512), 11U);
    }
  }
}

TEST(CopiedMessages, WaitForTheStreamOfTheFirstRank) {
  CopyingRanks job(2);
  job.hold(0);
  job.group(0, {receives(1, 0)});
  job.word(1, 512) = 5;
  job.group(1, {sends(0, 512)});
  EXPECT_FALSE(job.idle_within(1, milliseconds(50)));
  EXPECT_EQ(job.word(0, 0), 0U);
  job.go(0);
  ASSERT_TRUE(job.all_idle());
  EXPECT_EQ(job.word(0, 0), 5U);
}

TEST(CopiedMessages, EndAtTheDeadlineAndNameThePeer) {
  CopyingRanks job(3);
  job.set_timeout(0, milliseconds(60));
  const auto begin = CopiedClock::now();
  job.group(0, {sends(2, 0)});
  EXPECT_EQ(job.reason(0), StopReason::kMessageTimeout);
  EXPECT_GE(CopiedClock::now() - begin, milliseconds(60));
  EXPECT_EQ(job.stop(0).peer, 2);
  EXPECT_TRUE(job.idle_within(0, seconds(20)));
  EXPECT_FALSE(job.stopped(1) || job.stopped(2));
}

// The copy behind the wait that was ended runs; its other end must not take it for done.
TEST(CopiedMessages, ACopyThatCameUnaskedIsNotDone) {
  CopyingRanks job(2);
  job.set_timeout(1, milliseconds(60));
  job.hold(0);
  job.group(0, {receives(1, 0)});
  job.group(1, {sends(0, 512)});
  EXPECT_EQ(job.reason(1), StopReason::kMessageTimeout);
  EXPECT_EQ(job.stop(1).peer, 0);
  EXPECT_TRUE(job.idle_within(1, seconds(20)));
  job.go(0);
  EXPECT_FALSE(job.idle_within(0, milliseconds(60)));
  job.abort(0);
  EXPECT_TRUE(job.idle_within(0, seconds(20)));
  EXPECT_FALSE(job.stopped(0));
}

// Any number of messages behind the one that waits.
TEST(CopiedMessages, EndWhenTheHostSaysSo) {
  CopyingRanks job(2);
  for (int i = 0; i < 20; ++i) job.group(0, {sends(1, 0), receives(1, 512)});
  EXPECT_FALSE(job.idle_within(0, milliseconds(30)));
  job.abort(0);
  EXPECT_TRUE(job.idle_within(0, seconds(20)));
}

TEST(CopiedMessages, ManyShortWaitsAreNoLongOne) {
  CopyingRanks job(2);
  job.set_timeout(0, milliseconds(1500));
  for (int i = 0; i < 12; ++i) job.group(0, {sends(1, 0)});
  for (int i = 0; i < 12; ++i) {
    std::this_thread::sleep_for(milliseconds(150));
    job.group(1, {receives(0, 512)});
  }
  ASSERT_TRUE(job.all_idle());
  EXPECT_FALSE(job.stopped(0) || job.stopped(1));
}

TEST(CopiedMessages, OfDifferentLengthsAreRefused) {
  CopyingRanks job(2);
  job.group(0, {sends(1, 0)});
  Part longer = receives(0, 512);
  longer.words = 65;
  try {
    job.group(1, {longer});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidUsage);
    EXPECT_THAT(error.what(), HasSubstr("rank 1 receives 520 bytes from rank 0, which sends 512"));
  }
  EXPECT_EQ(job.reason(1), StopReason::kWrongSize);
  EXPECT_EQ(job.word(1, 512), 0U);
}

TEST(CopiedMessages, AHostThatIsFarAheadWaits) {
  CopyingRanks job(2);
  job.set_timeout(0, milliseconds(50));
  Part staged = sends(1, 0);
  staged.in_window = false;
  for (std::uint64_t i = 0; i < MessageWords::kMostAhead; ++i) job.group(0, {staged});
  try {
    job.group(0, {staged});
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kTimeout);
    EXPECT_THAT(error.what(), HasSubstr("512 messages ahead of rank 1"));
  }
  Part taken = receives(0, 512);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(job.group(1, {taken}), 0U);
  // The refused one was none.
  for (int i = 0; i < 3; ++i) EXPECT_EQ(job.group(0, {staged}), 0U);
}

TEST(MessageWords, TwoRanksMeetOncePerMessageInAnyOrder) {
  PinnedWords memory(MessageWords::bytes(2));
  const MessageWords words(memory.data(), 1 << 20, 2);
  EXPECT_EQ(words.on_device(words.began({0, 0}, MessageEnd::kSends)), std::uint64_t{1} << 20U);
  constexpr std::uint64_t kMessages = 5 * MessageWords::kMostAhead;
  const MessageDirection direction{0, 1};
  std::array<std::atomic<std::uint64_t>, 2> firsts{};
  std::array<std::atomic<std::uint64_t>, 2> wrong{};
  std::vector<std::thread> hosts;
  for (const MessageEnd end : {MessageEnd::kSends, MessageEnd::kReceives}) {
    hosts.emplace_back([&, end] {
      const auto self = static_cast<std::size_t>(end);
      for (std::uint64_t number = 0; number < kMessages; ++number) {
        const MessageBuffer own{1 + self, number, 2 * number};
        std::optional<MessageWords::Met> met;
        while (!(met = words.meet(direction, end, number, own)).has_value())
          std::this_thread::yield();
        if (met->first) {
          ++firsts[self];
        } else if (met->theirs.window != 2 - self || met->theirs.offset != number ||
                   met->theirs.bytes != 2 * number) {
          ++wrong[self];
        }
      }
    });
  }
  for (std::thread& host : hosts) host.join();
  EXPECT_EQ(firsts[0] + firsts[1], kMessages);
  EXPECT_EQ(wrong[0] + wrong[1], 0U);
}

}  // namespace
}  // namespace ropewalk::handshake
