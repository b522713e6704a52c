#include "schedule/check.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>
#include <vector>

#include "schedule/check_form.h"
#include "schedule/direct_send.h"
#include "schedule/layout.h"
#include "schedule/symbolic_run.h"

namespace ropewalk::schedule {
namespace {

bool same_steps(const Schedule& schedule, int a, int b) {
  return std::ranges::all_of(schedule.programs, [&](const std::vector<StepList>& of_rank) {
    return of_rank[static_cast<std::size_t>(a)] == of_rank[static_cast<std::size_t>(b)];
  });
}

// Of each channel the first one with the same steps on all ranks: what is found of that one holds
// for it too. Schedules have few different channels, however many there are.
std::vector<int> first_alike(const Schedule& schedule) {
  std::vector<int> different;
  std::vector<int> first;
  for (int channel = 0; channel < schedule.num_channels(); ++channel) {
    const auto found = std::ranges::find_if(
        different, [&](int other) { return same_steps(schedule, other, channel); });
    first.push_back(found == different.end() ? channel : *found);
    if (found == different.end()) different.push_back(channel);
  }
  return first;
}

// @param links of a channel with the same steps
void add_loads(const Schedule& schedule, int channel, const std::vector<LinkLoad>& links,
               std::vector<LinkLoad>& to) {
  const double total = std::accumulate(schedule.weight.begin(), schedule.weight.end(), 0.0);
  const double share = schedule.weight[static_cast<std::size_t>(channel)] / total / schedule.parts;
  for (const LinkLoad& link : links) {
    to.push_back({channel, link.source, link.destination, link.messages, link.messages * share});
  }
}

}  // namespace

CheckReport check(const Schedule& schedule, int slots) {
  CheckReport report;
  Defects defects;
  check_form(schedule, slots, defects);
  if (defects.any()) {
    report.defects = defects.take();
    return report;
  }

  const std::vector<int> first = first_alike(schedule);
  std::vector<ChannelVerdict> verdicts(first.size());
  report.in_place = in_place_input_offset(schedule.collective, 0).has_value();
  for (int channel = 0; channel < schedule.num_channels(); ++channel) {
    const auto same = static_cast<std::size_t>(first[static_cast<std::size_t>(channel)]);
    ChannelVerdict& verdict = verdicts[same];
    // The sentences on a channel with defects name it.
    if (static_cast<int>(same) == channel) {
      verdict = run_symbolically(schedule, channel, slots, defects);
    } else if (defects.any()) {
      (void)run_symbolically(schedule, channel, slots, defects);
    }
    report.in_place = report.in_place && verdict.in_place;
    report.longest_path = std::max(report.longest_path, verdict.longest_path);
    add_loads(schedule, channel, verdict.links, report.links);
  }
  report.accepted = !defects.any();
  report.in_place = report.in_place && report.accepted;
  report.defects = defects.take();
  if (!report.accepted) return report;

  report.direct.resize(static_cast<std::size_t>(schedule.num_ranks));
  std::vector<std::vector<std::vector<std::vector<DirectSend>>>> direct(first.size());
  for (std::size_t channel = 0; channel < first.size(); ++channel) {
    const auto same = static_cast<std::size_t>(first[channel]);
    if (same == channel) {
      direct[channel] = find_direct_sends(schedule, static_cast<int>(channel), report.in_place,
                                          verdicts[channel].trace);
    }
    for (std::size_t rank = 0; rank < report.direct.size(); ++rank) {
      report.direct[rank].push_back(direct[same][rank]);
    }
  }
  return report;
}

}  // namespace ropewalk::schedule
