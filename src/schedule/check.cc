#include "schedule/check.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "schedule/check_form.h"
#include "schedule/direct_send.h"
#include "schedule/layout.h"
#include "schedule/symbolic_run.h"

namespace ropewalk::schedule {

CheckReport check(const Schedule& schedule, int slots) {
  CheckReport report;
  Defects defects;
  check_form(schedule, slots, defects);
  if (defects.any()) {
    report.defects = defects.take();
    return report;
  }

  std::vector<Trace> traces;
  report.in_place = in_place_input_offset(schedule.collective, 0).has_value();
  for (int channel = 0; channel < schedule.num_channels(); ++channel) {
    ChannelVerdict verdict = run_symbolically(schedule, channel, slots, defects);
    report.in_place = report.in_place && verdict.in_place;
    report.longest_path = std::max(report.longest_path, verdict.longest_path);
    report.links.insert(report.links.end(), verdict.links.begin(), verdict.links.end());
    traces.push_back(std::move(verdict.trace));
  }
  report.accepted = !defects.any();
  report.in_place = report.in_place && report.accepted;
  report.defects = defects.take();
  if (!report.accepted) return report;

  const auto num_ranks = static_cast<std::size_t>(schedule.num_ranks);
  report.direct.resize(num_ranks);
  for (int channel = 0; channel < schedule.num_channels(); ++channel) {
    auto flags = find_direct_sends(schedule, channel, report.in_place,
                                   traces[static_cast<std::size_t>(channel)]);
    for (std::size_t rank = 0; rank < num_ranks; ++rank) {
      report.direct[rank].push_back(std::move(flags[rank]));
    }
  }
  return report;
}

}  // namespace ropewalk::schedule
