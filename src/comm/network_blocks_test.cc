// Network links of GPUs, with host threads instead of blocks: ranks are threads, each acting as a
// host of its own.
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "bootstrap/test_support.h"
#include "comm/testing/block_launch.h"
#include "comm/testing/block_network.h"
#include "comm/testing/gpu_blocks.h"
#include "executor/block/testing/case.h"
#include "link/network_links.h"
#include "link/progress_thread.h"
#include "schedule/compile.h"

namespace ropewalk::comm {
namespace {

using bootstrap::run_ranks;
using executor::Control;
using executor::LaunchArgs;
using executor::Protocol;
using executor::testing::Case;
using link::NetworkLinks;
using link::ProgressThread;
using TestClock = std::chrono::steady_clock;

constexpr executor::FifoShape kShape{4, 4, 4096};

// What links are made of.
struct BlockKind {
  const char* transport;
  Protocol protocol;
  bool on_gpu = false;  // slots are in GPU memory, where data is late
  // A request that fails, or never finishes, is a lost rail, which is no error.
  [[nodiscard]] bool survives() const { return std::string_view(transport) == "rails"; }
};

// The GPUs of the test at work, where slots are there; else null.
testing::GpuBlocks* gpus = nullptr;

// A rank with its links, as cuda/cuda_group.h has them.
class Host final : public testing::BlockHost {
 public:
  Host(bootstrap::Bootstrap& bootstrap, const BlockKind& kind, const std::string& faults = "")
      : unused_board_(static_cast<std::size_t>(bootstrap.size()) * executor::kBoardTags),
        gpu_(kind.on_gpu ? gpus->of_rank(bootstrap.rank(), kind.transport) : testing::BlockGpu{}),
        network_(bootstrap, kind.transport, kind.protocol == Protocol::kLl, kShape, faults,
                 control_, kind.on_gpu ? &gpu_ : nullptr) {
    EXPECT_EQ(network_.slots() != nullptr && network_.slots()->on_gpu(), kind.on_gpu);
  }
  executor::SendEnd send_end(int channel, int peer) override {
    return network_.send_end(channel, peer);
  }
  executor::ReceiveEnd receive_end(int channel, int peer) override {
    return network_.receive_end(channel, peer);
  }
  ProgressThread& thread() { return network_.thread(); }
  Control& control() override { return control_; }
  // The links' thread may say so at any time.
  bool aborted() { return std::atomic_ref(control_.abort).load() != 0; }
  // Hosts share no boards: tags come beside the data, of ll.
  void lend_tags(executor::LaunchLinks& links) override {
    if (network_.lend_tags(links)) links.board = unused_board_.data();
  }
  void drain() { ASSERT_TRUE(network_.drain()); }
  void close() { network_.close(); }

 private:
  Control control_;
  std::vector<executor::CallTag> unused_board_;
  testing::BlockGpu gpu_;
  testing::BlockNetwork network_;
};

class NetworkBlocks : public ::testing::TestWithParam<BlockKind> {
 protected:
  void SetUp() override {
    if (!GetParam().on_gpu) return;
    gpus_ = std::make_unique<testing::GpuBlocks>();
    gpus_->nic.late = true;
    gpus = gpus_.get();
  }
  void TearDown() override {
    if (gpus_ == nullptr) return;
    EXPECT_EQ(gpus_->nic.registered, 0);
    gpus = nullptr;
  }

 private:
  std::unique_ptr<testing::GpuBlocks> gpus_;
};

TEST_P(NetworkBlocks, RunSchedulesOneAfterAnotherOverTheSameLinks) {
  for (const char* algorithm : {"ring", "binary_tree", "two_shot"}) {
    Case test;
    test.schedule = schedule::compile(algorithm, {Collective::kAllReduce, 3, 0, 2});
    test.protocol = GetParam().protocol;
    test.count = 30'000;
    test.chunk = test.protocol == Protocol::kSimple ? 1000 : 400;
    const schedule::TestPattern pattern(Collective::kAllReduce, test.type, test.op, 3, 0,
                                        test.count);
    run_ranks(3, [&](bootstrap::Bootstrap& bootstrap) {
      Host host(bootstrap, GetParam());
      testing::BlockLaunch launch(test, bootstrap.rank(), host, kShape.slots);
      testing::expect_right_calls(launch, pattern, bootstrap.rank(), test.count, 3, algorithm);
      host.drain();
      bootstrap.barrier(bootstrap::soon());
      host.close();
    });
  }
}

// Launches ask before each, and do not wait for the thread that moves the links.
TEST_P(NetworkBlocks, AreNotWaitedForByWhoAsksForAFailure) {
  run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    Host host(bootstrap, GetParam());
    std::future<std::optional<Error>> asked;
    host.thread().with_links([&](NetworkLinks&) {
      asked = std::async(std::launch::async, [&] { return host.thread().failure(); });
      EXPECT_EQ(asked.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    });
    EXPECT_FALSE(asked.get().has_value());
    bootstrap.barrier(bootstrap::soon());
    host.close();
  });
}

TEST_P(NetworkBlocks, AreConnectedOnceBothRanksHaveAskedForThem) {
  run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    Host host(bootstrap, GetParam());
    const auto connected = [&] {
      return host.thread().with_links([](const NetworkLinks& links) { return links.connected(); });
    };
    EXPECT_TRUE(connected());  // none was asked for
    if (bootstrap.rank() == 0) {
      (void)host.send_end(0, 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_FALSE(connected());
    }
    bootstrap.barrier(bootstrap::soon());
    if (bootstrap.rank() == 1) (void)host.receive_end(0, 0);
    const auto until = TestClock::now() + std::chrono::seconds(30);
    while (!connected() && TestClock::now() < until) std::this_thread::yield();
    EXPECT_TRUE(connected());
    bootstrap.barrier(bootstrap::soon());
    host.close();
  });
}

// Ranks with different calls: the tag of a chunk shows it, since hosts share no board.
TEST_P(NetworkBlocks, TellAPeerThatWasCalledOtherwise) {
  Case test;
  test.schedule = schedule::compile("ring", {Collective::kAllReduce, 2, 0, 1});
  test.protocol = GetParam().protocol;
  test.count = 64;
  run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    Host host(bootstrap, GetParam());
    testing::BlockLaunch launch(test, bootstrap.rank(), host, kShape.slots);
    std::vector<float> data(2 * test.count);
    launch.use(data.data(), data.data() + test.count);
    launch.args.call.tag.count = test.count;
    launch.args.call.tag.call = 1;
    // Connects the links: an end that waits for its peer's connection would learn only from the
    // bootstrap, which is not asked here, that the peer has left.
    launch.run();
    host.drain();
    bootstrap.barrier(bootstrap::soon());
    launch.args.call.tag.root = static_cast<std::uint16_t>(bootstrap.rank());
    launch.args.call.tag.call = 2;
    launch.run();
    if (GetParam().protocol == Protocol::kLl) {
      // By what moves the links: the block may have both calls' data already. The rank that is told
      // first leaves, which the other's links notice.
      const auto told = [&] { return host.thread().failure().has_value(); };
      for (int i = 0; i < 1000 && !told(); ++i) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      EXPECT_TRUE(told() || host.control().stop.reason ==
                                static_cast<std::uint32_t>(executor::StopReason::kMismatch));
      host.close();
    } else {
      EXPECT_EQ(host.control().stop.reason,
                static_cast<std::uint32_t>(executor::StopReason::kMismatch));
      EXPECT_EQ(host.control().stop.peer, 1 - bootstrap.rank());
    }
    bootstrap.barrier(bootstrap::soon());
  });
}

// A block that waits for a peer whose links are closed ends at once, and the rank is named.
TEST_P(NetworkBlocks, EndWhenAPeerDies) {
  Case test;
  test.schedule = schedule::compile("ring", {Collective::kAllReduce, 2, 0, 1});
  test.protocol = GetParam().protocol;
  test.count = 64;
  run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    Host host(bootstrap, GetParam());
    testing::BlockLaunch launch(test, bootstrap.rank(), host, kShape.slots);
    std::vector<float> data(2 * test.count);
    launch.use(data.data(), data.data() + test.count);
    launch.run();  // links are connected now
    host.drain();
    bootstrap.barrier(bootstrap::soon());
    if (bootstrap.rank() == 1) {
      host.close();
    } else {
      const TestClock::time_point begin = TestClock::now();
      launch.run();
      // A second, and what a busy machine adds.
      EXPECT_LT(TestClock::now() - begin, std::chrono::seconds(3));
      EXPECT_TRUE(host.aborted());
      ASSERT_TRUE(host.thread().failure().has_value());
      EXPECT_EQ(host.thread().failure()->code(), Errc::kPeerLost);
      EXPECT_NE(std::string(host.thread().failure()->what()).find("rank 1"), std::string::npos);
    }
    bootstrap.barrier(bootstrap::soon());
  });
}

TEST_P(NetworkBlocks, WaitForRanksThatComeLate) {
  Case test;
  test.schedule = schedule::compile("ring", {Collective::kAllGather, 2, 0, 1});
  test.protocol = GetParam().protocol;
  test.count = 64;
  const schedule::TestPattern pattern(Collective::kAllGather, test.type, test.op, 2, 0, test.count);
  run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    Host host(bootstrap, GetParam());
    std::vector<float> input(test.count);
    std::vector<float> output(2 * test.count);
    pattern.fill_input(bootstrap.rank(), reinterpret_cast<std::byte*>(input.data()));
    // Long enough for the other's thread to sleep; it has nothing to connect to yet.
    if (bootstrap.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    testing::BlockLaunch launch(test, bootstrap.rank(), host, kShape.slots);
    launch.use(input.data(), output.data());
    launch.run();
    EXPECT_EQ(pattern.count_wrong(bootstrap.rank(), reinterpret_cast<std::byte*>(output.data())),
              0U);
    host.drain();
    bootstrap.barrier(bootstrap::soon());
  });
}

// What a rank ended with, after calls one after another until one of them fails.
struct Ended {
  int calls = 0;  // that were right
  std::uint64_t wrong = 0;
  std::uint32_t reason = 0;  // of its blocks
  std::optional<Error> failure;
};

// One rank's.
void make_calls(bootstrap::Bootstrap& bootstrap, const BlockKind& kind, const std::string& faults,
                const std::vector<Case>& cases, int calls, std::chrono::milliseconds limit,
                Ended& own) {
  Host host(bootstrap, kind, faults);
  std::vector<std::unique_ptr<testing::BlockLaunch>> launches;
  for (const Case& test : cases) {
    launches.push_back(
        std::make_unique<testing::BlockLaunch>(test, bootstrap.rank(), host, kShape.slots));
  }
  std::vector<float> input(cases[0].count);
  std::vector<float> output(cases[0].count);
  for (int call = 0; call < calls && !host.aborted(); ++call) {
    const std::size_t which = static_cast<std::size_t>(call) % cases.size();
    const Case& test = cases[which];
    const schedule::TestPattern pattern(Collective::kAllReduce, test.type, test.op, 3, 0,
                                        test.count);
    LaunchArgs& args = launches[which]->args;
    pattern.fill_input(bootstrap.rank(), reinterpret_cast<std::byte*>(input.data()));
    std::ranges::fill(output, -1.0F);
    args.call.input = reinterpret_cast<std::byte*>(input.data());
    args.call.output = reinterpret_cast<std::byte*>(output.data());
    args.call.tag.call = static_cast<std::uint32_t>(call) + 1;
    args.links.timeout_ns = static_cast<std::uint64_t>(std::chrono::nanoseconds(limit).count());
    launches[which]->run();
    if (host.aborted()) break;
    own.wrong += pattern.count_wrong(bootstrap.rank(), reinterpret_cast<std::byte*>(output.data()));
    ++own.calls;
  }
  own.reason = host.control().stop.reason;
  own.failure = host.thread().failure();
  if (own.calls == calls) host.drain();
  if (own.calls == calls) bootstrap.barrier(bootstrap::soon());
  host.close();  // which the others' links notice
}

// Calls of every kind of schedule over links whose transport has faults, by 3 ranks.
std::vector<Ended> run_under(const BlockKind& kind, const std::string& faults, int calls,
                             std::chrono::milliseconds limit) {
  std::vector<Ended> ended(3);
  std::vector<Case> cases;
  for (const char* algorithm : {"ring", "two_shot"}) {
    Case test;
    test.schedule = schedule::compile(algorithm, {Collective::kAllReduce, 3, 0, 1});
    test.protocol = kind.protocol;
    test.count = 3000;
    test.chunk = 300;
    cases.push_back(std::move(test));
  }
  run_ranks(3, [&](bootstrap::Bootstrap& bootstrap) {
    Ended& own = ended[static_cast<std::size_t>(bootstrap.rank())];
    try {
      make_calls(bootstrap, kind, faults, cases, calls, limit, own);
    } catch (const Error& error) {
      own.failure = error;  // a peer had ended before this one was connected to it
    }
  });
  return ended;
}

TEST_P(NetworkBlocks, AreRightOverALateTransport) {
  for (const Ended& own :
       run_under(GetParam(), "delay=300us,reorder=0.2,seed=7", 30, std::chrono::minutes(1))) {
    EXPECT_EQ(own.calls, 30);
    EXPECT_EQ(own.wrong, 0U);
    EXPECT_FALSE(own.failure.has_value());
  }
}

// A transport that fails ends the blocks of all ranks, by what it said or by links that are gone;
// no call that ended well is wrong.
TEST_P(NetworkBlocks, EndWhenTheTransportFails) {
  if (GetParam().survives()) {
    for (const char* faults : {"fail=0.001,seed=1", "drop=0.0005,seed=2"}) {
      for (const Ended& own : run_under(GetParam(), faults, 60, std::chrono::minutes(1))) {
        EXPECT_EQ(own.wrong, 0U);
        // Both rails may be lost at once, for longer than PEER_LOSS_TIME.
        EXPECT_TRUE(own.calls == 60 || own.failure.has_value()) << faults;
      }
    }
    return;
  }
  for (const char* faults : {"fail=0.002,seed=1", "fail=0.02,delay=100us,seed=2"}) {
    int failures = 0;
    for (const Ended& own : run_under(GetParam(), faults, 1000, std::chrono::minutes(2))) {
      EXPECT_EQ(own.wrong, 0U);
      EXPECT_LT(own.calls, 1000);
      EXPECT_NE(own.reason, static_cast<std::uint32_t>(executor::StopReason::kTimeout));
      if (!own.failure.has_value()) continue;
      ++failures;
      EXPECT_EQ(own.failure->code(), Errc::kPeerLost);
      EXPECT_NE(std::string(own.failure->what()).find("rank "), std::string::npos);
    }
    EXPECT_EQ(failures, 3);
  }
}

// What never arrives ends the blocks at their limit: no transport says so. Rounds of ll have
// numbers, so that the next one tells.
TEST_P(NetworkBlocks, EndAtTheLimitWhenAChunkIsLost) {
  if (GetParam().survives()) return;
  bool timed_out = false;
  for (const Ended& own :
       run_under(GetParam(), "drop=0.01,seed=3", 1000, std::chrono::milliseconds(1500))) {
    EXPECT_EQ(own.wrong, 0U);
    EXPECT_LT(own.calls, 1000);
    timed_out |= own.reason == static_cast<std::uint32_t>(executor::StopReason::kTimeout) ||
                 (GetParam().protocol == Protocol::kLl && own.failure.has_value());
  }
  EXPECT_TRUE(timed_out);
}

std::vector<BlockKind> block_kinds() {
  std::vector<BlockKind> kinds;
  for (const char* transport : {"tcp", "shm", "ofi", "rails", "psm2"}) {
    const auto& there = testing::networks();
    if (std::ranges::find(there, transport, &testing::Network::name) == there.end()) continue;
    for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl}) {
      kinds.push_back({transport, protocol});
    }
  }
  for (const char* transport : {"tcp", "shm"})
    kinds.push_back({transport, Protocol::kSimple, true});
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Over, NetworkBlocks, ::testing::ValuesIn(block_kinds()),
                         [](const auto& test) {
                           return std::string(test.param.transport) +
                                  (test.param.protocol == Protocol::kLl ? "_ll" : "") +
                                  (test.param.on_gpu ? "_gpu" : "");
                         });

}  // namespace
}  // namespace ropewalk::comm
