#include "comm/cost_model.h"

#include <algorithm>
#include <vector>

namespace ropewalk::comm {

ScheduleShape ScheduleShape::of(const schedule::Checked& checked) {
  const schedule::Schedule& schedule = checked.schedule();
  ScheduleShape shape;
  shape.longest_path = checked.report().longest_path;
  shape.rounds_parts = schedule.parts;
  shape.channels = schedule.num_channels();
  const auto n = static_cast<std::size_t>(schedule.num_ranks);
  std::vector<int> in(n);
  std::vector<int> out(n);
  for (const schedule::LinkLoad& link : checked.report().links) {
    in[static_cast<std::size_t>(link.destination)] += link.messages;
    out[static_cast<std::size_t>(link.source)] += link.messages;
  }
  std::size_t busiest = 0;
  for (std::size_t r = 1; r < n; ++r) {
    if (in[r] + out[r] > in[busiest] + out[busiest]) busiest = r;
  }
  if (n > 0) {
    shape.messages_out = out[busiest];
    for (const schedule::StepList& steps : schedule.programs[busiest]) {
      for (const schedule::Step& step : steps) {
        const bool combines = step.operands.size() > 1;
        for (const schedule::Operand& operand : step.operands) {
          if (operand.kind != schedule::Operand::Kind::kLink) continue;
          ++(combines ? shape.combined_in : shape.copied_in);
        }
        const bool no_links = step.send.empty() && step.operands.size() == 1 &&
                              step.operands.front().kind != schedule::Operand::Kind::kLink;
        if (no_links) ++shape.copies;
      }
    }
  }
  return shape;
}

double predict(const ScheduleShape& shape, const CostContext& context, std::size_t unit_bytes,
               std::size_t chunk_bytes, bool by_address) {
  const MachineConstants& machine = context.machine;
  const double part = static_cast<double>(unit_bytes) / (shape.rounds_parts * shape.channels);
  const double chunk = std::min(part, static_cast<double>(chunk_bytes));
  const double rounds = chunk > 0 ? std::max(1.0, part / chunk) : 1;
  const double copy_rate = context.network ? machine.network_rate : machine.copy_rate;
  const double send = machine.chunk_cost + (by_address ? 0 : chunk / copy_rate);
  // By address: through the core's own cache, from which it is then combined.
  const double copy_in =
      machine.chunk_cost +
      (by_address ? machine.address_cost + chunk / machine.address_rate : chunk / copy_rate);
  const double combine_in =
      by_address ? copy_in + chunk / machine.combine_rate / 2
                 : machine.chunk_cost +
                       chunk / (context.network ? machine.network_rate : machine.combine_rate);
  const double receive = shape.combined_in > 0 ? combine_in : copy_in;
  // One thread does the work of all channels, in turn.
  double hop = (context.network ? machine.network_latency : machine.hop_latency) +
               shape.channels * (send + receive);
  if (context.ranks_per_core > 1) hop += machine.switch_cost;
  const double work = (shape.messages_out * send + shape.combined_in * combine_in +
                       shape.copied_in * copy_in + shape.copies * chunk / machine.copy_rate) *
                      context.ranks_per_core;
  return std::max(shape.longest_path * hop, work) + (rounds - 1) * work;
}

}  // namespace ropewalk::comm
