#include "schedule/reach.h"

#include <cstdint>
#include <deque>
#include <map>
#include <utility>

#include "core/error.h"
#include "schedule/layout.h"

namespace ropewalk::schedule {
namespace {

/// A set of ranks.
class RankSet {
 public:
  RankSet() = default;
  explicit RankSet(std::size_t num_ranks) : words_((num_ranks + kBits - 1) / kBits) {}
  void add(std::size_t rank) { words_[rank / kBits] |= std::uint64_t{1} << rank % kBits; }
  void add(const RankSet& others) {
    for (std::size_t i = 0; i < words_.size(); ++i) words_[i] |= others.words_[i];
  }
  [[nodiscard]] bool has(std::size_t rank) const {
    return (words_[rank / kBits] >> rank % kBits & 1U) != 0;
  }

 private:
  static constexpr std::size_t kBits = 64;
  std::vector<std::uint64_t> words_;
};

/// Runs one round of a channel. Links hold any number of chunks, each of which is the set of ranks
/// that its receiver hears of by it.
class ReachRun {
 public:
  ReachRun(const Schedule& schedule, std::size_t channel, const std::vector<bool>& empty_parts,
           std::vector<RankSet>& heard)
      : schedule_(schedule),
        channel_(channel),
        empty_parts_(empty_parts),
        heard_(heard),
        at_(schedule.programs.size()),
        heard_by_block_(schedule.programs.size()) {}

  void run() {
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t r = 0; r < at_.size(); ++r) moved |= advance(r);
    }
    for (std::size_t r = 0; r < at_.size(); ++r) RW_ASSERT(at_[r] == steps(r).size());
  }

 private:
  [[nodiscard]] const StepList& steps(std::size_t rank) const {
    return schedule_.programs[rank][channel_];
  }
  bool advance(std::size_t rank) {
    const std::size_t before = at_[rank];
    while (at_[rank] < steps(rank).size() && take(rank, steps(rank)[at_[rank]])) ++at_[rank];
    return at_[rank] != before;
  }
  /// @return false while chunks are missing
  bool take(std::size_t rank, const Step& step) {
    if (empty_parts_[static_cast<std::size_t>(step.block % schedule_.parts)]) return true;
    for (const Operand& operand : step.operands) {
      if (operand.kind == Operand::Kind::kLink && links_[{operand.peer, rank}].empty())
        return false;
    }
    const auto [found, fresh] =
        heard_by_block_[rank].try_emplace(step.block, schedule_.programs.size());
    RankSet& heard = found->second;
    if (fresh) heard.add(rank);
    for (const Operand& operand : step.operands) {
      if (operand.kind != Operand::Kind::kLink) continue;
      std::deque<RankSet>& link = links_[{operand.peer, rank}];
      heard.add(link.front());
      heard_[rank].add(link.front());
      link.pop_front();
    }
    for (const int to : step.send) {
      links_[{static_cast<int>(rank), static_cast<std::size_t>(to)}].push_back(heard);
    }
    return true;
  }

  const Schedule& schedule_;
  const std::size_t channel_;
  const std::vector<bool>& empty_parts_;
  std::vector<RankSet>& heard_;
  std::vector<std::size_t> at_;                                       // the next step of each rank
  std::vector<std::map<int, RankSet>> heard_by_block_;                // of each rank, with itself
  std::map<std::pair<int, std::size_t>, std::deque<RankSet>> links_;  // by sender and receiver
};

}  // namespace

std::vector<int> heard_by_all(const Schedule& schedule, std::size_t count, std::size_t granule) {
  const auto num_ranks = static_cast<std::size_t>(schedule.num_ranks);
  std::vector<RankSet> heard(num_ranks, RankSet(num_ranks));
  for (std::size_t r = 0; r < num_ranks; ++r) heard[r].add(r);
  for (int c = 0; c < schedule.num_channels(); ++c) {
    const Range range =
        channel_range(count, schedule.weight.data(), schedule.num_channels(), c, granule);
    std::vector<bool> empty(static_cast<std::size_t>(schedule.parts));
    for (int part = 0; part < schedule.parts; ++part) {
      empty[static_cast<std::size_t>(part)] =
          part_range(range, schedule.parts, part, granule).count == 0;
    }
    ReachRun(schedule, static_cast<std::size_t>(c), empty, heard).run();
  }
  std::vector<int> ranks;
  for (std::size_t of = 0; of < num_ranks; ++of) {
    bool all = true;
    for (const RankSet& set : heard) all = all && set.has(of);
    if (all) ranks.push_back(static_cast<int>(of));
  }
  return ranks;
}

}  // namespace ropewalk::schedule
