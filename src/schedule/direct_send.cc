#include "schedule/direct_send.h"

#include <algorithm>
#include <cstddef>
#include <unordered_map>
#include <utility>

namespace ropewalk::schedule {
namespace {

enum class Published { kNothing, kInput, kOutput };

Published published_by(const Step& step) {
  if (step.write_output) return Published::kOutput;
  if (step.operands.size() != 1) return Published::kNothing;
  switch (step.operands[0].kind) {
    case Operand::Kind::kInput: return Published::kInput;
    case Operand::Kind::kOutput: return Published::kOutput;
    case Operand::Kind::kLink: return Published::kNothing;
  }
  return Published::kNothing;
}

class Analysis {
 public:
  Analysis(const Schedule& schedule, int channel, const Trace& trace)
      : s_(schedule),
        channel_(channel),
        trace_(trace),
        rank_of_(trace.first_node.back()),
        row_of_(trace.first_node.back()) {
    for (int rank = 0; rank < s_.num_ranks; ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      std::fill(rank_of_.begin() + static_cast<std::ptrdiff_t>(trace_.first_node[r]),
                rank_of_.begin() + static_cast<std::ptrdiff_t>(trace_.first_node[r + 1]), rank);
    }
  }

  std::vector<std::vector<std::vector<DirectSend>>> flags(bool in_place) {
    for (int rank = 0; rank < s_.num_ranks; ++rank) flag_rank(rank, in_place);
    answer_questions();
    return std::move(flags_);
  }

 private:
  /// May the send be direct? Yes if `receiver` happens before `writer`.
  struct Query {
    std::size_t receiver = 0;
    std::size_t writer = 0;
    DirectSend* flag = nullptr;
    bool out_of_place = false;  ///< which of the flags hang on the answer
    bool in_place = false;
  };

  [[nodiscard]] const StepList& steps_of(int rank) const {
    return s_.programs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(channel_)];
  }

  void flag_rank(int rank, bool in_place) {
    const StepList& steps = steps_of(rank);
    const std::size_t first = trace_.first_node[static_cast<std::size_t>(rank)];
    std::vector<std::vector<DirectSend>>& mine = flags_.emplace_back(steps.size());
    // Backwards, so that the first write after a step is known when the step is reached.
    std::unordered_map<int, std::size_t> next_write;
    for (std::size_t i = steps.size(); i-- > 0;) {
      const Step& step = steps[i];
      const auto found = next_write.find(step.block);
      const bool overwritten = found != next_write.end();
      const Published published = published_by(step);
      mine[i].resize(step.send.size());
      for (std::size_t k = 0; published != Published::kNothing && k < step.send.size(); ++k) {
        const bool hit_out_of_place = overwritten && published == Published::kOutput;
        const bool hit_in_place =
            overwritten && (published == Published::kOutput || is_aliased(s_, rank, step.block));
        DirectSend& flag = mine[i][k];
        flag.out_of_place = !hit_out_of_place;
        flag.in_place = in_place && !hit_in_place;
        if (!hit_out_of_place && !(in_place && hit_in_place)) continue;
        const std::size_t receiver = trace_.sent_to[trace_.first_send[first + i] + k];
        // The flags of a rank are not moved any more: `mine[i]` has its final size.
        queries_[step.block].push_back(
            {receiver, found->second, &flag, hit_out_of_place, in_place && hit_in_place});
      }
      if (step.write_output) next_write[step.block] = first + i;
    }
  }

  void answer_questions() {
    if (queries_.empty()) return;
    // In the order of the run, so that what a node waited for comes before it.
    std::unordered_map<int, std::vector<std::size_t>> nodes;
    for (const std::size_t node : trace_.fired) {
      const int block = step_at(node).block;
      if (queries_.contains(block)) nodes[block].push_back(node);
    }
    for (const auto& [block, queries] : queries_) answer(nodes[block], queries);
  }

  [[nodiscard]] const Step& step_at(std::size_t node) const {
    const int rank = rank_of_[node];
    return steps_of(rank)[node - trace_.first_node[static_cast<std::size_t>(rank)]];
  }

  /// Vector clocks, with an entry for each rank that a query is about: the last of its nodes
  /// that happens before (or is) the one at hand, plus one; 0 for none.
  void answer(const std::vector<std::size_t>& nodes, const std::vector<Query>& queries) {
    std::unordered_map<int, std::size_t> columns;
    for (const Query& query : queries) {
      columns.try_emplace(rank_of_[query.receiver], columns.size());
    }
    const std::size_t width = columns.size();
    std::vector<std::size_t> clocks(nodes.size() * width, 0);
    const auto merge = [&](std::size_t to, std::size_t from) {
      for (std::size_t c = 0; c < width; ++c) {
        clocks[to * width + c] = std::max(clocks[to * width + c], clocks[from * width + c]);
      }
    };
    std::unordered_map<int, std::size_t> latest;  // row of each rank's last node so far
    for (std::size_t row = 0; row < nodes.size(); ++row) {
      const std::size_t node = nodes[row];
      const int rank = rank_of_[node];
      row_of_[node] = row;
      const auto [before, is_first] = latest.try_emplace(rank, row);
      if (!is_first) merge(row, std::exchange(before->second, row));
      for (std::size_t k = trace_.first_receive[node]; k < trace_.first_receive[node + 1]; ++k) {
        merge(row, row_of_[trace_.received_from[k]]);
      }
      if (const auto column = columns.find(rank); column != columns.end()) {
        clocks[row * width + column->second] = node + 1;
      }
    }
    for (const Query& query : queries) {
      const std::size_t column = columns.at(rank_of_[query.receiver]);
      const std::size_t known = clocks[row_of_[query.writer] * width + column];
      const bool read_before = known >= query.receiver + 1;
      if (query.out_of_place) query.flag->out_of_place = read_before;
      if (query.in_place) query.flag->in_place = read_before;
    }
  }

  const Schedule& s_;
  int channel_;
  const Trace& trace_;
  std::vector<int> rank_of_;         // per node
  std::vector<std::size_t> row_of_;  // per node, among the nodes of its block
  std::vector<std::vector<std::vector<DirectSend>>> flags_;
  std::unordered_map<int, std::vector<Query>> queries_;  // by block
};

}  // namespace

std::vector<std::vector<std::vector<DirectSend>>> find_direct_sends(const Schedule& schedule,
                                                                    int channel, bool in_place,
                                                                    const Trace& trace) {
  return Analysis(schedule, channel, trace).flags(in_place);
}

}  // namespace ropewalk::schedule
