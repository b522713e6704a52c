// Ranks that die or stop at any moment: every survivor ends with an error that names them.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "core/testing/share.h"
#include "processes/rank_processes.h"
#include "processes/shared_memory_names.h"

namespace ropewalk::testing {
namespace {

using std::chrono::milliseconds;

// Collectives of many kinds and sizes without end.
std::string work_until_it_breaks(comm::Communicator& comm) {
  std::vector<float> in(300'000, 1.0F);
  std::vector<float> out(300'000 * static_cast<std::size_t>(comm.size()));
  // The same on every rank, since their calls must match.
  std::minstd_rand random(7);
  while (true) {
    comm::CollectiveCall call;
    call.collective = static_cast<Collective>(random() % kNumCollectives);
    const std::size_t sizes[] = {1, 100, 20'000, 300'000 / static_cast<std::size_t>(comm.size())};
    call.count = sizes[random() % 4];
    call.root = static_cast<int>(random() % static_cast<unsigned>(comm.size()));
    call.input = in.data();
    call.output = out.data();
    comm.run(call);
  }
}

unsigned seed() {
  const char* given = std::getenv("RW_TEST_SEED");
  const unsigned value =
      given != nullptr ? static_cast<unsigned>(std::atoi(given)) : std::random_device{}();
  std::printf("RW_TEST_SEED=%u repeats this run\n", value);
  return value;
}

void kill_at_random_moments(int times, const RankOptions& options, std::mt19937& random) {
  const std::set<std::string> before = shared_memory_names();
  std::vector<double> delays_ms;
  const int turns = std::max(1, times / share());
  // If a rank is killed before it has joined, the others notice it only at the deadline; such runs
  // say nothing about the time to detect a death.
  for (int turn = 0; turn < turns || (delays_ms.empty() && turn < turns + 20); ++turn) {
    const int size = 2 + static_cast<int>(random() % 3);
    const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
    // Joining takes a few milliseconds: some kills come before it, some within, most after.
    const auto moment = std::chrono::microseconds(random() % 60'000);
    RankProcesses ranks(size, options, work_until_it_breaks);
    std::this_thread::sleep_for(moment);
    const auto killed = std::chrono::steady_clock::now();
    ranks.signal(victim, SIGKILL);
    for (int r = 0; r < size; ++r) {
      if (r == victim) continue;
      const std::optional<Report> report = ranks.wait(r, milliseconds(30'000));
      ASSERT_TRUE(report.has_value())
          << "turn " << turn << ": rank " << r << " of " << size << " hangs; rank " << victim
          << " was killed after " << moment.count() << " us";
      EXPECT_TRUE(report->error);
      // Before all know each other's addresses, rank 0 is only "who made the unique id".
      const bool named = report->text.find(fmt::format("rank {}", victim)) != std::string::npos ||
                         (victim == 0 && report->text.find("unique id") != std::string::npos);
      EXPECT_TRUE(named) << "turn " << turn << ", rank " << r << ", killed " << victim << ": "
                         << report->text;
      if (report->code != Errc::kTimeout) {
        const std::chrono::duration<double, std::milli> delay = report->when - killed;
        delays_ms.push_back(delay.count());
        if (delay > milliseconds(1000)) {
          std::printf("turn %d, rank %d of %d, killed %d: %.0f ms: %s\n", turn, r, size, victim,
                      delay.count(), report->text.c_str());
        }
      }
    }
  }
  std::sort(delays_ms.begin(), delays_ms.end());
  ASSERT_FALSE(delays_ms.empty());
  std::printf("from kill to error on %zu survivors: median %.1f ms, largest %.1f ms\n",
              delays_ms.size(), delays_ms[delays_ms.size() / 2], delays_ms.back());
  EXPECT_EQ(new_shared_memory_names(before), std::set<std::string>{});
}

TEST(Faults, KilledAtRandomMomentsOverSharedMemory) {
  std::mt19937 random(seed());
  RankOptions options;
  options.settings = {{"TIMEOUT", "3"}};
  kill_at_random_moments(150, options, random);
}

TEST(Faults, KilledAtRandomMomentsWithoutSingleCopy) {
  std::mt19937 random(seed());
  RankOptions options;
  options.settings = {{"TIMEOUT", "3"}, {"SINGLE_COPY", "off"}, {"SHM_BACKING", "dev_shm"}};
  kill_at_random_moments(30, options, random);
}

TEST(Faults, KilledAtRandomMomentsOverTheNetwork) {
  std::mt19937 random(seed());
  RankOptions options;
  options.settings = {{"TIMEOUT", "3"}, {"LINKS", "network"}, {"SOCKET_IFNAME", "lo"}};
  kill_at_random_moments(30, options, random);
}

TEST(Faults, StoppedRankIsNamedAtTheDeadline) {
  RankOptions options;
  options.settings = {{"TIMEOUT", "3"}};
  RankProcesses ranks(3, options, work_until_it_breaks);
  std::this_thread::sleep_for(milliseconds(300));
  ranks.signal(1, SIGSTOP);
  for (const int r : {0, 2}) {
    const std::optional<Report> report = ranks.wait(r, milliseconds(60'000));
    ASSERT_TRUE(report.has_value()) << "rank " << r << " hangs";
    EXPECT_TRUE(report->error);
    EXPECT_NE(report->text.find("rank 1"), std::string::npos) << report->text;
  }
  ranks.signal(1, SIGCONT);
}

TEST(Faults, StoppedAndContinuedGoesOn) {
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"}};
  RankProcesses ranks(2, options, [](comm::Communicator& comm) {
    std::vector<float> data(1000, 1.0F);
    const auto end = std::chrono::steady_clock::now() + milliseconds(4000);
    // Rank 0 says when to stop, so that both do the same number of calls.
    for (float more = 1; more > 0;) {
      more = comm.rank() == 0 && std::chrono::steady_clock::now() < end ? 1.0F : 0.0F;
      comm::CollectiveCall call;
      call.input = &more;
      call.output = &more;
      call.count = 1;
      comm.run(call);
    }
    return std::string("done");
  });
  std::this_thread::sleep_for(milliseconds(300));
  ranks.signal(1, SIGSTOP);
  std::this_thread::sleep_for(milliseconds(2500));  // longer than PEER_LOSS_TIME
  ranks.signal(1, SIGCONT);
  for (const int r : {0, 1}) {
    const std::optional<Report> report = ranks.wait(r, milliseconds(60'000));
    ASSERT_TRUE(report.has_value());
    EXPECT_FALSE(report->error) << report->text;
    EXPECT_EQ(report->text, "done");
  }
}

}  // namespace
}  // namespace ropewalk::testing
