// For tests: runs a schedule on numbers, in a random order of progress, and compares the result
// with the collective's definition. Written from schedule.h and layout.h alone, so that it judges
// the checker without sharing its reasoning.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "schedule/check.h"
#include "schedule/layout.h"
#include "schedule/schedule.h"

namespace ropewalk::schedule::testing {

struct RunOptions {
  std::size_t count = 1;
  std::size_t chunk = 1;    ///< elements of a block that one round moves
  std::size_t granule = 1;  ///< of part and channel boundaries
  std::size_t slots = 2;
  bool in_place = false;
  std::uint64_t seed = 0;
  const CheckReport* direct = nullptr;  ///< publish buffers as its flags allow, instead of copying
  /// Rounds by which steps lag: [channel][rank][step]. Empty: none does.
  std::vector<std::vector<std::vector<std::uint32_t>>> lags;
};

/// Integers modulo 2^64. Inputs of reductions are multiplied by a factor of their rank as they are
/// read, finished values by another one: so a missing, doubled or misplaced contribution or mark
/// changes the result.
class ReferenceRun {
 public:
  ReferenceRun(const Schedule& schedule, const RunOptions& options)
      : s_(schedule), o_(options), random_(options.seed) {}

  /// Empty on success, else the error.
  std::optional<std::string> wrong() {
    fill();
    start_strands();
    while (!strands_.empty()) {
      if (!sweep()) return "deadlock: " + stuck();
      if (!illegal_.empty()) return illegal_;
    }
    for (const auto& [key, fifo] : fifos_) {
      if (!fifo.empty()) {
        return fmt::format("{} chunks left from {} to {}", fifo.size(), key >> kBits & kMask,
                           key & kMask);
      }
    }
    return wrong_output();
  }

 private:
  using Numbers = std::vector<std::uint64_t>;
  static constexpr std::uint64_t kFinish = 0x9E3779B97F4A7C15;
  // Of a rank in the key of a link, also of one that there is not.
  static constexpr std::size_t kBits = 21;
  static constexpr std::size_t kMask = (std::size_t{1} << kBits) - 1;

  struct Memory {
    Numbers all;  // input, then output; or both over each other
    std::size_t input = 0;
    std::size_t output = 0;
  };
  struct Chunk {
    Numbers data;
    const std::uint64_t* published = nullptr;
    std::uint64_t scale = 1;  // of the published buffers
    std::size_t count = 0;
    [[nodiscard]] std::uint64_t at(std::size_t i) const {
      return published != nullptr ? scale * published[i] : data[i];
    }
  };
  struct Strand {
    int rank = 0;
    int channel = 0;
    std::size_t turn = 0;  // a round where no step lags
    std::size_t step = 0;
  };

  std::size_t below(std::size_t bound) { return random_() % bound; }
  static std::size_t z(int n) { return static_cast<std::size_t>(n); }

  [[nodiscard]] std::uint64_t factor(int rank) const {
    return reduces(s_.collective) ? 2 * static_cast<std::uint64_t>(rank) + 3 : 1;
  }

  void fill() {
    for (int rank = 0; rank < s_.num_ranks; ++rank) {
      const std::size_t in = z(input_units(s_.collective, s_.num_ranks, s_.root, rank));
      const std::size_t out = z(output_units(s_.collective, s_.num_ranks, s_.root, rank));
      Memory& mine = memory_.emplace_back();
      const auto offset = in_place_input_offset(s_.collective, rank);
      if (o_.in_place && offset && in > 0 && out > 0) {
        mine.input = *offset >= 0 ? z(*offset) * o_.count : 0;
        mine.output = *offset >= 0 ? 0 : z(-*offset) * o_.count;
      } else {
        mine.output = in * o_.count;
      }
      mine.all.resize(std::max(mine.input + in * o_.count, mine.output + out * o_.count));
      for (std::uint64_t& number : mine.all) number = random_();
      Numbers& input = inputs_.emplace_back();
      for (std::size_t i = 0; i < in * o_.count; ++i) input.push_back(mine.all[mine.input + i]);
    }
  }

  [[nodiscard]] Range part(int channel, int part_number) const {
    const Range whole =
        channel_range(o_.count, s_.weight.data(), s_.num_channels(), channel, o_.granule);
    return part_range(whole, s_.parts, part_number, o_.granule);
  }

  /// The elements of the block's chunk in that round, within its unit.
  [[nodiscard]] Range chunk(int channel, int block, std::size_t round) const {
    const Range all = part(channel, block % s_.parts);
    const std::size_t skip = std::min(all.count, round * o_.chunk);
    return {all.begin + skip, std::min(o_.chunk, all.count - skip)};
  }

  void start_strands() {
    for (int rank = 0; rank < s_.num_ranks; ++rank) {
      for (int channel = 0; channel < s_.num_channels(); ++channel) {
        strands_.push_back({rank, channel, 0, 0});
      }
    }
    for (int channel = 0; channel < s_.num_channels(); ++channel) {
      std::size_t longest = 0;
      for (int p = 0; p < s_.parts; ++p) longest = std::max(longest, part(channel, p).count);
      rounds_.push_back((longest + o_.chunk - 1) / o_.chunk);
    }
  }

  /// Lets the strands run a little, in random order; false when none could.
  bool sweep() {
    std::shuffle(strands_.begin(), strands_.end(), random_);
    bool moved = false;
    for (Strand& strand : strands_) {
      for (std::size_t left = 1 + below(4); left > 0 && advance(strand); --left) moved = true;
    }
    const std::size_t before = strands_.size();
    std::erase_if(strands_, [&](const Strand& strand) { return done(strand); });
    return moved || strands_.size() < before;
  }

  [[nodiscard]] const StepList& steps_of(const Strand& strand) const {
    return s_.programs[z(strand.rank)][z(strand.channel)];
  }
  [[nodiscard]] bool done(const Strand& strand) const {
    return strand.turn >= rounds_[z(strand.channel)] + last_lag(strand) || steps_of(strand).empty();
  }
  [[nodiscard]] std::size_t lag(const Strand& strand, std::size_t step) const {
    return o_.lags.empty() ? 0 : o_.lags[z(strand.channel)][z(strand.rank)][step];
  }
  [[nodiscard]] std::size_t last_lag(const Strand& strand) const {
    std::size_t last = 0;
    for (std::size_t s = 0; s < steps_of(strand).size(); ++s) last = std::max(last, lag(strand, s));
    return last;
  }

  std::deque<Chunk>& fifo(int channel, int source, int destination) {
    return fifos_[(z(channel) << 2 * kBits) | (z(source) & kMask) << kBits |
                  (z(destination) & kMask)];
  }

  bool advance(Strand& strand) {
    if (done(strand) || !illegal_.empty()) return false;
    const Step& step = steps_of(strand)[strand.step];
    const int units = num_units(s_.collective, s_.num_ranks);
    if (step.block < 0 || step.block >= units * s_.parts) return refuse("no such block");
    const std::size_t lags = lag(strand, strand.step);
    const bool is_there = strand.turn >= lags && strand.turn - lags < rounds_[z(strand.channel)];
    const Range range = is_there ? chunk(strand.channel, step.block, strand.turn - lags) : Range{};
    if (range.count > 0) {
      for (const Operand& operand : step.operands) {
        if (operand.kind == Operand::Kind::kLink &&
            fifo(strand.channel, operand.peer, strand.rank).empty()) {
          return false;
        }
      }
      for (const int peer : step.send) {
        if (fifo(strand.channel, strand.rank, peer).size() >= o_.slots) return false;
      }
      run(strand, step, range);
    }
    if (++strand.step == steps_of(strand).size()) {
      strand.step = 0;
      ++strand.turn;
    }
    return true;
  }

  bool refuse(std::string why) {
    illegal_ = std::move(why);
    return false;
  }

  void run(const Strand& strand, const Step& step, const Range& range) {
    const int unit = step.block / s_.parts;
    Memory& mine = memory_[z(strand.rank)];
    const auto input = input_index(s_.collective, s_.num_ranks, s_.root, unit, strand.rank);
    const auto output = output_index(s_.collective, s_.num_ranks, s_.root, unit, strand.rank);
    std::uint64_t* const in =
        input ? mine.all.data() + mine.input + z(*input) * o_.count + range.begin : nullptr;
    std::uint64_t* const out =
        output ? mine.all.data() + mine.output + z(*output) * o_.count + range.begin : nullptr;

    Numbers sum(range.count, 0);
    for (const Operand& operand : step.operands) {
      Chunk chunk;
      if (operand.kind == Operand::Kind::kLink) {
        std::deque<Chunk>& link = fifo(strand.channel, operand.peer, strand.rank);
        if (link.empty()) return void(refuse("two chunks of one link in one step"));
        chunk = std::move(link.front());
        link.pop_front();
        if (chunk.count != range.count) return void(refuse("chunk of another size"));
      } else {
        chunk.published = operand.kind == Operand::Kind::kInput ? in : out;
        if (chunk.published == nullptr) return void(refuse("no such input or output"));
        if (operand.kind == Operand::Kind::kInput) chunk.scale = factor(strand.rank);
      }
      for (std::size_t i = 0; i < range.count; ++i) sum[i] += chunk.at(i);
    }
    if (step.finished && reduces(s_.collective)) {
      for (std::uint64_t& number : sum) number *= kFinish;
    }
    if (step.write_output) {
      if (out == nullptr) return void(refuse("no such output"));
      std::copy(sum.begin(), sum.end(), out);
    }
    for (std::size_t k = 0; k < step.send.size(); ++k) {
      Chunk chunk;
      chunk.count = range.count;
      chunk.published = published(strand, step, k, in, out);
      if (chunk.published == nullptr) {
        chunk.data = sum;
      } else if (chunk.published == in && !step.write_output &&
                 step.operands[0].kind == Operand::Kind::kInput) {
        chunk.scale = factor(strand.rank);
      }
      fifo(strand.channel, strand.rank, step.send[k]).push_back(std::move(chunk));
    }
  }

  /// The address that replaces a slot when the report's flag allows it.
  const std::uint64_t* published(const Strand& strand, const Step& step, std::size_t k,
                                 const std::uint64_t* in, const std::uint64_t* out) {
    if (o_.direct == nullptr) return nullptr;
    const DirectSend flag = o_.direct->direct[z(strand.rank)][z(strand.channel)][strand.step][k];
    if (!(o_.in_place ? flag.in_place : flag.out_of_place)) return nullptr;
    if (step.write_output) return out;
    if (step.operands.size() != 1) {
      refuse("flag on a step with nothing to publish");
      return nullptr;
    }
    switch (step.operands[0].kind) {
      case Operand::Kind::kInput: return in;
      case Operand::Kind::kOutput: return out;
      case Operand::Kind::kLink: break;
    }
    refuse("flag on a step with nothing to publish");
    return nullptr;
  }

  std::optional<std::string> wrong_output() {
    for (int rank = 0; rank < s_.num_ranks; ++rank) {
      for (int unit = 0; unit < num_units(s_.collective, s_.num_ranks); ++unit) {
        const auto index = output_index(s_.collective, s_.num_ranks, s_.root, unit, rank);
        if (!index) continue;
        for (std::size_t i = 0; i < o_.count; ++i) {
          const Memory& mine = memory_[z(rank)];
          if (mine.all[mine.output + z(*index) * o_.count + i] != expected(unit, i)) {
            return fmt::format("rank {} unit {} element {} is wrong", rank, unit, i);
          }
        }
      }
    }
    return std::nullopt;
  }

  [[nodiscard]] std::uint64_t expected(int unit, std::size_t i) const {
    const auto of = [&](int rank) {
      const int index = *input_index(s_.collective, s_.num_ranks, s_.root, unit, rank);
      return factor(rank) * inputs_[z(rank)][z(index) * o_.count + i];
    };
    if (const auto source = contributor(s_.collective, s_.num_ranks, s_.root, unit)) {
      return of(*source);
    }
    std::uint64_t sum = 0;
    for (int rank = 0; rank < s_.num_ranks; ++rank) sum += of(rank);
    return sum * kFinish;
  }

  [[nodiscard]] std::string stuck() const {
    std::string text;
    for (const Strand& strand : strands_) {
      text += fmt::format("rank {} channel {} turn {} step {}; ", strand.rank, strand.channel,
                          strand.turn, strand.step);
    }
    return text;
  }

  const Schedule& s_;
  RunOptions o_;
  std::mt19937_64 random_;
  std::vector<Memory> memory_;
  std::vector<Numbers> inputs_;
  std::vector<Strand> strands_;  // those that are not done
  std::vector<std::size_t> rounds_;
  std::unordered_map<std::size_t, std::deque<Chunk>> fifos_;  // by channel and both ranks
  std::string illegal_;
};

inline std::optional<std::string> wrong_effect(const Schedule& schedule,
                                               const RunOptions& options) {
  return ReferenceRun(schedule, options).wrong();
}

}  // namespace ropewalk::schedule::testing
