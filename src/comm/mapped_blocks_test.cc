// Links of GPUs in windows that hosts map, with host threads instead of blocks: ranks are threads,
// each acting as a host of its own.
#include <gtest/gtest.h>

#include <atomic>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/test_support.h"
#include "comm/testing/block_launch.h"
#include "core/settings.h"
#include "executor/block/testing/case.h"
#include "link/mapped_windows.h"
#include "link/window_layout.h"
#include "schedule/compile.h"
#include "transport/registry.h"

namespace ropewalk::comm {
namespace {

using bootstrap::run_ranks;
using executor::CallTag;
using executor::Control;
using executor::Protocol;
using executor::StopReason;
using executor::testing::Case;
using link::MappedWindows;
using link::WindowLayout;

constexpr std::uint32_t kWindowSlots = 4;

struct WindowKind {
  const char* net;
  Protocol protocol;
};

WindowLayout pair_layout() {
  WindowLayout layout;
  layout.ranks = 2;
  layout.channels = 2;
  layout.all_ranks = 1;
  executor::FifoShape& simple = layout.shapes[static_cast<std::size_t>(Protocol::kSimple)];
  simple.headers = 2 * kWindowSlots;
  simple.slots = kWindowSlots;
  simple.slot_bytes = 4096;
  executor::FifoShape& ll = layout.shapes[static_cast<std::size_t>(Protocol::kLl)];
  ll.headers = ll.slots = executor::kFlaggedSlots;
  ll.slot_bytes = link::kFlaggedSlotBytes;
  layout.shapes[static_cast<std::size_t>(Protocol::kLl128)] = ll;
  layout.shapes[static_cast<std::size_t>(Protocol::kLl128)].slot_bytes = 0;
  return layout;
}

Config config_of(const char* net) {
  Config config = bootstrap::quiet_config();
  config.set("NET", net, "test");
  config.set("SISCI_LIBRARY", RW_SOFTWARE_SISCI, "test");
  return config;
}

// A rank with its links, as cuda/cuda_group.h has them.
class MappedHost final : public testing::BlockHost {
 public:
  MappedHost(bootstrap::Bootstrap& bootstrap, const WindowKind& kind)
      : rank_(bootstrap.rank()),
        protocol_(kind.protocol),
        layout_(pair_layout()),
        windows_(bootstrap, transport::make_window_drivers(config_of(kind.net)),
                 hosts(bootstrap.size()), layout_.bytes(), bootstrap::soon()),
        unused_board_(static_cast<std::size_t>(bootstrap.size()) * executor::kBoardTags) {
    for (int r = 0; r < bootstrap.size(); ++r) {
      const bool far = windows_.between(r);
      boards_.push_back(far ? board(windows_.theirs(r)) : nullptr);
      far_boards_.push_back(far ? board(windows_.own(r)) : nullptr);
    }
    windows_.watch([this] { std::atomic_ref(control_.abort).store(1); });
  }
  executor::SendEnd send_end(int channel, int peer) override {
    executor::SendEnd end = sides(peer).send_end(protocol_, channel, peer);
    end.kept = &sent_[{channel, peer}];
    return end;
  }
  executor::ReceiveEnd receive_end(int channel, int peer) override {
    executor::ReceiveEnd end = sides(peer).receive_end(protocol_, channel, peer);
    end.kept = &received_[{channel, peer}];
    return end;
  }
  Control& control() override { return control_; }
  void lend_tags(executor::LaunchLinks& links) override {
    links.board = unused_board_.data();
    links.boards = boards_.data();
    links.far_boards = far_boards_.data();
  }
  MappedWindows& windows() { return windows_; }

 private:
  static std::vector<int> hosts(int size) {
    std::vector<int> own(static_cast<std::size_t>(size));
    std::iota(own.begin(), own.end(), 0);
    return own;
  }
  [[nodiscard]] CallTag* board(std::byte* window) const {
    return reinterpret_cast<CallTag*>(window + layout_.board_offset(0));
  }
  [[nodiscard]] link::WindowSides sides(int peer) const {
    const int own = rank_ < peer ? 0 : 1;
    return {layout_, windows_.own(peer), windows_.theirs(peer), own, 1 - own};
  }

  int rank_;
  Protocol protocol_;
  WindowLayout layout_;
  Control control_;
  MappedWindows windows_;
  std::vector<CallTag> unused_board_;
  std::vector<CallTag*> boards_;
  std::vector<const CallTag*> far_boards_;
  std::map<std::pair<int, int>, executor::SendCounters> sent_;
  std::map<std::pair<int, int>, executor::ReceiveCounters> received_;
};

class MappedBlocks : public ::testing::TestWithParam<WindowKind> {};

TEST_P(MappedBlocks, RunSchedulesOneAfterAnotherInTheSameWindows) {
  for (const char* algorithm : {"ring", "binary_tree", "two_shot"}) {
    Case test;
    test.schedule = schedule::compile(algorithm, {Collective::kAllReduce, 3, 0, 2});
    test.protocol = GetParam().protocol;
    test.count = 30'000;
    test.chunk = test.protocol == Protocol::kSimple ? 1000 : 400;
    const schedule::TestPattern pattern(Collective::kAllReduce, test.type, test.op, 3, 0,
                                        test.count);
    run_ranks(3, [&](bootstrap::Bootstrap& bootstrap) {
      MappedHost host(bootstrap, GetParam());
      ASSERT_TRUE(host.windows().complete());
      EXPECT_EQ(host.windows().name(), GetParam().net);
      testing::BlockLaunch launch(test, bootstrap.rank(), host, kWindowSlots);
      testing::expect_right_calls(launch, pattern, bootstrap.rank(), test.count, 3, algorithm);
      host.windows().stop_watching();
      bootstrap.barrier(bootstrap::soon());
      EXPECT_FALSE(host.windows().lost().has_value());
    });
  }
}

// Ranks with different calls: each finds the other's tag in its own window.
TEST_P(MappedBlocks, TellAPeerThatWasCalledOtherwise) {
  Case test;
  // Each waits for the other, whatever the calls are.
  test.schedule = schedule::compile("ring", {Collective::kAllReduce, 2, 0, 1});
  test.protocol = GetParam().protocol;
  test.count = 64;
  run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    MappedHost host(bootstrap, GetParam());
    testing::BlockLaunch launch(test, bootstrap.rank(), host, kWindowSlots);
    std::vector<float> data(2 * test.count);
    launch.use(data.data(), data.data() + test.count);
    launch.args.call.tag.root = static_cast<std::uint16_t>(bootstrap.rank());
    launch.args.call.tag.count = test.count;
    launch.args.call.tag.call = 1;
    // Rank 1 leaves its tag and no data, so that rank 0 must wait.
    if (bootstrap.rank() == 1) {
      std::atomic_ref(host.control().abort).store(1);
      launch.run();
    } else {
      launch.run();
      EXPECT_EQ(host.control().stop.reason, static_cast<std::uint32_t>(StopReason::kMismatch));
      EXPECT_EQ(host.control().stop.peer, 1);
    }
    bootstrap.barrier(bootstrap::soon());
  });
}

// A block that waits for a host that is gone ends at once, and the rank is named.
TEST_P(MappedBlocks, EndWhenAPeerIsGone) {
  Case test;
  test.schedule = schedule::compile("ring", {Collective::kAllReduce, 2, 0, 1});
  test.protocol = GetParam().protocol;
  test.count = 64;
  run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    auto host = std::make_unique<MappedHost>(bootstrap, GetParam());
    bootstrap.barrier(bootstrap::soon());
    if (bootstrap.rank() == 1) {
      host.reset();
    } else {
      testing::BlockLaunch launch(test, bootstrap.rank(), *host, kWindowSlots);
      std::vector<float> data(2 * test.count);
      launch.use(data.data(), data.data() + test.count);
      launch.run();
      const std::optional<Error> lost = host->windows().lost();
      ASSERT_TRUE(lost.has_value());
      EXPECT_EQ(lost->code(), Errc::kPeerLost);
      EXPECT_NE(std::string(lost->what()).find("lost rank 1 over " + std::string(GetParam().net)),
                std::string::npos)
          << lost->what();
    }
    bootstrap.barrier(bootstrap::soon());
  });
}

INSTANTIATE_TEST_SUITE_P(
    Over, MappedBlocks,
    ::testing::Values(WindowKind{"shm", Protocol::kSimple}, WindowKind{"shm", Protocol::kLl},
                      WindowKind{"sisci", Protocol::kSimple}, WindowKind{"sisci", Protocol::kLl}),
    [](const auto& test) {
      return std::string(test.param.net) + (test.param.protocol == Protocol::kLl ? "_ll" : "");
    });

}  // namespace
}  // namespace ropewalk::comm
