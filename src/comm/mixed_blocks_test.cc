// GPUs on two hosts, two on each: links in memory within a host, network links with faults between
// them. Host threads instead of blocks; ranks are threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/test_support.h"
#include "comm/testing/block_launch.h"
#include "comm/testing/block_network.h"
#include "comm/testing/gpu_blocks.h"
#include "core/testing/share.h"
#include "executor/block/testing/case.h"
#include "schedule/compile.h"
#include "schedule/layout.h"

namespace ropewalk::comm {
namespace {

using executor::Control;
using executor::Protocol;
using executor::StopReason;
using executor::testing::Case;
using MemoryLinks = executor::testing::Machine;

constexpr int kMixedRanks = 4;
constexpr int kMixedChannels = 2;
constexpr std::array<int, kMixedRanks> kHostOfRank = {0, 0, 1, 1};
constexpr std::size_t kMostElements = 4000;

struct MixedKind {
  const char* transport;
  Protocol protocol;
  testing::GpuBlocks* gpus = nullptr;  // where slots of network links are on GPUs
};

executor::FifoShape shape_of(Protocol protocol) {
  if (protocol == Protocol::kSimple) return {4, 4, 4096};
  return {executor::kFlaggedSlots, executor::kFlaggedSlots, link::kFlaggedSlotBytes};
}

// A rank with its links, as cuda/cuda_group.h has them.
class Member final : public testing::BlockHost {
 public:
  Member(bootstrap::Bootstrap& bootstrap, MemoryLinks& memory, Control& control,
         const MixedKind& kind, const std::string& faults)
      : rank_(bootstrap.rank()),
        control_(control),
        memory_ends_(memory, rank_),
        gpu_(kind.gpus != nullptr ? kind.gpus->of_rank(rank_, kind.transport)
                                  : testing::BlockGpu{}),
        network_(bootstrap, kind.transport, kind.protocol == Protocol::kLl,
                 shape_of(Protocol::kSimple), faults, control,
                 kind.gpus != nullptr ? &gpu_ : nullptr) {
    executor::LaunchLinks lent;
    lent.rank = static_cast<std::uint32_t>(rank_);
    memory.lend_boards(lent);
    board_ = lent.board;
    for (int r = 0; r < kMixedRanks; ++r)
      boards_.push_back(on_this_host(r) ? lent.boards[r] : nullptr);
  }
  executor::SendEnd send_end(int channel, int peer) override {
    return on_this_host(peer) ? memory_ends_.send_end(channel, peer)
                              : network_.send_end(channel, peer);
  }
  executor::ReceiveEnd receive_end(int channel, int peer) override {
    return on_this_host(peer) ? memory_ends_.receive_end(channel, peer)
                              : network_.receive_end(channel, peer);
  }
  Control& control() override { return control_; }
  void lend_tags(executor::LaunchLinks& links) override {
    links.board = board_;
    links.boards = boards_.data();
    network_.lend_tags(links);
  }
  bool aborted() { return std::atomic_ref(control_.abort).load() != 0; }
  std::optional<Error> failure() { return network_.thread().failure(); }
  std::string state() { return network_.state(); }
  void drain() { (void)network_.drain(); }
  void close() { network_.close(); }

 private:
  [[nodiscard]] bool on_this_host(int peer) const {
    return kHostOfRank[static_cast<std::size_t>(peer)] ==
           kHostOfRank[static_cast<std::size_t>(rank_)];
  }

  int rank_;
  Control& control_;
  MemoryLinks::Ends memory_ends_;
  const executor::CallTag* board_ = nullptr;
  std::vector<executor::CallTag*> boards_;
  testing::BlockGpu gpu_;
  testing::BlockNetwork network_;
};

// Calls of one communicator, which ends with the first that fails.
struct Episode {
  std::vector<Case> cases;
  std::vector<std::size_t> calls;  // of which case
  std::string faults;
  bool may_fail = false;
  bool may_stall = false;
};

class Drawn {
 public:
  explicit Drawn(std::uint64_t seed, Protocol protocol) : random_(seed), protocol_(protocol) {}

  Episode episode() {
    Episode drawn;
    for (int i = 0; i < 6; ++i) drawn.cases.push_back(one_case());
    const int calls = between(10, 120);
    for (int i = 0; i < calls; ++i) {
      drawn.calls.push_back(static_cast<std::size_t>(between(0, 5)));
    }
    const std::string seed = fmt::format("seed={}", between(1, 1 << 30));
    switch (between(0, 7)) {
      case 0:
        drawn.may_fail = true;
        drawn.faults = "fail=0.002,";
        break;
      case 1:
        drawn.may_fail = true;
        drawn.faults = "fail=0.01,delay=100us,";
        break;
      case 2:
        drawn.may_stall = true;
        drawn.faults = "drop=0.003,";
        break;
      case 3: break;
      case 4: drawn.faults = "delay=300us,"; break;
      default: drawn.faults = "delay=100us,reorder=0.2,"; break;
    }
    if (!drawn.faults.empty()) drawn.faults += seed;
    return drawn;
  }

 private:
  int between(int low, int high) { return std::uniform_int_distribution(low, high)(random_); }

  Case one_case() {
    const auto algorithms = schedule::algorithms();
    Case drawn;
    schedule::Request request;
    const schedule::Algorithm* algorithm = nullptr;
    do {
      request.collective = static_cast<Collective>(between(0, kNumCollectives - 1));
      request.num_ranks = kMixedRanks;
      request.root = has_root(request.collective) ? between(0, kMixedRanks - 1) : 0;
      request.channels = between(1, kMixedChannels);
      request.host_of_rank.assign(kHostOfRank.begin(), kHostOfRank.end());
      algorithm = &algorithms[static_cast<std::size_t>(
          between(0, static_cast<int>(algorithms.size()) - 1))];
      if (!algorithm->supports(request)) continue;
      drawn.schedule = schedule::compile(algorithm->name, request);
    } while (drawn.schedule.num_ranks != kMixedRanks ||
             drawn.schedule.num_channels() > kMixedChannels);
    drawn.protocol = protocol_;
    // Short ones are most of the traffic, and leave channels without data.
    drawn.count = static_cast<std::size_t>(
        between(0, 1) == 0 ? between(1, 64) : between(1, static_cast<int>(kMostElements)));
    // A slot of ll holds the chunks of a round, of which there are up to 16.
    drawn.chunk = static_cast<std::size_t>(protocol_ == Protocol::kSimple ? 64 * between(1, 16)
                                                                          : 32 * between(1, 3));
    return drawn;
  }

  std::mt19937_64 random_;
  Protocol protocol_;
};

struct Outcome {
  std::size_t calls = 0;  // that this rank ended without an error
  std::uint64_t wrong = 0;
  std::uint32_t reason = 0;
  std::optional<Error> failure;
  std::string state;  // where it waited too long
};

using Launches = std::vector<std::unique_ptr<testing::BlockLaunch>>;

// All calls of the episode, until one fails.
void make_calls(const Episode& episode, int rank, Member& member, Launches& launches,
                Outcome& outcome) {
  const std::uint32_t slots = shape_of(Protocol::kSimple).slots;
  for (const Case& test : episode.cases) {
    launches.push_back(std::make_unique<testing::BlockLaunch>(test, rank, member, slots));
  }
  const std::chrono::nanoseconds limit =
      episode.may_stall ? std::chrono::seconds(2) : std::chrono::minutes(2);
  std::vector<float> input;
  std::vector<float> output;
  for (const std::size_t which : episode.calls) {
    const Case& test = episode.cases[which];
    const schedule::Schedule& s = test.schedule;
    const auto units = [&](auto&& of) {
      return static_cast<std::size_t>(of(s.collective, kMixedRanks, s.root, rank)) * test.count;
    };
    input.assign(units(schedule::input_units), 0);
    output.assign(units(schedule::output_units), -1);
    const schedule::TestPattern pattern(s.collective, test.type, test.op, kMixedRanks, s.root,
                                        test.count);
    pattern.fill_input(rank, input.data());
    testing::BlockLaunch& launch = *launches[which];
    launch.use(input.data(), output.data());
    launch.args.call.tag.call = static_cast<std::uint32_t>(outcome.calls) + 1;
    launch.args.call.tag.count = test.count;
    launch.args.links.timeout_ns = static_cast<std::uint64_t>(limit.count());
    launch.run();
    if (member.aborted()) break;
    outcome.wrong += pattern.count_wrong(rank, output.data());
    ++outcome.calls;
  }
  outcome.failure = member.failure();
}

void act(bootstrap::Bootstrap& bootstrap, const Episode& episode, const MixedKind& kind,
         MemoryLinks& memory, std::array<Control, kMixedRanks>& controls, std::barrier<>& all_ended,
         Outcome& outcome) {
  const int rank = bootstrap.rank();
  Member member(bootstrap, memory, controls[static_cast<std::size_t>(rank)], kind, episode.faults);
  Launches launches;
  try {
    make_calls(episode, rank, member, launches, outcome);
  } catch (const Error& error) {
    outcome.failure = error;  // a peer had ended before this rank was connected to it
  }
  outcome.reason = member.control().stop.reason;
  if (outcome.reason == static_cast<std::uint32_t>(StopReason::kTimeout)) {
    const Case& test = episode.cases[episode.calls[outcome.calls]];
    outcome.state = fmt::format("rank {} stood still in call {}, {} of {} by {}:\n{}", rank,
                                outcome.calls + 1, name(test.schedule.collective), test.count,
                                test.schedule.algorithm, member.state());
  }
  if (outcome.calls == episode.calls.size()) {
    member.drain();
  } else {
    // What a rank does that ends with an error: the others of its host are told, those of other
    // hosts notice that its links are closed.
    for (int r = 0; r < kMixedRanks; ++r) {
      if (kHostOfRank[static_cast<std::size_t>(r)] != kHostOfRank[static_cast<std::size_t>(rank)]) {
        continue;
      }
      std::atomic_ref(controls[static_cast<std::size_t>(r)].abort).store(1);
    }
    member.close();
  }
  all_ended.arrive_and_wait();
  member.close();
}

class MixedBlocks : public ::testing::TestWithParam<MixedKind> {};

void make_many_calls(const MixedKind& kind) {
  const std::size_t wanted = 1000 / static_cast<std::size_t>(ropewalk::testing::share());
  std::size_t calls = 0;
  int failed = 0;
  int stalled = 0;
  for (std::uint64_t seed = 1; calls < wanted; ++seed) {
    Episode episode = Drawn(seed, kind.protocol).episode();
    // Few calls might all be right: of a share the first ones are not.
    if (seed == 1 && ropewalk::testing::share() > 1) {
      episode.may_fail = true;
      episode.faults = "fail=0.05,seed=1";
    }
    SCOPED_TRACE(fmt::format("seed {}, faults \"{}\"", seed, episode.faults));
    MemoryLinks memory(kMixedRanks, kMixedChannels, kind.protocol, shape_of(kind.protocol));
    std::array<Control, kMixedRanks> controls{};
    std::barrier<> all_ended(kMixedRanks);
    std::array<Outcome, kMixedRanks> outcomes;
    bootstrap::run_ranks(kMixedRanks, [&](bootstrap::Bootstrap& bootstrap) {
      act(bootstrap, episode, kind, memory, controls, all_ended,
          outcomes[static_cast<std::size_t>(bootstrap.rank())]);
    });
    bool has_failed = false;
    bool has_stalled = false;
    for (const Outcome& outcome : outcomes) {
      EXPECT_EQ(outcome.wrong, 0U);
      EXPECT_NE(outcome.reason, static_cast<std::uint32_t>(StopReason::kMismatch));
      const bool timed_out = outcome.reason == static_cast<std::uint32_t>(StopReason::kTimeout);
      EXPECT_TRUE(episode.may_stall || !timed_out) << outcome.state;
      has_stalled |= timed_out;
      has_failed |= outcome.failure.has_value();
    }
    calls += std::ranges::max(outcomes, {}, &Outcome::calls).calls;
    const bool ended_early = std::ranges::any_of(
        outcomes, [&](const Outcome& each) { return each.calls < episode.calls.size(); });
    std::string failures;
    for (int r = 0; r < kMixedRanks; ++r) {
      const std::optional<Error>& failure = outcomes[static_cast<std::size_t>(r)].failure;
      if (failure) failures += fmt::format("rank {}: {}\n", r, failure->what());
    }
    EXPECT_TRUE(episode.may_fail || episode.may_stall || !ended_early) << failures;
    EXPECT_TRUE(!ended_early || has_failed || has_stalled);
    failed += has_failed ? 1 : 0;
    stalled += has_stalled ? 1 : 0;
    if (::testing::Test::HasFailure()) return;
  }
  ::testing::Test::RecordProperty("failed", failed);
  ::testing::Test::RecordProperty("stalled", stalled);
  EXPECT_GT(failed + stalled, 0);
}

// 10,000 calls in all over the four kinds were right with 2,500 of each.
TEST_P(MixedBlocks, ManyCallsUnderFaultsAreRightOrEndWithAnError) { make_many_calls(GetParam()); }

// The same with slots in GPU memory, where what arrives is late.
TEST(MixedGpuBlocks, ManyCallsOverSlotsOnGpusAreRightOrEndWithAnError) {
  testing::GpuBlocks gpus;
  gpus.nic.late = true;
  make_many_calls({"tcp", Protocol::kSimple, &gpus});
  EXPECT_EQ(gpus.nic.registered, 0);
  EXPECT_GT(gpus.nic.flushes, 0);
}

INSTANTIATE_TEST_SUITE_P(Over, MixedBlocks,
                         ::testing::Values(MixedKind{"tcp", Protocol::kSimple},
                                           MixedKind{"shm", Protocol::kSimple},
                                           MixedKind{"tcp", Protocol::kLl},
                                           MixedKind{"shm", Protocol::kLl}),
                         [](const auto& test) {
                           return std::string(test.param.transport) +
                                  (test.param.protocol == Protocol::kLl ? "_ll" : "");
                         });

}  // namespace
}  // namespace ropewalk::comm
