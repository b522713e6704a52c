#include "tune/cost_model.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "plan/chunk_model.h"
#include "schedule/layout.h"
#include "schedule/replay.h"

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

void add_links_between_hosts(ScheduleShape& shape, const schedule::Checked& checked,
                             std::span<const int> host_of_rank) {
  std::map<int, double> of_host;
  std::map<std::pair<int, int>, double> over;
  std::map<int, double> of_rank;
  for (const schedule::LinkLoad& link : checked.report().links) {
    const int host = host_of_rank[static_cast<std::size_t>(link.source)];
    if (host == host_of_rank[static_cast<std::size_t>(link.destination)]) continue;
    shape.leaving_units = std::max(shape.leaving_units, of_host[host] += link.units);
    const double of_link = over[{link.source, link.destination}] += link.units;
    shape.leaving_link_units = std::max(shape.leaving_link_units, of_link);
    for (const int rank : {link.source, link.destination}) {
      shape.leaving_rank_units = std::max(shape.leaving_rank_units, of_rank[rank] += link.units);
    }
  }
}

// Whether all that it takes is this rank's input.
bool receives_none(const schedule::Step& step) {
  return std::ranges::all_of(step.operands, [](const schedule::Operand& operand) {
    return operand.kind == schedule::Operand::Kind::kInput;
  });
}

struct BetweenHosts {
  int hops = 0;  // on the chain of dependent messages that has most of them
  // By rank: see RankLoad::joined_out.
  std::vector<int> joined_out;
  std::vector<int> joined_in;
};

BetweenHosts between_hosts(const schedule::Schedule& schedule, std::span<const int> host_of_rank) {
  struct Message {
    int hops;
    bool joins;
  };
  struct Rank {
    int hops = 0;
    std::set<int> since_wait;  // to whom it has sent
  };
  const std::size_t num_ranks = schedule.programs.size();
  BetweenHosts found{0, std::vector<int>(num_ranks), std::vector<int>(num_ranks)};
  for (std::size_t channel = 0; channel < schedule.weight.size(); ++channel) {
    std::vector<Rank> ranks(num_ranks);
    const auto run = [&](int number, const schedule::Step& step, std::span<const Message> received,
                         const auto& send) {
      const auto r = static_cast<std::size_t>(number);
      Rank& rank = ranks[r];
      for (const Message& message : received) {
        rank.hops = std::max(rank.hops, message.hops);
        if (message.joins) {
          ++found.joined_in[r];
        } else {
          rank.since_wait.clear();
        }
      }
      for (const int peer : step.send) {
        const bool leaves = host_of_rank[static_cast<std::size_t>(peer)] != host_of_rank[r];
        const Message message{rank.hops + (leaves ? 1 : 0),
                              !rank.since_wait.insert(peer).second && leaves};
        if (message.joins) ++found.joined_out[r];
        found.hops = std::max(found.hops, message.hops);
        send(peer, message);
      }
    };
    schedule::replay<Message>(
        schedule, channel, [](const schedule::Step& /*step*/) { return false; }, run);
  }
  return found;
}

}  // namespace

ScheduleShape ScheduleShape::of(const schedule::Checked& checked,
                                std::span<const int> host_of_rank) {
  const schedule::Schedule& schedule = checked.schedule();
  ScheduleShape shape;
  shape.longest_path = checked.report().longest_path;
  shape.parts = schedule.parts;
  shape.channels = schedule.num_channels();
  shape.rooted = has_root(schedule.collective);
  shape.by_address = all_by_address(checked);
  add_busiest_link(shape, checked);
  BetweenHosts between;
  if (!host_of_rank.empty()) {
    add_links_between_hosts(shape, checked, host_of_rank);
    between = between_hosts(schedule, host_of_rank);
    shape.local_path = shape.longest_path - between.hops;
  }
  for (std::size_t r = 0; r < schedule.programs.size(); ++r) {
    const std::vector<schedule::StepList>& rank = schedule.programs[r];
    const auto is_local = [&](int peer) {
      return !host_of_rank.empty() &&
             host_of_rank[static_cast<std::size_t>(peer)] == host_of_rank[r];
    };
    RankLoad load;
    if (!host_of_rank.empty()) {
      load.joined_out = between.joined_out[r];
      load.joined_in = between.joined_in[r];
    }
    std::size_t work = 0;  // in parts
    for (const schedule::StepList& steps : rank) {
      shape.steps = std::max(shape.steps, static_cast<int>(steps.size()));
      std::set<int> senders;
      std::set<int> receivers;
      std::set<int> sent;  // blocks
      for (const schedule::Step& step : steps) {
        receivers.insert(step.send.begin(), step.send.end());
        work += step.operands.size() + step.send.size() + (step.write_output ? 1 : 0);
        const bool combines = step.operands.size() > 1;
        bool linked = !step.send.empty();
        for (const schedule::Operand& operand : step.operands) {
          if (operand.kind != schedule::Operand::Kind::kLink) continue;
          senders.insert(operand.peer);
          ++(combines ? load.combined_in : load.copied_in);
          if (is_local(operand.peer)) ++(combines ? load.local_combined_in : load.local_copied_in);
          linked = true;
        }
        const auto sends = static_cast<int>(step.send.size());
        load.messages_out += sends;
        const bool first = sends > 0 && receives_none(step) && sent.insert(step.block).second;
        load.out_again += first ? sends - 1 : sends;
        load.out_common += std::max(0, sends - 1);
        load.local_out += static_cast<int>(std::ranges::count_if(step.send, is_local));
        if (!linked) ++load.copies;
      }
      shape.fan = std::max(shape.fan, static_cast<int>(std::max(senders.size(), receivers.size())));
    }
    shape.loads.push_back(load);
    shape.work_units =
        std::max(shape.work_units, static_cast<double>(work) / (shape.parts * shape.channels));
    shape.all.messages_out += load.messages_out;
    shape.all.combined_in += load.combined_in;
    shape.all.copied_in += load.copied_in;
    shape.all.copies += load.copies;
    shape.all.out_again += load.out_again;
    shape.all.out_common += load.out_common;
    shape.all.local_out += load.local_out;
    shape.all.local_combined_in += load.local_combined_in;
    shape.all.local_copied_in += load.local_copied_in;
    shape.all.joined_out += load.joined_out;
    shape.all.joined_in += load.joined_in;
  }
  shape.ranks = schedule.num_ranks;
  std::sort(shape.loads.begin(), shape.loads.end());
  shape.loads.erase(std::unique(shape.loads.begin(), shape.loads.end()), shape.loads.end());
  return shape;
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

// The sender's share of a message's cost at both ends: over sockets its call does TCP's work for
// the receiver, too, which may take several messages by one call. (Eight ranks with a core each of
// a Xeon, 512 bytes over TCP: direct scatters took 4.3 us for each message of the root's, direct
// gathers 0.5.) Who shares a core with the receiver pays for its turn, too.
constexpr double kSendersShare = 0.85;
constexpr double kCrowdedSendersShare = 0.65;
// Ranks that share cores also poll without success, and take turns: as much again.
constexpr double kCrowdedShare = 2;

// Of the time of a copy from memory into a slot: of data that is in this core's caches.
constexpr double kAgain = 0.5;
constexpr double kReceived = 0.75;  // out of a slot that another core has written
// Ranks that copy from one at the same time, over the rate of one of them.
constexpr double kReadersOfOne = 2;
// Reader and writer of a chunk by address that both copy, over one of them (benchmarks/data_path).
constexpr double kSharedCopy = 1.7;

// A rank's time for one chunk: to send, to copy or combine received data, and to copy without any
// link.
struct ChunkCosts {
  double send;
  double copy_in;
  double combine_in;
  double copy;
  // By messages that RankLoad counts as local.
  double local_send = 0;
  double local_copy_in = 0;
  double local_combine_in = 0;
  double less_again = 0;       // than `send`, for RankLoad::out_again
  double less_common = 0;      // than that, for RankLoad::out_common
  double less_shared = 0;      // than `copy_in`, of a rank that sends nothing
  double less_joined_out = 0;  // than `send`, for RankLoad::joined_out
  double less_joined_in = 0;
  [[nodiscard]] double of(const RankLoad& load) const {
    const int shared = load.messages_out == 0 ? load.copied_in : 0;
    return -load.out_again * less_again - load.out_common * less_common - shared * less_shared -
           load.joined_out * less_joined_out - load.joined_in * less_joined_in +
           (load.messages_out - load.local_out) * send +
           (load.combined_in - load.local_combined_in) * combine_in +
           (load.copied_in - load.local_copied_in) * copy_in + load.copies * copy +
           load.local_out * local_send + load.local_combined_in * local_combine_in +
           load.local_copied_in * local_copy_in;
  }
};

ChunkCosts network_costs(const CostContext& context, double message, double chunk) {
  const MachineConstants& machine = context.machine;
  const bool joins = context.joined_bytes > 0 && chunk <= static_cast<double>(context.joined_bytes);
  const double to_send =
      message * (context.ranks_per_core > 1 ? kCrowdedSendersShare : kSendersShare);
  const double to_receive = message - to_send;
  const double receive = to_receive + chunk / machine.network_rate;
  const double copy = machine.chunk_cost + chunk / machine.copy_rate;
  return {.send = to_send + chunk / machine.network_rate,
          .copy_in = receive,
          .combine_in = receive + chunk / machine.combine_rate,
          .copy = chunk / machine.copy_rate,
          .local_send = copy,
          .local_copy_in = copy,
          .local_combine_in = machine.chunk_cost + chunk / machine.combine_rate,
          .less_joined_out = joins ? to_send : 0,
          .less_joined_in = joins ? to_receive : 0};
}

double busiest(const ScheduleShape& shape, const ChunkCosts& costs) {
  double most = 0;
  for (const RankLoad& load : shape.loads) most = std::max(most, costs.of(load));
  return most;
}

// Calls with a root that follow each other overlap, as nobody in them waits for all others: each
// then takes what it costs the busiest rank. Some calls come alone; the mean of both.
double mean_of_rooted(double alone, double work) { return (alone + work) / 2; }

// More links on a NIC cost no more.
constexpr int kMostSharing = 5;
// Of a link that has half of what sharing costs.
constexpr double kSharingBytes = 256 << 10;

double sharing(const ScheduleShape& shape, const CostContext& context, double unit_bytes) {
  const double of_link = shape.leaving_link_units * unit_bytes;
  const int others = std::clamp(context.nics.links, 1, kMostSharing) - 1;
  return 1 + context.nic_sharing_cost * others * of_link / (of_link + kSharingBytes);
}

// NICs carry while processors work, but for the chain of messages that each call waits for, and
// where what ranks reduce comes back to them: a rank then goes on with a round when it has its part
// of one before, so that each costs a latency. `first`: the time of one round by processors and
// latencies; `work`: of each further one.
double with_nics(const ScheduleShape& shape, const CostContext& context, double chain, double first,
                 double work, double rounds, double round_bytes) {
  const double without = plan::pipelined_seconds(first, rounds, work);
  if (context.nics.period == 0) return without;
  const bool comes_back = shape.all.combined_in > 0 && shape.all.copied_in > 0;
  const double latency =
      (context.ranks_per_core > 1 ? kCrowdedShare : 1) * context.machine.network_latency;
  const double nics =
      context.nics.seconds(rounds, round_bytes) * sharing(shape, context, rounds * round_bytes);
  return std::max(without, chain + nics + (comes_back ? (rounds - 1) * latency : 0));
}

double over_network(const ScheduleShape& shape, const CostContext& context, double chunk,
                    double rounds) {
  const MachineConstants& machine = context.machine;
  const int leaving_hops = shape.longest_path - shape.local_path;
  const double round_bytes = chunk * shape.parts * shape.channels;
  // A message within a host: as without a network.
  double local_hop = machine.hop_latency +
                     shape.channels * (2 * machine.chunk_cost + chunk / machine.copy_rate +
                                       chunk / (shape.all.combined_in > 0 ? machine.combine_rate
                                                                          : machine.copy_rate));
  if (context.ranks_per_core > 1) {
    local_hop += machine.switch_cost;
    const ChunkCosts costs = network_costs(context, kCrowdedShare * machine.network_message, chunk);
    const double all = costs.of(shape.all) / shape.ranks * context.ranks_per_core;
    const double most = busiest(shape, costs);
    const double chain = leaving_hops * machine.network_message + shape.local_path * local_hop;
    return with_nics(shape, context, chain, all + most + chain, std::max(all, most), rounds,
                     round_bytes);
  }
  const ChunkCosts costs = network_costs(context, machine.network_message, chunk);
  const double work = busiest(shape, costs);
  // The latency has the cost of a short message in it. One thread does the work of all channels.
  const double hop = machine.network_latency + (shape.channels - 1) * machine.network_message +
                     shape.channels * 2 * chunk / machine.network_rate;
  const double path = leaving_hops * hop + shape.local_path * local_hop;
  // What the chain's messages cost the busiest rank is in their hops; others come in addition.
  const double of_chain =
      leaving_hops * shape.channels * (machine.network_message + 2 * chunk / machine.network_rate) +
      shape.local_path * (local_hop - machine.hop_latency);
  const double alone = std::max(work, path + std::max(0.0, work - of_chain));
  const double first = shape.rooted ? mean_of_rooted(alone, work) : alone;
  return with_nics(shape, context, path, first, work, rounds, round_bytes);
}

}  // namespace

double predict(const ScheduleShape& shape, const CostContext& context, std::size_t unit_bytes,
               std::size_t chunk_bytes, bool by_address) {
  const MachineConstants& machine = context.machine;
  const double part = static_cast<double>(unit_bytes) / (shape.parts * shape.channels);
  double chunk = std::min(part, static_cast<double>(chunk_bytes));
  double rounds = chunk > 0 ? std::max(1.0, part / chunk) : 1;
  if (shape.heaviest > 1 && chunk > 0) {  // the heaviest channel's rounds; chunks on average
    rounds = std::max(1.0, part * shape.heaviest / static_cast<double>(chunk_bytes));
    chunk = part / rounds;
  }
  if (context.network) return over_network(shape, context, chunk, rounds);
  const bool short_chunk = chunk <= static_cast<double>(context.short_bytes);
  const bool lines = shape.rooted && context.ranks_per_core <= 1 && short_chunk;
  const double send = machine.chunk_cost + (by_address ? 0 : chunk / machine.copy_rate);
  const double copy_in =
      machine.chunk_cost + (by_address ? machine.address_cost + chunk / machine.address_move_rate
                                       : kReceived * chunk / machine.copy_rate);
  // By address: through the core's own cache, from which it is then combined.
  const double combine_in =
      machine.chunk_cost + (by_address ? machine.address_cost + chunk / machine.address_rate +
                                             chunk / machine.combine_rate / 2
                                       : chunk / machine.combine_rate);
  // Its line comes back from the core that read it last.
  const double of_line = lines ? std::max(0.0, machine.hop_latency - machine.chunk_cost) : 0;
  ChunkCosts costs{send + of_line, copy_in, combine_in, chunk / machine.copy_rate};
  if (!by_address) {
    // What takes time of a short copy is the slot's lines, which come back as the header's does.
    if (!lines) costs.less_again = (1 - kAgain) * chunk / machine.copy_rate;
    // Where ranks share cores it gains little: each acknowledgement is a turn of the scheduler.
    const bool common = context.ranks_per_core <= 1 && !short_chunk;
    if (common) costs.less_common = kAgain * chunk / machine.copy_rate;
  }
  const double of_all = costs.of(shape.all) / shape.ranks * context.ranks_per_core;
  if (by_address && context.share_bytes > 0 && chunk >= context.share_bytes) {
    costs.less_shared = (1 - 1 / kSharedCopy) * chunk / machine.address_move_rate;
  }
  double work = busiest(shape, costs) * context.ranks_per_core;
  if (costs.less_shared > 0) work = std::max(work, of_all);
  if (by_address && !context.same_process) {
    const double of_one = chunk / (kReadersOfOne * machine.address_move_rate);
    for (const RankLoad& load : shape.loads) work = std::max(work, load.messages_out * of_one);
  }
  const bool combines = shape.all.combined_in > 0;
  // One thread does the work of all channels, in turn.
  const bool shared = std::ranges::all_of(shape.loads, [](const RankLoad& load) {
    return load.copied_in == 0 || load.messages_out == 0;
  });
  const double hop =
      machine.hop_latency +
      shape.channels *
          (send + (combines ? combine_in : copy_in - (shared ? costs.less_shared : 0)));
  // Ranks that share a core do nothing else while it goes from one to the next, which each hop
  // waits for: so this adds to the work.
  const double switches = context.ranks_per_core > 1 ? shape.longest_path * machine.switch_cost : 0;
  const double alone = std::max(shape.longest_path * hop, work);
  return switches +
         plan::pipelined_seconds(lines ? mean_of_rooted(alone, work) : alone, rounds, work);
}

}  // namespace ropewalk::tune
