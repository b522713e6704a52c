// Thousands of schedules with one random defect each. A run on numbers (testing/reference_run.h)
// says whether the defect has a wrong effect; the checker must refuse every one that has.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/testing/share.h"
#include "schedule/check.h"
#include "schedule/compile.h"
#include "schedule/layout.h"
#include "schedule/testing/hosts.h"
#include "schedule/testing/reference_run.h"
#include "schedule/text.h"

namespace ropewalk::schedule {
namespace {

class Mutator {
 public:
  explicit Mutator(std::uint64_t seed) : random_(seed) {}

  int below(int bound) { return static_cast<int>(random_() % static_cast<std::uint64_t>(bound)); }

  Request request(const Algorithm& algorithm) {
    for (;;) {
      Request request;
      request.collective = static_cast<Collective>(below(kNumCollectives));
      request.num_ranks = 1 + below(6);
      request.root = has_root(request.collective) ? below(request.num_ranks) : 0;
      request.channels = 1 + below(2);
      if (!algorithm.needs.empty()) {
        const std::vector<std::vector<int>> hosts = testing::all_equal_hosts(request.num_ranks);
        if (hosts.empty()) continue;
        request.host_of_rank =
            hosts[static_cast<std::size_t>(below(static_cast<int>(hosts.size())))];
      }
      if (algorithm.supports(request)) return request;
    }
  }

  /// One defect; returns its kind. May happen to change nothing.
  std::string spoil(Schedule& s) {
    StepList& list = random_list(s);
    if (list.empty()) return "nothing";
    const auto at = static_cast<std::ptrdiff_t>(below(static_cast<int>(list.size())));
    Step& step = list[static_cast<std::size_t>(at)];
    switch (below(20)) {
      case 0: list.erase(list.begin() + at); return "drop a step";
      case 1: {
        const Step copy = step;
        list.insert(list.begin() + below(static_cast<int>(list.size()) + 1), copy);
        return "duplicate a step";
      }
      case 2:
        std::swap(step, list[static_cast<std::size_t>(below(static_cast<int>(list.size())))]);
        return "swap two steps";
      case 3: {
        const Step moved = step;
        list.erase(list.begin() + at);
        list.insert(list.begin() + below(static_cast<int>(list.size()) + 1), moved);
        return "move a step";
      }
      case 4:
        step.block = below(num_units(s.collective, s.num_ranks) * s.parts + 1) - (below(20) == 0);
        return "change a block";
      case 5: random_operand(step) = operand(s); return "change an operand";
      case 6:
        step.operands.erase(step.operands.begin() + below(static_cast<int>(step.operands.size())));
        return "drop an operand";
      case 7:
        step.operands.insert(
            step.operands.begin() + below(static_cast<int>(step.operands.size()) + 1), operand(s));
        return "add an operand";
      case 8:
        std::shuffle(step.operands.begin(), step.operands.end(), random_);
        return "reorder operands";
      case 9: step.write_output = !step.write_output; return "toggle writing";
      case 10: step.finished = !step.finished; return "toggle finished";
      case 11:
        if (step.send.empty()) return "nothing";
        step.send.erase(step.send.begin() + below(static_cast<int>(step.send.size())));
        return "drop a send";
      case 12: step.send.push_back(peer(s)); return "add a send";
      case 13:
        if (step.send.empty()) return "nothing";
        step.send[static_cast<std::size_t>(below(static_cast<int>(step.send.size())))] = peer(s);
        return "change a send";
      case 14: s.root = below(s.num_ranks + 1); return "change the root";
      case 15: s.parts += below(2) == 0 ? 1 : -1; return "change the parts";
      case 16:
        s.weight[static_cast<std::size_t>(below(s.num_channels()))] = below(4);
        return "change a weight";
      case 17: std::swap(list, random_list(s)); return "swap two step lists";
      case 18:
        s.collective = static_cast<Collective>(below(kNumCollectives));
        return "change the collective";
      default: {
        Step& other = list[static_cast<std::size_t>(below(static_cast<int>(list.size())))];
        std::swap(step.block, other.block);
        return "swap two blocks";
      }
    }
  }

 private:
  StepList& random_list(Schedule& s) {
    auto& strands = s.programs[static_cast<std::size_t>(below(s.num_ranks))];
    return strands[static_cast<std::size_t>(below(static_cast<int>(strands.size())))];
  }
  Operand& random_operand(Step& step) {
    return step.operands[static_cast<std::size_t>(below(static_cast<int>(step.operands.size())))];
  }
  int peer(const Schedule& s) { return below(s.num_ranks + (below(20) == 0)); }
  Operand operand(const Schedule& s) {
    switch (below(4)) {
      case 0: return Operand::input();
      case 1: return Operand::output();
      default: return Operand::link(peer(s));
    }
  }

  std::mt19937_64 random_;
};

bool runnable(const Schedule& s) {
  if (s.parts < 1 || s.root >= s.num_ranks) return false;
  for (const int weight : s.weight) {
    if (weight < 1) return false;
  }
  return true;
}

/// The error in any of several runs with other contents and orders of progress, on FIFOs of 2
/// chunks.
std::optional<std::string> effect(const Schedule& s, std::uint64_t seed,
                                  std::span<const std::size_t> counts, bool in_place,
                                  const CheckReport* direct) {
  if (!runnable(s)) return "not runnable";
  for (const std::size_t count : counts) {
    testing::RunOptions options;
    options.count = count;
    options.chunk = 1 + (seed + count) % 3;
    options.seed = seed * 31 + count;
    options.in_place = in_place;
    options.direct = direct;
    if (auto wrong = testing::wrong_effect(s, options)) return wrong;
  }
  return std::nullopt;
}

/// Most parts empty, all of one element, several rounds with a rest.
std::vector<std::size_t> few_counts(const Schedule& s) {
  const auto parts = static_cast<std::size_t>(std::max(1, s.parts) * s.num_channels());
  return {1, parts, 3 * parts + 1, 5 * parts};
}

/// Every number of empty parts: tells blocks apart that have equal lengths for most counts.
std::vector<std::size_t> many_counts(const Schedule& s) {
  const auto parts = static_cast<std::size_t>(std::max(1, s.parts) * s.num_channels());
  std::vector<std::size_t> counts;
  for (std::size_t count = 1; count <= 2 * parts; ++count) counts.push_back(count);
  return counts;
}

/// The first defect's text after the step that it names.
std::string reason(const CheckReport& report) {
  std::string text = report.defects.front();
  if (const auto after = text.find("): "); after != std::string::npos)
    text = text.substr(after + 3);
  for (char& c : text) {
    if (c >= '0' && c <= '9') c = 'N';
  }
  return text.substr(0, 60);
}

TEST(Mutation, TheCheckerRefusesEveryDefectWithAWrongEffect) {
  const int num_mutants = 10000 / ropewalk::testing::share();
  int mutants = 0;
  int wrong = 0;
  int harmless_refused = 0;
  std::map<std::string, int> why_refused;
  std::map<std::string, std::pair<int, int>> kinds;  // all, wrong
  for (std::uint64_t seed = 1; mutants < num_mutants; ++seed) {
    Mutator mutator(seed);
    const auto all = algorithms();
    const Algorithm& algorithm =
        all[static_cast<std::size_t>(mutator.below(static_cast<int>(all.size())))];
    const Request request = mutator.request(algorithm);
    const Schedule sound = compile(algorithm.name, request);
    Schedule mutant = sound;
    const std::string kind = mutator.spoil(mutant);
    if (mutant == sound) continue;
    ++mutants;
    ++kinds[kind].first;
    SCOPED_TRACE(fmt::format("seed {}: {}", seed, kind));
    ASSERT_TRUE(check(sound, 2).accepted);

    const CheckReport report = check(mutant, 2);
    auto seen = effect(mutant, seed, few_counts(mutant), false, nullptr);
    if (!seen) seen = effect(mutant, seed + 1, many_counts(mutant), false, nullptr);
    if (seen) {
      ++wrong;
      ++kinds[kind].second;
      ASSERT_FALSE(report.accepted) << *seen << "\n" << print(mutant);
      continue;
    }
    if (!report.accepted) {
      ++harmless_refused;
      ++why_refused[kind + " | " + reason(report)];
      continue;
    }
    // An accepted schedule must also be correct with published buffers, and in place if allowed.
    const auto direct = effect(mutant, seed + 2, few_counts(mutant), false, &report);
    ASSERT_FALSE(direct) << "direct: " << *direct << "\n" << print(mutant);
    if (report.in_place) {
      const auto in_place = effect(mutant, seed + 3, few_counts(mutant), true, &report);
      ASSERT_FALSE(in_place) << "in place: " << *in_place << "\n" << print(mutant);
    }
  }
  fmt::print("{} mutants: {} wrong, all refused; {} harmless, of which {} refused\n", mutants,
             wrong, mutants - wrong, harmless_refused);
  for (const auto& [kind, counts] : kinds) {
    fmt::print("  {}: {} of {} wrong\n", kind, counts.second, counts.first);
  }
  // What is refused without a wrong effect says something that its collective has no meaning for:
  // a mark where nothing is reduced, a root where there is none; or names a wrong block where a
  // rank only hands chunks of equal length on.
  for (const auto& [why, times] : why_refused) fmt::print("  harmless: {} x {}\n", times, why);
  // The test itself must bite: most defects matter, and some do not.
  EXPECT_GT(wrong, num_mutants / 2);
  EXPECT_GT(mutants - wrong, num_mutants / 50);
}

}  // namespace
}  // namespace ropewalk::schedule
