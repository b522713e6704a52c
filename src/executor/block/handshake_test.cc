// The handshakes around copies on threads of the host, over links in the host's memory: that copies
// behind one are safe and those before one are there, and every reason for which one ends early.
#include "executor/block/handshake.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>

#include "executor/block/host_block.h"
#include "executor/block/testing/case.h"

namespace ropewalk::executor {
namespace {

using testing::kThreads;
using testing::Machine;

// The ranks of a job, each with the links of protocol ll to all others.
class HandshakeRanks {
 public:
  explicit HandshakeRanks(int ranks)
      : machine_(ranks, 1, Protocol::kLl, shape()), controls_(static_cast<std::size_t>(ranks)) {
    for (int r = 0; r < ranks; ++r) {
      Machine::Ends ends(machine_, r);
      Rank& rank = ranks_.emplace_back();
      for (int peer = 0; peer < ranks; ++peer) {
        if (peer == r) continue;
        rank.sends.push_back(ends.send_end(0, peer));
        rank.receives.push_back(ends.receive_end(0, peer));
      }
      rank.entered = std::make_unique<std::uint32_t>(0);
    }
  }

  HandshakeArgs args(int r, std::uint32_t call, bool enters) {
    Rank& rank = ranks_[static_cast<std::size_t>(r)];
    HandshakeArgs args;
    args.links.control = &controls_[static_cast<std::size_t>(r)];
    args.links.num_ranks = static_cast<std::uint32_t>(ranks_.size());
    args.links.rank = static_cast<std::uint32_t>(r);
    args.links.timeout_ns = 60'000'000'000;
    machine_.lend_boards(args.links);
    args.tag.count = 7;
    args.tag.call = call;
    args.tag.collective = static_cast<std::uint8_t>(static_cast<unsigned>(Collective::kAllGather) |
                                                    unsigned{kByCopyEngines});
    args.sends = rank.sends.data();
    args.receives = rank.receives.data();
    args.entered = rank.entered.get();
    args.location = OutputLocation{3, 4096}.packed();
    args.num_peers = static_cast<std::uint32_t>(rank.sends.size());
    args.slot_stride = static_cast<std::uint32_t>(flagged_bytes(Protocol::kLl, shape().slot_bytes));
    args.enters = enters;
    return args;
  }
  // As a launch: returns when the block has ended.
  static void run(const HandshakeArgs& args) {
    HostBlockShared shared(kThreads);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        HostBlock block(shared, t, args.links, &args.tag);
        run_handshake(block, args);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  // Each rank's body in a thread of its own, as a stream.
  void on_all(const std::function<void(int)>& body) const {
    std::vector<std::thread> streams;
    for (int r = 0; r < static_cast<int>(ranks_.size()); ++r) streams.emplace_back(body, r);
    for (std::thread& stream : streams) stream.join();
  }
  [[nodiscard]] const StopRecord& stop(int r) const {
    return controls_[static_cast<std::size_t>(r)].stop;
  }
  [[nodiscard]] StopReason reason(int r) const { return static_cast<StopReason>(stop(r).reason); }
  Control& control(int r) { return controls_[static_cast<std::size_t>(r)]; }
  [[nodiscard]] bool entered(int r) const {
    return *ranks_[static_cast<std::size_t>(r)].entered == 1;
  }

 private:
  struct Rank {
    std::vector<SendEnd> sends;
    std::vector<ReceiveEnd> receives;
    std::unique_ptr<std::uint32_t> entered;
  };
  static FifoShape shape() { return {kFlaggedSlots, kFlaggedSlots, 64}; }

  Machine machine_;
  std::vector<Control> controls_;
  std::vector<Rank> ranks_;
};

// All-gathers of one word each, one after the other, without any other order between the ranks:
// copies must find outputs that have been read, and outputs must be whole behind them.
void expect_right_calls(int ranks, std::uint32_t calls) {
  HandshakeRanks job(ranks);
  const auto n = static_cast<std::size_t>(ranks);
  std::vector<std::vector<std::uint64_t>> outputs(n, std::vector<std::uint64_t>(n));
  std::atomic<std::uint64_t> wrong{0};
  job.on_all([&](int r) {
    const auto self = static_cast<std::size_t>(r);
    for (std::uint64_t call = 1; call <= calls; ++call) {
      if ((call + self) % 7 == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      HandshakeRanks::run(job.args(r, static_cast<std::uint32_t>(call), true));
      for (std::size_t peer = 0; peer < n; ++peer) outputs[peer][self] = call * 100 + self;
      HandshakeRanks::run(job.args(r, static_cast<std::uint32_t>(call), false));
      for (std::size_t peer = 0; peer < n; ++peer) {
        if (outputs[self][peer] != call * 100 + peer) ++wrong;
      }
    }
  });
  EXPECT_EQ(wrong, 0U);
  for (int r = 0; r < ranks; ++r) EXPECT_EQ(job.reason(r), StopReason::kNone);
}

TEST(Handshake, OrdersCopiesOfTwoRanks) { expect_right_calls(2, 60); }

// More peers than threads of a block.
TEST(Handshake, OrdersCopiesOfManyRanks) { expect_right_calls(7, 12); }

TEST(Handshake, OfARankAloneIsNothing) { expect_right_calls(1, 3); }

TEST(Handshake, WaitsForThePeerBeforeTheCopies) {
  HandshakeRanks job(2);
  std::atomic<bool> came{false};
  job.on_all([&](int r) {
    if (r == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(30));
      came = true;
    }
    HandshakeRanks::run(job.args(r, 1, true));
    EXPECT_TRUE(came);
  });
  EXPECT_TRUE(job.entered(0) && job.entered(1));
}

TEST(Handshake, EndsAtTheDeadlineAndTellsNobodyThatItHasCopied) {
  HandshakeRanks job(2);
  HandshakeArgs enters = job.args(0, 1, true);
  enters.links.timeout_ns = 20'000'000;
  HandshakeRanks::run(enters);
  EXPECT_EQ(job.reason(0), StopReason::kTimeout);
  EXPECT_EQ(job.stop(0).own, enters.tag);
  EXPECT_FALSE(job.entered(0));
  HandshakeRanks::run(job.args(0, 1, false));
  // The peer finds the first word, and waits for the second one.
  HandshakeRanks::run(job.args(1, 1, true));
  EXPECT_TRUE(job.entered(1));
  HandshakeArgs leaves = job.args(1, 1, false);
  leaves.links.timeout_ns = 20'000'000;
  HandshakeRanks::run(leaves);
  EXPECT_EQ(job.reason(1), StopReason::kTimeout);
}

TEST(Handshake, EndsWhenTheHostSaysSo) {
  HandshakeRanks job(3);
  std::thread host([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::atomic_ref(job.control(0).abort).store(1);
  });
  HandshakeRanks::run(job.args(0, 1, true));
  host.join();
  EXPECT_EQ(job.reason(0), StopReason::kNone);
  EXPECT_FALSE(job.entered(0));
}

TEST(Handshake, NamesARankWhoseOutputLiesElsewhere) {
  HandshakeRanks job(3);
  job.on_all([&](int r) {
    HandshakeArgs args = job.args(r, 1, true);
    if (r == 2) args.location = OutputLocation{3, 8192}.packed();
    HandshakeRanks::run(args);
  });
  for (int r = 0; r < 3; ++r) {
    ASSERT_EQ(job.reason(r), StopReason::kWrongLocation);
    EXPECT_FALSE(job.entered(r));
  }
  EXPECT_EQ(job.stop(0).peer, 2);
  EXPECT_EQ(OutputLocation::unpacked(job.stop(0).got).offset, 8192U);
  EXPECT_EQ(OutputLocation::unpacked(job.stop(0).got).window, 3U);
  EXPECT_EQ(OutputLocation::unpacked(job.stop(0).expected).offset, 4096U);
}

TEST(Handshake, NamesARankWhoseCallDiffers) {
  HandshakeRanks job(2);
  job.on_all([&](int r) {
    HandshakeArgs args = job.args(r, 1, true);
    if (r == 1) args.tag.count = 8;
    HandshakeRanks::run(args);
    // The slower one may have found the other's tag, or word.
    EXPECT_EQ(job.reason(r), StopReason::kMismatch);
  });
  EXPECT_EQ(job.stop(0).peer, 1);
  EXPECT_EQ(job.stop(0).own.count, 7U);
  EXPECT_EQ(job.stop(0).theirs.count, 8U);
  EXPECT_EQ(job.stop(0).theirs.call, 1U);
  // Setting CHECK_CALLS.
  HandshakeRanks unchecked(2);
  unchecked.on_all([&](int r) {
    HandshakeArgs args = unchecked.args(r, 1, true);
    args.check_tags = false;
    if (r == 1) args.tag.count = 8;
    HandshakeRanks::run(args);
    EXPECT_TRUE(unchecked.entered(r));
  });
}

// A rank whose buffers were not registered alike leaves the call to kernels.
TEST(Handshake, EndsWhenAPeerCalledOtherwise) {
  HandshakeRanks job(2);
  HandshakeArgs other = job.args(1, 1, true);
  other.tag.collective = static_cast<std::uint8_t>(Collective::kAllGather);
  HostBlockShared shared(kThreads);
  for (unsigned t = 0; t < kThreads; ++t) {
    leave_tag(HostBlock(shared, t, other.links, &other.tag), other.links, other.tag);
  }
  HandshakeRanks::run(job.args(0, 1, true));
  ASSERT_EQ(job.reason(0), StopReason::kMismatch);
  EXPECT_EQ(job.stop(0).peer, 1);
  EXPECT_EQ(job.stop(0).theirs, other.tag);
}

TEST(Handshake, NumbersGoOnFromOtherOperationsOfTheLinks) {
  HandshakeRanks job(2);
  // As if operations by ll had moved this many rounds before, and the counter were about to pass
  // what a flag holds.
  for (int r = 0; r < 2; ++r) {
    const HandshakeArgs args = job.args(r, 1, true);
    constexpr std::uint64_t kBefore = (std::uint64_t{1} << 31U) - 3;
    args.sends[0].kept->published = kBefore;
    args.receives[0].kept->received = kBefore;
    *args.receives[0].consumed_at = kBefore - 1;
  }
  job.on_all([&](int r) {
    for (std::uint32_t call = 1; call < 6; ++call) {
      HandshakeRanks::run(job.args(r, call, true));
      HandshakeRanks::run(job.args(r, call, false));
      ASSERT_TRUE(job.entered(r));
    }
  });
}

TEST(Handshake, ALocationIsPackedIntoAWord) {
  constexpr OutputLocation kLocation{0x1234, (std::uint64_t{1} << 47U) + 5};
  constexpr OutputLocation kSame = OutputLocation::unpacked(kLocation.packed());
  EXPECT_EQ(kSame.window, kLocation.window);
  EXPECT_EQ(kSame.offset, kLocation.offset);
  EXPECT_EQ(OutputLocation({0x1'0005, 1}).packed(), OutputLocation({5, 1}).packed());
}

}  // namespace
}  // namespace ropewalk::executor
