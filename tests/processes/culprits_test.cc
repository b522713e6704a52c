// A rank that sleeps, dies, or calls another operation, at a random step of a random program: all
// others end with an error that names it.
//
// RW_TEST_SEED: the first seed; RW_CULPRIT_TRIALS: how many seeds (1,000 by hand).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "core/testing/share.h"
#include "processes/rank_processes.h"

namespace ropewalk::testing {
namespace {

using std::chrono::milliseconds;

enum class Deed { kSleeps, kStops, kDies, kCallsAnother };
constexpr Deed kDeeds[] = {Deed::kSleeps, Deed::kStops, Deed::kDies, Deed::kCallsAnother};

const char* name(Deed deed) {
  switch (deed) {
    case Deed::kSleeps: return "sleeps";
    case Deed::kStops: return "is stopped";
    case Deed::kDies: return "dies";
    case Deed::kCallsAnother: return "calls another operation";
  }
  return "?";
}

struct Trial {
  unsigned seed = 0;
  int ranks = 2;
  int culprit = 0;
  int step = 0;
  Deed deed = Deed::kSleeps;
  bool network = false;
};

Trial trial_of(unsigned seed) {
  std::mt19937 random(seed);
  Trial trial;
  trial.seed = seed;
  trial.ranks = 2 + static_cast<int>(random() % 4);
  trial.culprit = static_cast<int>(random() % static_cast<unsigned>(trial.ranks));
  trial.step = static_cast<int>(random() % 40);
  trial.deed = kDeeds[random() % 4];
  trial.network = random() % 4 == 0;
  return trial;
}

constexpr std::size_t kMost = 40'000;

// Step `step` of the program of `seed`: the same on all ranks. All-to-all collectives alone, since
// a root that only sends may be calls ahead of a rank that is missing, and end in another one.
comm::CollectiveCall step_of(std::minstd_rand& random, std::vector<float>& in,
                             std::vector<float>& out) {
  constexpr Collective kAll[] = {Collective::kAllReduce, Collective::kAllGather,
                                 Collective::kReduceScatter, Collective::kAllToAll};
  comm::CollectiveCall call;
  call.collective = kAll[random() % 4];
  const std::size_t sizes[] = {1, 100, 5'000, kMost};
  call.count = sizes[random() % 4];
  call.input = in.data();
  call.output = out.data();
  return call;
}

std::string program(comm::Communicator& comm, const Trial& trial) {
  const auto most = kMost * static_cast<std::size_t>(comm.size());
  std::vector<float> in(most, 1.0F);
  std::vector<float> out(most);
  std::minstd_rand random(trial.seed + 1);
  for (int step = 0; step < trial.step + 20; ++step) {
    comm::CollectiveCall call = step_of(random, in, out);
    if (comm.rank() == trial.culprit && step == trial.step) {
      switch (trial.deed) {
        case Deed::kSleeps: std::this_thread::sleep_for(std::chrono::minutes(5)); break;
        case Deed::kStops: raise(SIGSTOP); break;
        case Deed::kDies: raise(SIGKILL); break;
        case Deed::kCallsAnother: call.count += 1; break;
      }
    }
    comm.run(call);
  }
  return "done";
}

// Whether `text` blames the culprit: "rank N" as a whole word.
bool names(const std::string& text, int rank) {
  const std::string wanted = fmt::format("rank {}", rank);
  for (std::size_t at = text.find(wanted); at != std::string::npos;
       at = text.find(wanted, at + 1)) {
    const std::size_t end = at + wanted.size();
    if (end == text.size() || std::isdigit(static_cast<unsigned char>(text[end])) == 0) return true;
  }
  return false;
}

// Whether `text` blames another rank: none but the culprit is missing, dead or different.
std::optional<int> blames_another(const std::string& text, const Trial& trial) {
  for (int rank = 0; rank < trial.ranks; ++rank) {
    if (rank == trial.culprit) continue;
    for (const char* words : {"rank {} has not entered", "rank {} does not respond", "rank {} died",
                              "rank {} was lost", "lost rank {}"}) {
      if (text.find(fmt::format(fmt::runtime(words), rank)) != std::string::npos) return rank;
    }
  }
  return std::nullopt;
}

void run(const Trial& trial) {
  SCOPED_TRACE(fmt::format("RW_TEST_SEED={}: of {} ranks {} {} at step {}{}", trial.seed,
                           trial.ranks, trial.culprit, name(trial.deed), trial.step,
                           trial.network ? ", over the network" : ""));
  RankOptions options;
  options.settings = {{"TIMEOUT", "500ms"}};
  if (trial.network) {
    options.settings.insert(options.settings.end(),
                            {{"LINKS", "network"}, {"SOCKET_IFNAME", "lo"}});
  }
  RankProcesses ranks(trial.ranks, options,
                      [&](comm::Communicator& comm) { return program(comm, trial); });
  for (int rank = 0; rank < trial.ranks; ++rank) {
    if (rank == trial.culprit) continue;
    const std::optional<Report> report = ranks.wait(rank, milliseconds(30'000));
    ASSERT_TRUE(report.has_value()) << "rank " << rank << " hangs";
    EXPECT_TRUE(report->error) << "rank " << rank << ": " << report->text;
    EXPECT_TRUE(names(report->text, trial.culprit)) << "rank " << rank << ": " << report->text;
    const std::optional<int> other = blames_another(report->text, trial);
    EXPECT_FALSE(other.has_value()) << "rank " << rank << ": " << report->text;
    if (trial.deed == Deed::kSleeps || trial.deed == Deed::kStops) {
      const std::string wanted =
          fmt::format("rank {} {}", trial.culprit,
                      trial.deed == Deed::kSleeps ? "has not entered" : "does not respond");
      // A process that is stopped at once may stop others that still join through it.
      const std::string joining = fmt::format("rank {} did not answer in time", trial.culprit);
      const bool told = report->text.find(wanted) != std::string::npos ||
                        (trial.deed == Deed::kStops && trial.step == 0 &&
                         report->text.find(joining) != std::string::npos);
      EXPECT_TRUE(told) << "rank " << rank << ": " << report->text;
    }
  }
}

unsigned number(const char* variable, unsigned otherwise) {
  const char* given = std::getenv(variable);
  return given == nullptr ? otherwise : static_cast<unsigned>(std::strtoul(given, nullptr, 10));
}

TEST(Culprits, AreNamedByAllOthers) {
  const unsigned first = number("RW_TEST_SEED", 1);
  const unsigned trials =
      number("RW_CULPRIT_TRIALS", std::max(8U, 24U / static_cast<unsigned>(share())));
  int counts[std::size(kDeeds)] = {};
  for (unsigned seed = first; seed < first + trials; ++seed) {
    const Trial trial = trial_of(seed);
    run(trial);
    if (::testing::Test::HasFatalFailure()) return;
    ++counts[static_cast<std::size_t>(trial.deed)];
  }
  for (std::size_t i = 0; i < std::size(kDeeds); ++i) {
    std::printf("%4d times a rank %s\n", counts[i], name(kDeeds[i]));
  }
}

}  // namespace
}  // namespace ropewalk::testing
