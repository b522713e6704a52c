#include "schedule/check_form.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>

#include "schedule/layout.h"
#include "schedule/limits.h"
#include "schedule/text.h"

namespace ropewalk::schedule {
namespace {

std::optional<std::string> defect_of_head(const Schedule& s, int slots) {
  if (slots < 1) return fmt::format("{} slots per link: at least 1 is needed", slots);
  if (static_cast<unsigned>(s.collective) >= static_cast<unsigned>(kNumCollectives)) {
    return fmt::format("unknown collective number {}", static_cast<unsigned>(s.collective));
  }
  if (s.num_ranks < 1 || s.num_ranks > kMaxRanks) {
    return fmt::format("{} ranks: must be within 1 to {}", s.num_ranks, kMaxRanks);
  }
  if (s.root < 0 || s.root >= s.num_ranks) {
    return fmt::format("root {} among {} ranks", s.root, s.num_ranks);
  }
  if (s.root != 0 && !has_root(s.collective)) {
    return fmt::format("root {}: {} has no root", s.root, name(s.collective));
  }
  if (s.weight.empty() || s.weight.size() > static_cast<std::size_t>(kMaxChannels)) {
    return fmt::format("{} channels: must be within 1 to {}", s.weight.size(), kMaxChannels);
  }
  for (std::size_t c = 0; c < s.weight.size(); ++c) {
    if (s.weight[c] < 1 || s.weight[c] > kMaxWeight) {
      return fmt::format("channel {} has weight {}: must be within 1 to {}", c, s.weight[c],
                         kMaxWeight);
    }
  }
  if (s.parts < 1) return fmt::format("{} parts: at least 1 is needed", s.parts);
  // In 64 bits, before num_units() multiplies in an int.
  const std::int64_t ranks = s.num_ranks;
  const std::int64_t units =
      s.collective == Collective::kAllToAll ? ranks * ranks : num_units(s.collective, s.num_ranks);
  if (units * s.parts > kMaxBlocks) {
    return fmt::format("{} units of {} parts: more than {} blocks", units, s.parts, kMaxBlocks);
  }
  if (s.programs.size() != static_cast<std::size_t>(s.num_ranks)) {
    return fmt::format("step lists for {} ranks, not {}", s.programs.size(), s.num_ranks);
  }
  for (std::size_t rank = 0; rank < s.programs.size(); ++rank) {
    if (s.programs[rank].size() != s.weight.size()) {
      return fmt::format("rank {} has step lists for {} channels, not {}", rank,
                         s.programs[rank].size(), s.weight.size());
    }
  }
  return std::nullopt;
}

/// Finds a number that occurs twice; scratch is only there to be reused.
std::optional<int> repeated(std::vector<int>& scratch) {
  std::sort(scratch.begin(), scratch.end());
  const auto twice = std::adjacent_find(scratch.begin(), scratch.end());
  if (twice == scratch.end()) return std::nullopt;
  return *twice;
}

std::optional<std::string> defect_of_step(const Schedule& s, int rank, const Step& step,
                                          std::vector<int>& scratch) {
  const int blocks = num_units(s.collective, s.num_ranks) * s.parts;
  if (step.block < 0 || step.block >= blocks) {
    return fmt::format("block {} of {}", step.block, blocks);
  }
  const int unit = step.block / s.parts;
  if (step.operands.empty()) return "no operand";
  if (!step.write_output && step.send.empty()) return "no destination";
  const auto bad_peer = [&](int peer) -> std::optional<std::string> {
    if (peer < 0 || peer >= s.num_ranks) return fmt::format("no rank {}", peer);
    if (peer == rank) return "a link to the rank itself";
    return std::nullopt;
  };
  int own_operands = 0;
  scratch.clear();
  for (const Operand& operand : step.operands) {
    switch (operand.kind) {
      case Operand::Kind::kLink:
        if (auto bad = bad_peer(operand.peer)) return bad;
        scratch.push_back(operand.peer);
        break;
      case Operand::Kind::kInput:
        ++own_operands;
        if (!input_index(s.collective, s.num_ranks, s.root, unit, rank)) {
          return fmt::format("the rank has no input of block {}", step.block);
        }
        break;
      case Operand::Kind::kOutput:
        ++own_operands;
        if (!output_index(s.collective, s.num_ranks, s.root, unit, rank)) {
          return fmt::format("the rank has no output of block {}", step.block);
        }
        break;
      default: return "an operand of unknown kind";
    }
  }
  if (own_operands > 1) return "more than one of \"in\" and \"out\" among the operands";
  if (const auto twice = repeated(scratch)) {
    return fmt::format("two operands from rank {}", *twice);
  }
  if (step.operands.size() > 1 && !reduces(s.collective)) {
    return fmt::format("{} operands, but {} does not reduce", step.operands.size(),
                       name(s.collective));
  }
  if (step.write_output && !output_index(s.collective, s.num_ranks, s.root, unit, rank)) {
    return fmt::format("the rank has no output of block {}", step.block);
  }
  scratch.clear();
  for (const int peer : step.send) {
    if (auto bad = bad_peer(peer)) return bad;
    scratch.push_back(peer);
  }
  if (const auto twice = repeated(scratch)) {
    return fmt::format("sends to rank {} twice", *twice);
  }
  return std::nullopt;
}

/// Each rank must write each of its output blocks on each channel. Counting them here, in memory
/// in proportion to the steps, lets the symbolic run keep one entry per output block.
std::optional<std::string> defect_of_outputs(const Schedule& s, int rank, int channel,
                                             const StepList& steps, std::vector<int>& scratch) {
  scratch.clear();
  for (const Step& step : steps) {
    if (!step.write_output) continue;
    const int unit = step.block / s.parts;
    const int index = *output_index(s.collective, s.num_ranks, s.root, unit, rank);
    scratch.push_back(index * s.parts + step.block % s.parts);
  }
  std::sort(scratch.begin(), scratch.end());
  scratch.erase(std::unique(scratch.begin(), scratch.end()), scratch.end());
  const int wanted = output_units(s.collective, s.num_ranks, s.root, rank) * s.parts;
  if (scratch.size() == static_cast<std::size_t>(wanted)) return std::nullopt;
  int missing = 0;
  while (static_cast<std::size_t>(missing) < scratch.size() &&
         scratch[static_cast<std::size_t>(missing)] == missing) {
    ++missing;
  }
  return fmt::format(
      "rank {}, channel {}: writes {} of {} output blocks; nothing ever writes part {} of unit {} "
      "of its output",
      rank, channel, scratch.size(), wanted, missing % s.parts, missing / s.parts);
}

}  // namespace

std::string step_name(int rank, int channel, std::size_t number, const Step& step) {
  std::string text = print(step);
  constexpr std::size_t kShown = 80;
  if (text.size() > kShown) text = text.substr(0, kShown) + "...";
  return fmt::format("rank {}, channel {}, step {} ({})", rank, channel, number, text);
}

void check_form(const Schedule& schedule, int slots, Defects& defects) {
  if (auto defect = defect_of_head(schedule, slots)) {
    defects.add(Severity::kForm, std::move(*defect));
    return;
  }
  std::vector<int> scratch;
  for (int rank = 0; rank < schedule.num_ranks; ++rank) {
    for (int channel = 0; channel < schedule.num_channels(); ++channel) {
      const StepList& steps =
          schedule.programs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(channel)];
      bool sound = true;
      for (std::size_t i = 0; i < steps.size(); ++i) {
        if (auto defect = defect_of_step(schedule, rank, steps[i], scratch)) {
          sound = false;
          defects.add(Severity::kForm,
                      fmt::format("{}: {}", step_name(rank, channel, i, steps[i]), *defect));
        }
      }
      if (!sound) continue;
      if (auto defect = defect_of_outputs(schedule, rank, channel, steps, scratch)) {
        defects.add(Severity::kForm, std::move(*defect));
      }
      if (defects.full(Severity::kForm)) return;
    }
  }
}

}  // namespace ropewalk::schedule
