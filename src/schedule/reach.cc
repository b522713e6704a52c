#include "schedule/reach.h"

#include <cstdint>
#include <map>
#include <span>

#include "schedule/layout.h"
#include "schedule/replay.h"

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

// Adds to the sets in `heard`, by rank, what each hears of in one round of a channel. A message is
// the set of ranks that its receiver hears of by it.
void add_heard(const Schedule& schedule, std::size_t channel, const std::vector<bool>& empty_parts,
               std::vector<RankSet>& heard) {
  std::vector<std::map<int, RankSet>> by_block(heard.size());  // of each rank, with itself
  replay<RankSet>(
      schedule, channel,
      [&](const Step& step) {
        return empty_parts[static_cast<std::size_t>(step.block % schedule.parts)];
      },
      [&](int rank, const Step& step, std::span<const RankSet> received, const auto& send) {
        const auto r = static_cast<std::size_t>(rank);
        const auto [found, fresh] = by_block[r].try_emplace(step.block, heard.size());
        RankSet& of_block = found->second;
        if (fresh) of_block.add(r);
        for (const RankSet& message : received) {
          of_block.add(message);
          heard[r].add(message);
        }
        for (const int to : step.send) send(to, of_block);
      });
}

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
    add_heard(schedule, static_cast<std::size_t>(c), empty, heard);
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
