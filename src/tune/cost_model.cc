#include "tune/cost_model.h"

#include <algorithm>
#include <deque>
#include <map>
#include <numeric>
#include <utility>
#include <vector>

#include "plan/chunk_model.h"
#include "schedule/layout.h"

namespace ropewalk::tune {

namespace {

bool all_by_address(const schedule::Checked& checked) {
  const bool has_in_place =
      schedule::in_place_input_offset(checked.schedule().collective, 0).has_value();
  for (const auto& rank : checked.report().direct) {
    for (const auto& channel : rank) {
      for (const auto& step : channel) {
        for (const schedule::DirectSend& send : step) {
          // Some ranks may call in place and others not, but all must cut identically.
          if (!send.out_of_place || (has_in_place && !send.in_place)) return false;
        }
      }
    }
  }
  return true;
}

void add_busiest_link(ScheduleShape& shape, const schedule::Checked& checked) {
  std::vector<double> out(static_cast<std::size_t>(checked.schedule().num_ranks));
  std::vector<double> in(out.size());
  for (const schedule::LinkLoad& link : checked.report().links) {
    shape.link_messages = std::max(shape.link_messages, link.messages);
    out[static_cast<std::size_t>(link.source)] += link.units;
    in[static_cast<std::size_t>(link.destination)] += link.units;
  }
  for (std::size_t r = 0; r < out.size(); ++r) {
    shape.link_units = std::max({shape.link_units, out[r], in[r]});
  }
}

// What a round asks of every rank. @param host_of_rank  empty: all messages are far
void add_loads(ScheduleShape& shape, const schedule::Schedule& schedule,
               std::span<const int> host_of_rank) {
  shape.loads.clear();
  shape.all = {};
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    const auto is_near = [&](int peer) {
      return !host_of_rank.empty() &&
             host_of_rank[rank] == host_of_rank[static_cast<std::size_t>(peer)];
    };
    RankLoad load;
    std::size_t work = 0;  // in parts
    for (const schedule::StepList& steps : schedule.programs[rank]) {
      for (const schedule::Step& step : steps) {
        work += step.operands.size() + step.send.size() + (step.write_output ? 1 : 0);
        const bool combines = step.operands.size() > 1;
        bool linked = !step.send.empty();
        for (const schedule::Operand& operand : step.operands) {
          if (operand.kind != schedule::Operand::Kind::kLink) continue;
          ++(combines ? load.combined_in : load.copied_in);
          if (is_near(operand.peer)) ++(combines ? load.near_combined_in : load.near_copied_in);
          linked = true;
        }
        load.messages_out += static_cast<int>(step.send.size());
        load.near_out += static_cast<int>(std::ranges::count_if(step.send, is_near));
        if (!linked) ++load.copies;
      }
    }
    shape.loads.push_back(load);
    shape.work_units =
        std::max(shape.work_units, static_cast<double>(work) / (shape.parts * shape.channels));
    shape.all.messages_out += load.messages_out;
    shape.all.combined_in += load.combined_in;
    shape.all.copied_in += load.copied_in;
    shape.all.copies += load.copies;
    shape.all.near_out += load.near_out;
    shape.all.near_combined_in += load.near_combined_in;
    shape.all.near_copied_in += load.near_copied_in;
  }
  std::sort(shape.loads.begin(), shape.loads.end());
  shape.loads.erase(std::unique(shape.loads.begin(), shape.loads.end()), shape.loads.end());
}

// Messages of a chain.
struct Path {
  int far = 0;
  int near = 0;
  friend auto operator<=>(const Path&, const Path&) = default;
};

// The chain of dependent messages that has most between hosts, and of those the longest. A step
// depends on those before it in its strand, as in the checker's longest path.
Path longest_path(const schedule::Schedule& schedule, std::span<const int> host_of_rank) {
  Path longest;
  const auto ranks = static_cast<std::size_t>(schedule.num_ranks);
  for (std::size_t c = 0; c < static_cast<std::size_t>(schedule.num_channels()); ++c) {
    std::map<std::pair<int, int>, std::deque<Path>> links;  // source, destination
    std::vector<std::size_t> next(ranks);
    std::vector<Path> reached(ranks);
    // With links of any length a schedule that was accepted runs to its end in any order.
    for (bool moved = true; moved;) {
      moved = false;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        const schedule::StepList& steps = schedule.programs[rank][c];
        for (; next[rank] < steps.size(); ++next[rank]) {
          const schedule::Step& step = steps[next[rank]];
          const auto link_from = [&](const schedule::Operand& operand) -> std::deque<Path>& {
            return links[{operand.peer, static_cast<int>(rank)}];
          };
          const auto is_link = [](const schedule::Operand& operand) {
            return operand.kind == schedule::Operand::Kind::kLink;
          };
          if (std::ranges::any_of(step.operands, [&](const schedule::Operand& operand) {
                return is_link(operand) && link_from(operand).empty();
              })) {
            break;
          }
          for (const schedule::Operand& operand : step.operands) {
            if (!is_link(operand)) continue;
            reached[rank] = std::max(reached[rank], link_from(operand).front());
            link_from(operand).pop_front();
          }
          for (const int peer : step.send) {
            Path path = reached[rank];
            ++(host_of_rank[rank] == host_of_rank[static_cast<std::size_t>(peer)] ? path.near
                                                                                  : path.far);
            longest = std::max(longest, path);
            links[{static_cast<int>(rank), peer}].push_back(path);
          }
          moved = true;
        }
      }
    }
  }
  return longest;
}

}  // namespace

ScheduleShape ScheduleShape::of(const schedule::Checked& checked) {
  const schedule::Schedule& schedule = checked.schedule();
  ScheduleShape shape;
  shape.longest_path = checked.report().longest_path;
  shape.parts = schedule.parts;
  shape.channels = schedule.num_channels();
  shape.by_address = all_by_address(checked);
  add_busiest_link(shape, checked);
  add_loads(shape, schedule, {});
  shape.ranks = schedule.num_ranks;
  return shape;
}

void split_by_hosts(ScheduleShape& shape, const schedule::Schedule& schedule,
                    std::span<const int> host_of_rank) {
  shape.leaving_host = leaving_host(schedule, host_of_rank);
  add_loads(shape, schedule, host_of_rank);
  const Path longest = longest_path(schedule, host_of_rank);
  shape.longest_path = longest.far + longest.near;
  shape.near_path = longest.near;
}

int leaving_host(const schedule::Schedule& schedule, std::span<const int> host_of_rank) {
  std::map<int, int> leaving;
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    const int host = host_of_rank[rank];
    for (const schedule::StepList& steps : schedule.programs[rank]) {
      for (const schedule::Step& step : steps) {
        leaving[host] += static_cast<int>(std::ranges::count_if(step.send, [&](int peer) {
          return host_of_rank[static_cast<std::size_t>(peer)] != host;
        }));
      }
    }
  }
  int most = 0;
  for (const auto& [host, messages] : leaving) most = std::max(most, messages);
  return most;
}

double units_over(const schedule::Schedule& schedule, std::span<const std::pair<int, int>> pairs) {
  if (pairs.empty()) return 0;
  const double all = std::accumulate(schedule.weight.begin(), schedule.weight.end(), 0.0);
  std::vector<double> sent(schedule.programs.size());
  std::vector<double> received(schedule.programs.size());
  for (std::size_t rank = 0; rank < schedule.programs.size(); ++rank) {
    for (std::size_t c = 0; c < schedule.weight.size(); ++c) {
      const double unit = schedule.weight[c] / all / schedule.parts;
      for (const schedule::Step& step : schedule.programs[rank][c]) {
        for (const int peer : step.send) {
          const std::pair<int, int> pair = std::minmax(static_cast<int>(rank), peer);
          if (std::ranges::find(pairs, pair) == pairs.end()) continue;
          sent[rank] += unit;
          received[static_cast<std::size_t>(peer)] += unit;
        }
      }
    }
  }
  return std::max(std::ranges::max(sent), std::ranges::max(received));
}

namespace {

// The sender's share of a message's cost at both ends.
constexpr double kSendersShare = 0.65;
// Ranks that share cores also poll without success, and take turns: as much again.
constexpr double kCrowdedShare = 2;

// A rank's time for one chunk: to send, to copy or combine received data, and to copy without any
// link.
struct ChunkCosts {
  double send;
  double copy_in;
  double combine_in;
  double copy;
  [[nodiscard]] double of(const RankLoad& load) const {
    return load.messages_out * send + load.combined_in * combine_in + load.copied_in * copy_in +
           load.copies * copy;
  }
};

// The same of a group on several hosts.
struct HostsChunkCosts {
  ChunkCosts far;
  ChunkCosts near;
  [[nodiscard]] double of(const RankLoad& load) const {
    const RankLoad within{load.near_out, load.near_combined_in, load.near_copied_in};
    const RankLoad between{load.messages_out - load.near_out,
                           load.combined_in - load.near_combined_in,
                           load.copied_in - load.near_copied_in, load.copies};
    return far.of(between) + near.of(within);
  }
};

// Through slots in memory.
ChunkCosts memory_costs(const MachineConstants& machine, double chunk) {
  const double copy = machine.chunk_cost + chunk / machine.copy_rate;
  return {copy, copy, machine.chunk_cost + chunk / machine.combine_rate, chunk / machine.copy_rate};
}

HostsChunkCosts network_costs(const MachineConstants& machine, double message, double chunk) {
  const double receive = (1 - kSendersShare) * message + chunk / machine.network_rate;
  return {{kSendersShare * message + chunk / machine.network_rate, receive,
           receive + chunk / machine.combine_rate, chunk / machine.copy_rate},
          memory_costs(machine, chunk)};
}

double busiest(const ScheduleShape& shape, const auto& costs) {
  double most = 0;
  for (const RankLoad& load : shape.loads) most = std::max(most, costs.of(load));
  return most;
}

// The time of a round over the NICs of the busiest host.
double over_nics(const ScheduleShape& shape, const CostContext& context, double chunk) {
  return context.nic_rate > 0 ? shape.leaving_host * chunk / context.nic_rate : 0;
}

double over_network(const ScheduleShape& shape, const CostContext& context, double chunk,
                    double rounds) {
  const MachineConstants& machine = context.machine;
  const int far_path = shape.longest_path - shape.near_path;
  if (context.ranks_per_core > 1) {
    const HostsChunkCosts costs =
        network_costs(machine, kCrowdedShare * machine.network_message, chunk);
    const double all = costs.of(shape.all) / shape.ranks * context.ranks_per_core;
    const double most = busiest(shape, costs);
    const double first = all + most + far_path * machine.network_message +
                         shape.near_path * (machine.hop_latency + machine.switch_cost);
    const double nics = over_nics(shape, context, chunk);
    return plan::pipelined_seconds(std::max(first, nics), rounds, std::max({all, most, nics}));
  }
  const HostsChunkCosts costs = network_costs(machine, machine.network_message, chunk);
  const double work = std::max(busiest(shape, costs), over_nics(shape, context, chunk));
  // The latency has the cost of a short message in it.
  const double hop = machine.network_latency + shape.channels * 2 * chunk / machine.network_rate;
  const double near_hop =
      machine.hop_latency + shape.channels * (costs.near.send + costs.near.combine_in);
  const double chain = far_path * hop + shape.near_path * near_hop;
  return plan::pipelined_seconds(std::max(chain, work), rounds, work);
}

}  // namespace

double predict(const ScheduleShape& shape, const CostContext& context, std::size_t unit_bytes,
               std::size_t chunk_bytes, bool by_address) {
  const MachineConstants& machine = context.machine;
  const double part = static_cast<double>(unit_bytes) / (shape.parts * shape.channels);
  const double chunk = std::min(part, static_cast<double>(chunk_bytes));
  const double rounds = chunk > 0 ? std::max(1.0, part / chunk) : 1;
  if (context.network) return over_network(shape, context, chunk, rounds);
  const double send = machine.chunk_cost + (by_address ? 0 : chunk / machine.copy_rate);
  // By address: through the core's own cache, from which it is then combined.
  const double fetch = machine.address_cost + chunk / machine.address_rate;
  const double copy_in = machine.chunk_cost + (by_address ? fetch : chunk / machine.copy_rate);
  const double combine_in =
      machine.chunk_cost +
      (by_address ? fetch + chunk / machine.combine_rate / 2 : chunk / machine.combine_rate);
  const ChunkCosts costs{send, copy_in, combine_in, chunk / machine.copy_rate};
  const double work = busiest(shape, costs) * context.ranks_per_core;
  const bool combines = shape.all.combined_in > 0;
  // One thread does the work of all channels, in turn.
  double hop = machine.hop_latency + shape.channels * (send + (combines ? combine_in : copy_in));
  if (context.ranks_per_core > 1) hop += machine.switch_cost;
  return plan::pipelined_seconds(std::max(shape.longest_path * hop, work), rounds, work);
}

}  // namespace ropewalk::tune
