// Runs a schedule without data: each rank's steps in their order, with messages of any kind.
#pragma once

#include <cstddef>
#include <deque>
#include <map>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// Runs one round of a channel, over links that hold any number of messages. Which of several ranks
/// goes on first is not said; the messages that a step receives do not depend on it.
///
/// @tparam Message  what stands for a chunk on its way
/// @param skips  bool skips(const Step&): as if no rank had that step
/// @param run    void run(int rank, const Step&, std::span<const Message> received, send): the rank
///               takes the step. `received` has a message for each operand from a link, in their
///               order; send(int peer, Message) is called once for each rank that the step sends to
/// @pre the checker accepts the schedule
template <typename Message, typename Skips, typename Run>
void replay(const Schedule& schedule, std::size_t channel, Skips skips, Run run) {
  std::map<std::pair<int, int>, std::deque<Message>> links;  // by sender and receiver
  std::vector<std::size_t> next(schedule.programs.size());
  std::vector<int> may_run(next.size());
  std::iota(may_run.begin(), may_run.end(), 0);
  std::vector<Message> received;
  // @return false while messages are missing
  const auto receive = [&](int rank, const Step& step) {
    for (const Operand& operand : step.operands) {
      if (operand.kind == Operand::Kind::kLink && links[{operand.peer, rank}].empty()) return false;
    }
    received.clear();
    for (const Operand& operand : step.operands) {
      if (operand.kind != Operand::Kind::kLink) continue;
      std::deque<Message>& link = links[{operand.peer, rank}];
      received.push_back(std::move(link.front()));
      link.pop_front();
    }
    return true;
  };
  while (!may_run.empty()) {
    const int rank = may_run.back();
    may_run.pop_back();
    const auto send = [&](int peer, Message message) {
      links[{rank, peer}].push_back(std::move(message));
      may_run.push_back(peer);
    };
    const auto r = static_cast<std::size_t>(rank);
    const StepList& steps = schedule.programs[r][channel];
    for (; next[r] < steps.size(); ++next[r]) {
      const Step& step = steps[next[r]];
      if (skips(step)) continue;
      if (!receive(rank, step)) break;
      run(rank, step, std::span<const Message>(received), send);
    }
  }
  for (std::size_t r = 0; r < next.size(); ++r) {
    RW_ASSERT(next[r] == schedule.programs[r][channel].size());
  }
}

}  // namespace ropewalk::schedule
