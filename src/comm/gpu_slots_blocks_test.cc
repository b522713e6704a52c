// Network links of GPUs whose slots are in GPU memory, with host threads instead of blocks: where
// transports take that memory, refuse it, or lie about it. Ranks are threads, each acting as a host
// of its own.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <functional>
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
#include "core/log.h"
#include "core/testing/share.h"
#include "executor/block/testing/case.h"
#include "schedule/compile.h"
#include "schedule/layout.h"

namespace ropewalk::comm {
namespace {

using bootstrap::run_ranks;
using executor::Control;
using executor::Protocol;
using executor::testing::Case;
using testing::BlockGpu;
using testing::GpuBlocks;
using Use = link::GpuSlots::Use;
using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int kRanks = 3;
constexpr int kChannels = 2;
constexpr executor::FifoShape kShape{4, 4, 4096};

class Rank final : public testing::BlockHost {
 public:
  Rank(bootstrap::Bootstrap& bootstrap, std::string_view transport, const BlockGpu& gpu)
      : unused_board_(static_cast<std::size_t>(bootstrap.size()) * executor::kBoardTags),
        network_(bootstrap, transport, false, kShape, "", control_, &gpu) {}
  executor::SendEnd send_end(int channel, int peer) override {
    return network_.send_end(channel, peer);
  }
  executor::ReceiveEnd receive_end(int channel, int peer) override {
    return network_.receive_end(channel, peer);
  }
  Control& control() override { return control_; }
  void lend_tags(executor::LaunchLinks&) override {}
  bool aborted() { return std::atomic_ref(control_.abort).load() != 0; }
  std::optional<Error> failure() { return network_.thread().failure(); }
  [[nodiscard]] const link::GpuSlots* slots() const { return network_.slots(); }
  bool drain() { return network_.drain(); }
  void close() { network_.close(); }

 private:
  Control control_;
  std::vector<executor::CallTag> unused_board_;
  testing::BlockNetwork network_;
};

Case a_case(const char* algorithm, Collective collective, std::size_t count) {
  Case test;
  test.schedule = schedule::compile(algorithm, {collective, kRanks, 0, kChannels});
  test.count = count;
  test.chunk = 1000;
  return test;
}

// Makes a call, and compares the result. @return whether it ended without an error
bool call(Rank& rank, const Case& test, int number, int calls = 2) {
  const schedule::Schedule& s = test.schedule;
  const auto units = [&](auto&& of) {
    return static_cast<std::size_t>(of(s.collective, kRanks, s.root, number)) * test.count;
  };
  const schedule::TestPattern pattern(s.collective, test.type, test.op, kRanks, s.root, test.count);
  testing::BlockLaunch launch(test, number, rank, kShape.slots);
  std::vector<float> input(units(schedule::input_units));
  std::vector<float> output(units(schedule::output_units), -1.0F);
  launch.use(input.data(), output.data());
  launch.args.call.tag.count = test.count;
  for (int k = 0; k < calls; ++k) {
    pattern.fill_input(number, reinterpret_cast<std::byte*>(input.data()));
    std::ranges::fill(output, -1.0F);
    launch.args.call.tag.call = static_cast<std::uint32_t>(k) + 1;
    launch.run();
    if (rank.aborted()) return false;
    EXPECT_EQ(pattern.count_wrong(number, reinterpret_cast<std::byte*>(output.data())), 0U)
        << s.algorithm << ", " << name(s.collective) << ", " << test.count;
  }
  return true;
}

void leave(bootstrap::Bootstrap& bootstrap, Rank& rank) {
  EXPECT_TRUE(rank.drain());
  bootstrap.barrier(bootstrap::soon());
  rank.close();
}

/// The log's lines while it lives.
class Hearing {
 public:
  Hearing() {
    lines().clear();
    log::configure("INFO", "NET", "");
    log::set_sink([](log::Level, std::uint32_t, const char* line) {
      const Lock lock(mutex());
      lines().emplace_back(line);
    });
  }
  ~Hearing() { log::set_sink(nullptr); }
  Hearing(const Hearing&) = delete;
  Hearing& operator=(const Hearing&) = delete;
  [[nodiscard]] std::vector<std::string> heard() const {
    const Lock lock(mutex());
    return lines();
  }

 private:
  static Mutex& mutex() {
    static Mutex made;
    return made;
  }
  static std::vector<std::string>& lines() {
    static std::vector<std::string> made;
    return made;
  }
};

std::vector<std::string> carriers() {
  std::vector<std::string> all;
  for (const char* transport : {"tcp", "shm", "sisci", "ofi"}) {
#ifndef RW_STAND_IN_LIBFABRIC
    if (std::string_view(transport) == "ofi") continue;
#endif
    const auto& there = testing::networks();
    if (std::ranges::find(there, transport, &testing::Network::name) != there.end()) {
      all.emplace_back(transport);
    }
  }
  return all;
}

class GpuSlotBlocks : public ::testing::TestWithParam<std::string> {};

// Data comes late where the transport is one of the tests' own: it is seen only if it is flushed.
TEST_P(GpuSlotBlocks, RunEveryCollectiveByEveryAlgorithm) {
  GpuBlocks gpus;
  gpus.nic.late = true;
  std::vector<Case> cases;
  const auto share = static_cast<std::size_t>(ropewalk::testing::share());
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
      schedule::Request request{collective, kRanks, has_root(collective) ? 1 : 0, kChannels};
      request.host_of_rank = {0, 0, 1};  // for hierarchical schedules
      if (!algorithm.supports(request)) continue;
      Case test;
      test.schedule = schedule::compile(algorithm.name, request);
      test.chunk = 1000;
      if (test.schedule.num_ranks != kRanks || test.schedule.num_channels() > kChannels) continue;
      // Inline, in one slot, in several.
      for (const std::size_t count : {1U, 300U, 2500U}) {
        test.count = count;
        cases.push_back(test);
      }
    }
  }
  ASSERT_TRUE(std::ranges::any_of(
      cases, [](const Case& each) { return each.schedule.algorithm == "hierarchical"; }));
  run_ranks(kRanks, [&](bootstrap::Bootstrap& bootstrap) {
    Rank rank(bootstrap, GetParam(), gpus.of_rank(bootstrap.rank(), GetParam()));
    ASSERT_TRUE(rank.slots() != nullptr && rank.slots()->on_gpu());
    for (std::size_t k = 0; k < cases.size(); k += share) {
      EXPECT_TRUE(call(rank, cases[k], bootstrap.rank()));
      if (HasFailure()) break;
    }
    leave(bootstrap, rank);
  });
  EXPECT_EQ(gpus.nic.registered, 0);
}

TEST_P(GpuSlotBlocks, LeaveNothingOnTheGpusAndOfTheDriver) {
  GpuBlocks gpus;
  const Case test = a_case("ring", Collective::kAllReduce, 3000);
  std::string before;
  for (int turn = 0; turn < 3; ++turn) {
    run_ranks(kRanks, [&](bootstrap::Bootstrap& bootstrap) {
      Rank rank(bootstrap, GetParam(), gpus.of_rank(bootstrap.rank(), GetParam()));
      EXPECT_TRUE(call(rank, test, bootstrap.rank()));
      leave(bootstrap, rank);
    });
    // What the process keeps of a GPU stays from the first turn on.
    if (turn == 0) before = gpus.stand_in().held();
    EXPECT_EQ(gpus.stand_in().held(), before);
  }
}

INSTANTIATE_TEST_SUITE_P(Over, GpuSlotBlocks, ::testing::ValuesIn(carriers()),
                         [](const auto& test) { return test.param; });

// Over transports that take GPU memory themselves: only copies of CUDA and the transport get to it,
// as a thread that touches it ends the process. The reader lags, so that all slots are in use.
TEST(GpuSlots, AreNotTouchedByTheThread) {
  for (const std::string& transport : carriers()) {
    if (transport != "sisci" && transport != "ofi") continue;
    SCOPED_TRACE(transport);
    GpuBlocks gpus("", false);
    constexpr int kChunks = 40;
    const auto pattern = [](int chunk) {
      std::vector<std::byte> made(
          static_cast<std::size_t>(chunk > 20 && chunk % 3 == 0 ? 50 : 100 * chunk));
      for (std::size_t i = 0; i < made.size(); ++i) {
        made[i] = static_cast<std::byte>(i * 3 + static_cast<std::size_t>(chunk));
      }
      return made;
    };
    run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
      const int self = bootstrap.rank();
      Rank rank(bootstrap, transport, gpus.of_rank(self, transport));
      transport::window::Gpu& gpu = GpuBlocks::gpu_of(self);
      const auto await = [&](auto&& condition) {
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
        while (!condition()) {
          ASSERT_LT(std::chrono::steady_clock::now(), end);
          ASSERT_FALSE(rank.failure().has_value()) << rank.failure()->what();
          std::this_thread::yield();
        }
      };
      const auto load = [](std::uint64_t& word) {
        return std::atomic_ref(word).load(std::memory_order_acquire);
      };
      const auto store = [](std::uint64_t& word, std::uint64_t value) {
        std::atomic_ref(word).store(value, std::memory_order_release);
      };
      if (self == 0) {
        executor::SendEnd end = rank.send_end(0, 1);
        for (std::uint64_t n = 1; n <= kChunks; ++n) {
          await([&] { return n <= load(*end.consumed_at) + kShape.slots; });
          const std::vector<std::byte> data = pattern(static_cast<int>(n));
          executor::SlotHeader& header = *end.header(n);
          header.bytes = static_cast<std::uint32_t>(data.size());
          if (data.size() <= executor::kInlineBytes) {
            header.kind = executor::SlotKind::kInline;
            std::ranges::copy(data, header.inline_data);
          } else {
            header.kind = executor::SlotKind::kStaged;
            gpu.fill(reinterpret_cast<transport::window::CuPointer>(end.data(n, data.size())),
                     data.data(), data.size());
          }
          store(header.sequence, n);
        }
      } else {
        executor::ReceiveEnd end = rank.receive_end(0, 0);
        for (std::uint64_t n = 1; n <= kChunks; ++n) {
          executor::SlotHeader& header = *end.header(n);
          const std::uint64_t last = std::min<std::uint64_t>(n + kShape.slots - 1, kChunks);
          await([&] { return load(end.header(last)->sequence) == last; });
          if (n % 4 == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
          ASSERT_EQ(load(header.sequence), n);
          const std::vector<std::byte> data = pattern(static_cast<int>(n));
          ASSERT_EQ(header.bytes, data.size());
          std::vector<std::byte> seen(data.size());
          if (data.size() <= executor::kInlineBytes) {
            ASSERT_EQ(header.kind, executor::SlotKind::kInline);
            std::copy_n(header.inline_data, seen.size(), seen.data());
          } else {
            ASSERT_EQ(header.kind, executor::SlotKind::kAddress);
            gpu.fetch(seen.data(), header.address, seen.size());
          }
          EXPECT_EQ(seen, data) << n;
          store(*end.consumed_at, n);
        }
      }
      leave(bootstrap, rank);
    });
  }
}

// What ranks ended with.
struct Ended {
  bool right = false;
  bool on_gpu = false;  // this rank's slots
  bool apart = false;   // links are those of gpu_slot_link.h
  std::optional<Error> failure;
};

// All-reduces by ranks whose slots are as `change` has them.
std::vector<Ended> run_with(GpuBlocks& gpus, std::size_t count,
                            const std::function<void(int, BlockGpu&)>& change = {}) {
  std::vector<Ended> all(kRanks);
  const Case test = a_case("ring", Collective::kAllReduce, count);
  run_ranks(kRanks, [&](bootstrap::Bootstrap& bootstrap) {
    BlockGpu gpu = gpus.of_rank(bootstrap.rank(), "tcp");
    if (change) change(bootstrap.rank(), gpu);
    Ended& own = all[static_cast<std::size_t>(bootstrap.rank())];
    Rank rank(bootstrap, "tcp", gpu);
    own.apart = rank.slots() != nullptr;
    own.on_gpu = own.apart && rank.slots()->on_gpu();
    try {
      own.right = call(rank, test, bootstrap.rank(), 20);
      own.failure = rank.failure();
    } catch (const Error& error) {  // of links that are asked for
      own.failure = error;
    }
    if (own.right) {
      leave(bootstrap, rank);
    } else {
      rank.close();
    }
  });
  return all;
}

TEST(GpuSlots, AreFlushedWhereTheArchitectureNeedsIt) {
  struct Row {
    const char* attributes;
    bool flushes;
  };
  for (const Row& row :
       {Row{"attribute=75:8,attribute=76:0", true}, Row{"attribute=75:8,attribute=118:100", false},
        Row{"attribute=75:9,attribute=76:0", false}, Row{"attribute=75:9,attribute=100:1", true}}) {
    GpuBlocks gpus(row.attributes);
    gpus.nic.late = row.flushes;
    const Hearing hearing;
    for (const Ended& own : run_with(gpus, 3000)) EXPECT_TRUE(own.right && own.on_gpu);
    EXPECT_EQ(gpus.nic.flushes > 0, row.flushes) << row.attributes;
    EXPECT_THAT(hearing.heard(),
                Contains(HasSubstr(row.flushes ? "there is flushed" : "there is not flushed")));
  }
}

TEST(GpuSlots, AreAlwaysFlushedWhereAskedFor) {
  GpuBlocks gpus("attribute=75:9");
  gpus.nic.late = true;
  const auto ended =
      run_with(gpus, 3000, [](int, BlockGpu& gpu) { gpu.options.always_flushes = true; });
  for (const Ended& own : ended) EXPECT_TRUE(own.right && own.on_gpu);
  EXPECT_GT(gpus.nic.flushes, 0);
}

// The rule says that no flush is needed, and the trial's pattern that it is.
TEST(GpuSlots, AreInPinnedMemoryWhereTheTrialComesWrong) {
  GpuBlocks gpus("attribute=75:9");
  gpus.nic.late = true;
  const Hearing hearing;
  for (const Ended& own : run_with(gpus, 3000)) EXPECT_TRUE(own.right && !own.apart);
  EXPECT_THAT(hearing.heard(),
              Contains(AllOf(HasSubstr("are in pinned memory, not in the GPU's"),
                             HasSubstr("a pattern from GPU memory into GPU memory came wrong"))));
}

TEST(GpuSlots, AreInPinnedMemoryWhereRegistrationIsRefused) {
  GpuBlocks gpus;
  gpus.nic.refuses_sender_from = 1;
  const Hearing hearing;
  for (const Ended& own : run_with(gpus, 3000)) EXPECT_TRUE(own.right && !own.apart);
  EXPECT_THAT(hearing.heard(), Contains(HasSubstr("ibv_reg_mr of GPU memory: Bad address")));
  EXPECT_EQ(gpus.nic.registered, 0);
  EXPECT_EQ(gpus.nic.gpu_messages, 0);
}

TEST(GpuSlots, AreInPinnedMemoryOverTransportsOfHostMemory) {
  GpuBlocks gpus;
  gpus.nic.takes_gpu_memory = false;
  const Hearing hearing;
  for (const Ended& own : run_with(gpus, 3000)) EXPECT_TRUE(own.right && !own.apart);
  EXPECT_THAT(hearing.heard(), Contains(HasSubstr("takes host memory only")));
  EXPECT_THAT(hearing.heard(), Not(Contains(HasSubstr("came wrong"))));
}

TEST(GpuSlots, AreInPinnedMemoryWhereCudaWouldMoveTheData) {
  GpuBlocks gpus;
  gpus.nic.needs_cuda = true;
  const auto as = [](Use use) { return [use](int, BlockGpu& gpu) { gpu.options.use = use; }; };
  const Hearing hearing;
  for (const Ended& own : run_with(gpus, 3000, as(Use::kAuto))) {
    EXPECT_TRUE(own.right && !own.apart);
  }
  EXPECT_THAT(hearing.heard(), Contains(HasSubstr("may need CUDA to move it")));
  for (const Ended& own : run_with(gpus, 3000, as(Use::kOn))) EXPECT_TRUE(own.right && own.on_gpu);
  gpus.nic.needs_cuda = false;
  for (const Ended& own : run_with(gpus, 3000, as(Use::kAuto))) {
    EXPECT_TRUE(own.right && own.on_gpu);
  }
}

TEST(GpuSlots, AreInPinnedMemoryWhereCudaWouldMapItLater) {
  GpuBlocks gpus;
  gpus.nic.needs_cuda = gpus.nic.maps_later = true;
  const auto wanted = [](int, BlockGpu& gpu) { gpu.options.use = Use::kOn; };
  const Hearing hearing;
  for (const Ended& own : run_with(gpus, 3000, wanted)) EXPECT_TRUE(own.right && !own.apart);
  EXPECT_THAT(hearing.heard(), Contains(HasSubstr("maps GPU memory by CUDA after connecting")));
}

// A driver that is not there is one rank's affair.
TEST(GpuSlots, OfOneRankMayBeInPinnedMemory) {
  GpuBlocks gpus;
  gpus.nic.late = true;
  const auto ended = run_with(gpus, 3000, [](int rank, BlockGpu& gpu) {
    if (rank != 1) return;
    gpu.options.gpu = []() -> transport::window::Gpu& {
      throw Error(Errc::kCuda, "{}", "no CUDA on this host");
    };
  });
  for (int r = 0; r < kRanks; ++r) {
    const Ended& own = ended[static_cast<std::size_t>(r)];
    EXPECT_TRUE(own.right && own.apart);
    EXPECT_EQ(own.on_gpu, r != 1);
  }
  EXPECT_GT(gpus.nic.gpu_messages, 0);
}

TEST(GpuSlots, AreNowhereOnGpusWhereARankHasTheSettingOff) {
  GpuBlocks gpus;
  const Hearing hearing;
  const auto ended = run_with(gpus, 3000, [](int rank, BlockGpu& gpu) {
    if (rank == 2) gpu.options.use = Use::kOff;
  });
  for (const Ended& own : ended) EXPECT_TRUE(own.right && !own.apart);
  EXPECT_THAT(hearing.heard(), Contains(HasSubstr("rank 2 does not want them in GPU memory")));
}

TEST(GpuSlots, AreRegisteredByDescriptorWhereTheTransportTakesOne) {
  for (const bool exports : {true, false}) {
    GpuBlocks gpus(exports ? "" : "refuse=cuMemGetHandleForAddressRange:801");
    gpus.nic.takes_dma_buf = true;
    for (const Ended& own : run_with(gpus, 3000)) EXPECT_TRUE(own.right && own.on_gpu);
    const int all = gpus.nic.sender_registrations + gpus.nic.receiver_registrations;
    EXPECT_GT(all, 2 * kRanks);
    EXPECT_EQ(gpus.nic.by_dma_buf, exports ? all : 0);
  }
}

// The trial of each rank registers once at each end; what comes after is for links.
TEST(GpuSlots, OfAReceivingLinkThatIsRefusedAreInPinnedMemory) {
  GpuBlocks gpus;
  gpus.nic.late = true;
  gpus.nic.refuses_receiver_from = kRanks + 2;
  const Hearing hearing;
  for (const Ended& own : run_with(gpus, 3000)) EXPECT_TRUE(own.right && own.on_gpu);
  EXPECT_THAT(hearing.heard(),
              Contains(AllOf(HasSubstr("slots of the link from rank"), HasSubstr("Bad address"))));
  EXPECT_GT(gpus.nic.gpu_messages, 2 * kRanks);
}

TEST(GpuSlots, OfASendingLinkThatIsRefusedEndTheCallByName) {
  GpuBlocks gpus;
  gpus.nic.refuses_sender_from = kRanks + 2;
  bool named = false;
  for (const Ended& own : run_with(gpus, 3000)) {
    EXPECT_FALSE(own.right);
    const std::string words = own.failure.has_value() ? own.failure->what() : "";
    named |= words.find("slots in GPU memory of the link to rank") != std::string::npos &&
             words.find("NET_GPU_SLOTS=off") != std::string::npos;
  }
  EXPECT_TRUE(named);
  EXPECT_EQ(gpus.nic.registered, 0);
}

TEST(GpuSlots, WhoseFlushFailsEndTheCallByName) {
  GpuBlocks gpus;
  gpus.nic.late = true;
  gpus.nic.fails_flush_from = 2 * kRanks + 20;  // two of each trial
  bool named = false;
  for (const Ended& own : run_with(gpus, 3000)) {
    EXPECT_FALSE(own.right);
    if (!own.failure.has_value()) continue;
    EXPECT_EQ(own.failure->code(), Errc::kPeerLost);
    const std::string words = own.failure->what();
    named |= words.find("receiving from rank") != std::string::npos &&
             words.find("a flush of GPU memory fails") != std::string::npos;
  }
  EXPECT_TRUE(named);
  EXPECT_EQ(gpus.nic.registered, 0);
}

}  // namespace
}  // namespace ropewalk::comm
