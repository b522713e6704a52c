#include "comm/cost_model.h"

#include <algorithm>
#include <vector>

#include "plan/chunk_model.h"
#include "schedule/layout.h"

namespace ropewalk::comm {

namespace {

bool all_by_address(const schedule::Checked& checked) {
  const bool has_in_place =
      schedule::in_place_input_offset(checked.schedule().collective, 0).has_value();
  for (const auto& rank : checked.report().direct) {
    for (const auto& channel : rank) {
      for (const auto& step : channel) {
        for (const schedule::DirectSend& send : step) {
          // Ranks may differ in whether they call in place, and must cut alike.
          if (!send.out_of_place || (has_in_place && !send.in_place)) return false;
        }
      }
    }
  }
  return true;
}

}  // namespace

ScheduleShape ScheduleShape::of(const schedule::Checked& checked) {
  const schedule::Schedule& schedule = checked.schedule();
  ScheduleShape shape;
  shape.longest_path = checked.report().longest_path;
  shape.parts = schedule.parts;
  shape.channels = schedule.num_channels();
  shape.by_address = all_by_address(checked);
  for (const std::vector<schedule::StepList>& rank : schedule.programs) {
    RankLoad load;
    for (const schedule::StepList& steps : rank) {
      for (const schedule::Step& step : steps) {
        const bool combines = step.operands.size() > 1;
        bool linked = !step.send.empty();
        for (const schedule::Operand& operand : step.operands) {
          if (operand.kind != schedule::Operand::Kind::kLink) continue;
          ++(combines ? load.combined_in : load.copied_in);
          linked = true;
        }
        load.messages_out += static_cast<int>(step.send.size());
        if (!linked) ++load.copies;
      }
    }
    shape.loads.push_back(load);
  }
  std::sort(shape.loads.begin(), shape.loads.end());
  shape.loads.erase(std::unique(shape.loads.begin(), shape.loads.end()), shape.loads.end());
  return shape;
}

double predict(const ScheduleShape& shape, const CostContext& context, std::size_t unit_bytes,
               std::size_t chunk_bytes, bool by_address) {
  const MachineConstants& machine = context.machine;
  const double part = static_cast<double>(unit_bytes) / (shape.parts * shape.channels);
  const double chunk = std::min(part, static_cast<double>(chunk_bytes));
  const double rounds = chunk > 0 ? std::max(1.0, part / chunk) : 1;
  const double copy_rate = context.network ? machine.network_rate : machine.copy_rate;
  const double combine_rate = context.network ? machine.network_rate : machine.combine_rate;
  const double send = machine.chunk_cost + (by_address ? 0 : chunk / copy_rate);
  // By address: through the core's own cache, from which it is then combined.
  const double fetch = machine.address_cost + chunk / machine.address_rate;
  const double copy_in = machine.chunk_cost + (by_address ? fetch : chunk / copy_rate);
  const double combine_in =
      machine.chunk_cost +
      (by_address ? fetch + chunk / machine.combine_rate / 2 : chunk / combine_rate);
  double work = 0;
  bool combines = false;
  for (const RankLoad& load : shape.loads) {
    combines |= load.combined_in > 0;
    work = std::max(work, load.messages_out * send + load.combined_in * combine_in +
                              load.copied_in * copy_in + load.copies * chunk / machine.copy_rate);
  }
  work *= context.ranks_per_core;
  // One thread does the work of all channels, in turn.
  double hop = (context.network ? machine.network_latency : machine.hop_latency) +
               shape.channels * (send + (combines ? combine_in : copy_in));
  if (context.ranks_per_core > 1) hop += machine.switch_cost;
  return plan::pipelined_seconds(std::max(shape.longest_path * hop, work), rounds, work);
}

}  // namespace ropewalk::comm
