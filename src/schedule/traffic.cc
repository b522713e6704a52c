#include "schedule/traffic.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <queue>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "plan/chunk_model.h"
#include "plan/device_path.h"
#include "schedule/layout.h"

namespace ropewalk::schedule {
namespace {

using topology::LinkIndex;
using topology::NodeIndex;
using topology::NodeKind;

constexpr double kScheduleChunk = 512.0 * 1024;
constexpr int kMostRounds = 1 << 20;

int rounds_for(double bytes, double chunk) {
  return std::clamp(static_cast<int>(std::ceil(bytes / chunk - 1e-9)), 1, kMostRounds);
}

double latency_seconds(const topology::Topology& topology, const std::vector<int>& links) {
  double us = 0;
  for (const int link : links) {
    us += topology::latency_us(topology.link(static_cast<std::size_t>(link)));
  }
  return us * 1e-6;
}

/// Makes all rounds fewer, by one factor, until no more than `most` messages are moved.
void limit_messages(Traffic& traffic, double most) {
  const double messages = traffic.messages();
  if (messages <= most) return;
  for (Traffic::Strand& strand : traffic.strands) {
    const int fewer = std::max(1, static_cast<int>(strand.rounds * most / messages));
    for (Traffic::Step& step : strand.steps)
      step.bytes *= static_cast<double>(strand.rounds) / fewer;
    strand.rounds = fewer;
  }
}

/// One tree of a plan as strands of one step each.
class TreeTraffic {
 public:
  TreeTraffic(const topology::Topology& topology, const plan::Plan& plan,
              const TrafficOptions& options, Traffic& traffic)
      : topology_(topology), plan_(plan), options_(options), traffic_(traffic) {}

  /// Chunks of the best size for the tree's longest path, or of the given size.
  struct Wish {
    int hops = 0;
    int rounds = 1;
    double messages_per_round = 0;
  };
  [[nodiscard]] Wish wish(const plan::Tree& tree) const {
    const double bytes = bytes_of(tree);
    const auto [hops, hop] = deepest(tree);
    Wish out;
    out.hops = hops;
    out.messages_per_round = static_cast<double>(tree.reduce.size() + tree.broadcast.size());
    out.rounds = rounds_for(bytes, options_.chunk_bytes > 0
                                       ? options_.chunk_bytes
                                       : plan::best_chunk(hops, bytes, hop).chunk_bytes);
    return out;
  }

  void add(const plan::Tree& tree, int rounds) {
    const double bytes = bytes_of(tree);
    const double rate = tree.weight.to_double();
    const auto n = static_cast<std::size_t>(plan_.num_ranks());
    std::vector<Traffic::Step> up(n);
    std::vector<Traffic::Step> down(n);
    for (const plan::TreeEdge& edge : tree.reduce) add_edge(edge, rate, up);
    for (const plan::TreeEdge& edge : tree.broadcast) add_edge(edge, rate, down);
    const auto root = static_cast<std::size_t>(tree.root);
    if (!tree.reduce.empty() && !tree.broadcast.empty()) {
      // The root sends a chunk down when its sum is complete.
      down[root].receive = std::move(up[root].receive);
      up[root] = {};
    }
    for (std::size_t rank = 0; rank < n; ++rank) {
      for (Traffic::Step* step : {&up[rank], &down[rank]}) {
        if (step->receive.empty() && step->send.empty()) continue;
        step->bytes = bytes / rounds;
        traffic_.strands.push_back({static_cast<int>(rank), rounds, {std::move(*step)}});
      }
    }
  }

 private:
  void add_edge(const plan::TreeEdge& edge, double rate, std::vector<Traffic::Step>& steps) {
    const int pipe = static_cast<int>(traffic_.pipes.size());
    traffic_.pipes.push_back({edge.source, edge.destination, options_.paced ? rate : 0});
    traffic_.paths.push_back(edge.links);
    steps[static_cast<std::size_t>(edge.source)].send.push_back(
        {pipe, static_cast<int>(traffic_.paths.size()) - 1});
    steps[static_cast<std::size_t>(edge.destination)].receive.push_back(pipe);
  }

  [[nodiscard]] double bytes_of(const plan::Tree& tree) const {
    return options_.bytes * (tree.weight / plan_.algbw).to_double();
  }

  /// Hops of the tree's longest path, and the mean cost of one hop.
  [[nodiscard]] std::pair<int, plan::HopCost> deepest(const plan::Tree& tree) const {
    std::vector<std::pair<int, double>> depth(static_cast<std::size_t>(plan_.num_ranks()), {0, 0});
    const auto longest = [&](const std::vector<plan::TreeEdge>& edges, bool reversed) {
      std::pair<int, double> most{0, 0};
      std::fill(depth.begin(), depth.end(), std::pair(0, 0.0));
      const auto visit = [&](const plan::TreeEdge& edge) {
        const auto& from =
            depth[static_cast<std::size_t>(reversed ? edge.destination : edge.source)];
        auto& to = depth[static_cast<std::size_t>(reversed ? edge.source : edge.destination)];
        to = {from.first + 1, from.second + latency_seconds(topology_, edge.links)};
        most = std::max(most, to);
      };
      if (reversed) {
        std::for_each(edges.rbegin(), edges.rend(), visit);
      } else {
        std::for_each(edges.begin(), edges.end(), visit);
      }
      return most;
    };
    const auto up = longest(tree.reduce, true);
    const auto down = longest(tree.broadcast, false);
    const int hops = up.first + down.first;
    const double alpha = hops > 0 ? (up.second + down.second) / hops : 0;
    return {hops, {alpha, tree.weight.to_double() * 1e9, 0}};
  }

  const topology::Topology& topology_;
  const plan::Plan& plan_;
  const TrafficOptions& options_;
  Traffic& traffic_;
};

}  // namespace

double Traffic::messages() const {
  double messages = 0;
  for (const Strand& strand : strands) {
    for (const Step& step : strand.steps) {
      messages += static_cast<double>(step.send.size()) * strand.rounds;
    }
  }
  return messages;
}

double Traffic::largest_chunk() const {
  double bytes = 0;
  for (const Strand& strand : strands) {
    for (const Step& step : strand.steps) {
      if (!step.send.empty()) bytes = std::max(bytes, step.bytes);
    }
  }
  return bytes;
}

Traffic traffic_of(const topology::Topology& topology, const plan::Plan& plan,
                   const TrafficOptions& options) {
  Traffic traffic;
  TreeTraffic trees(topology, plan, options, traffic);
  std::vector<TreeTraffic::Wish> wishes;
  for (const plan::Tree& tree : plan.trees) wishes.push_back(trees.wish(tree));
  // Filling a tree takes as many of its chunks as it is deep. Where there may be fewer chunks than
  // the best number, deep trees have more of them, so that filling costs all trees the same share.
  const auto rounds = [](const TreeTraffic::Wish& wish, double chunks_per_hop) {
    return std::clamp(static_cast<int>(std::min<double>(wish.hops * chunks_per_hop, kMostRounds)),
                      1, wish.rounds);
  };
  const auto messages = [&](double chunks_per_hop) {
    double sum = 0;
    for (const TreeTraffic::Wish& wish : wishes) {
      sum += rounds(wish, chunks_per_hop) * wish.messages_per_round;
    }
    return sum;
  };
  double chunks_per_hop = kMostRounds;
  traffic.wished_messages = messages(chunks_per_hop);
  if (messages(chunks_per_hop) > options.most_messages) {
    double low = 0;
    for (int step = 0; step < 60; ++step) {
      const double middle = (low + chunks_per_hop) / 2;
      (messages(middle) > options.most_messages ? chunks_per_hop : low) = middle;
    }
    chunks_per_hop = low;
  }
  for (std::size_t i = 0; i < plan.trees.size(); ++i) {
    trees.add(plan.trees[i], rounds(wishes[i], chunks_per_hop));
  }
  return traffic;
}

Traffic traffic_of(const topology::Topology& topology, const Schedule& schedule,
                   const Routes& routes, const TrafficOptions& options) {
  if (topology.gpus().size() < static_cast<std::size_t>(schedule.num_ranks)) {
    throw Error(Errc::kInvalidArgument, "{} has {} GPUs, the schedule {} ranks", topology.name(),
                topology.gpus().size(), schedule.num_ranks);
  }
  Traffic traffic;
  // Elements do not matter here: shares are exact.
  double total_weight = 0;
  for (const int weight : schedule.weight) total_weight += weight;
  const double units = num_units(schedule.collective, schedule.num_ranks);
  const double per_rank = schedule.collective == Collective::kSendRecv ? 1 : units;
  const double unit_bytes =
      options.bytes /
      (schedule.collective == Collective::kAllToAll ? schedule.num_ranks : per_rank);
  const double chunk = options.chunk_bytes > 0 ? options.chunk_bytes : kScheduleChunk;
  const auto block_of = [&](int channel) {
    return unit_bytes * schedule.weight[static_cast<std::size_t>(channel)] / total_weight /
           schedule.parts;
  };
  // All channels take the same number of rounds (comm/prepared.cc), so that all end together.
  int rounds = 1;
  for (int channel = 0; channel < schedule.num_channels(); ++channel) {
    rounds = std::max(rounds, rounds_for(block_of(channel), chunk));
  }
  std::map<std::pair<int, int>, int> default_path;
  for (int channel = 0; channel < schedule.num_channels(); ++channel) {
    const double block_bytes = block_of(channel);
    std::map<std::pair<int, int>, int> pipe_of;
    const auto pipe = [&](int source, int destination) {
      const auto [entry, is_new] =
          pipe_of.try_emplace({source, destination}, static_cast<int>(traffic.pipes.size()));
      if (is_new) traffic.pipes.push_back({source, destination, 0});
      return entry->second;
    };
    for (int rank = 0; rank < schedule.num_ranks; ++rank) {
      Traffic::Strand strand{rank, rounds, {}};
      std::map<std::pair<int, int>, int> sent;
      for (const Step& step :
           schedule.programs[static_cast<std::size_t>(rank)][static_cast<std::size_t>(channel)]) {
        Traffic::Step made;
        made.bytes = block_bytes / rounds;
        for (const Operand& operand : step.operands) {
          if (operand.kind == Operand::Kind::kLink) {
            made.receive.push_back(pipe(operand.peer, rank));
          }
        }
        for (const int peer : step.send) {
          const std::vector<int>* path =
              routes.find(channel, step.block, rank, peer, sent[{step.block, peer}]++);
          int index = static_cast<int>(traffic.paths.size());
          if (path != nullptr) {
            traffic.paths.push_back(*path);
          } else {
            const auto [entry, is_new] = default_path.try_emplace({rank, peer}, index);
            if (is_new) traffic.paths.push_back(default_route(topology, rank, peer));
            index = entry->second;
          }
          made.send.push_back({pipe(rank, peer), index});
        }
        strand.steps.push_back(std::move(made));
      }
      if (!strand.steps.empty()) traffic.strands.push_back(std::move(strand));
    }
  }
  traffic.wished_messages = traffic.messages();
  limit_messages(traffic, options.most_messages);
  return traffic;
}

std::vector<int> default_route(const topology::Topology& topology, int from_rank, int to_rank) {
  const NodeIndex from = topology.gpus().at(static_cast<std::size_t>(from_rank));
  const NodeIndex to = topology.gpus().at(static_cast<std::size_t>(to_rank));
  if (topology.node(from).host == topology.node(to).host) {
    if (auto path = plan::nearest_between_gpus(topology, from, to)) return std::move(path->links);
  }
  using Open = std::tuple<int, double, NodeIndex>;  // links, minus the narrowest one's rate, node
  std::priority_queue<Open, std::vector<Open>, std::greater<>> open;
  std::vector<bool> done(topology.nodes().size(), false);
  std::vector<std::pair<int, double>> best(topology.nodes().size(), {-1, 0});
  std::vector<LinkIndex> by(topology.nodes().size(), 0);
  open.emplace(0, -1e300, from);
  while (!open.empty()) {
    const auto [links, width, node] = open.top();
    open.pop();
    if (done[node]) continue;
    done[node] = true;
    if (node == to) break;
    if (node != from && topology.node(node).kind == NodeKind::kGpu) continue;
    for (const LinkIndex index : topology.links_from(node)) {
      const topology::Link& link = topology.link(index);
      if (done[link.destination]) continue;
      const std::pair<int, double> found{links + 1, std::max(width, -link.capacity)};
      auto& known = best[link.destination];
      if (known.first >= 0 && known <= found) continue;
      known = found;
      by[link.destination] = index;
      open.emplace(found.first, found.second, link.destination);
    }
  }
  if (!done[to]) {
    throw Error(Errc::kInvalidArgument, "{}: no path from {} to {}", topology.name(),
                topology.node(from).id, topology.node(to).id);
  }
  std::vector<int> path;
  for (NodeIndex at = to; at != from; at = topology.link(by[at]).source) {
    path.push_back(static_cast<int>(by[at]));
  }
  std::reverse(path.begin(), path.end());
  return path;
}

}  // namespace ropewalk::schedule
