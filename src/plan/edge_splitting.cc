#include "plan/edge_splitting.h"

#include <algorithm>
#include <numeric>

#include "core/error.h"
#include "core/index.h"

namespace ropewalk::plan {

namespace {
constexpr int kMostNodes = 400;  // some ten seconds; time grows with more than the third power
}  // namespace

SplitNetwork::SplitNetwork(const Network& network, const Supplies& supplies)
    : num_ranks_(network.num_ranks()) {
  // Ranks get the first indices, then the nodes that have arcs.
  std::vector<int> index(at(network.num_nodes), -1);
  for (int rank = 0; rank < num_ranks_; ++rank) {
    index[at(network.ranks[at(rank)])] = rank;
  }
  num_nodes_ = num_ranks_;
  for (const Arc& arc : network.arcs) {
    for (const int node : {arc.from, arc.to}) {
      if (index[at(node)] < 0) {
        index[at(node)] = num_nodes_++;
      }
    }
  }
  if (num_nodes_ > kMostNodes) {
    throw Error(Errc::kInvalidArgument,
                "edge splitting: {} nodes; {} is the limit for exact trees on a machine (or an "
                "operation with a root) that differs between nodes",
                num_nodes_, kMostNodes);
  }
  pairs_.resize(at(num_nodes_) * at(num_nodes_));
  gone_.assign(at(num_nodes_), false);
  for (std::size_t i = 0; i < network.arcs.size(); ++i) {
    const Arc& arc = network.arcs[i];
    Pair& direct = pair(index[at(arc.from)], index[at(arc.to)]);
    direct.capacity += arc.capacity;
    direct.parts.push_back({static_cast<int>(i), -1, arc.capacity});
  }
  // Nodes with few neighbours first: they leave fewer choices, and their going makes the rest
  // small.
  for (int left = num_nodes_ - num_ranks_; left > 0; --left) {
    int best = -1;
    int fewest = 0;
    for (int node = num_ranks_; node < num_nodes_; ++node) {
      if (gone_[at(node)]) {
        continue;
      }
      int neighbours = 0;
      for (int other = 0; other < num_nodes_; ++other) {
        neighbours += pair(node, other).capacity > 0 || pair(other, node).capacity > 0 ? 1 : 0;
      }
      if (best < 0 || neighbours < fewest) {
        best = node;
        fewest = neighbours;
      }
    }
    remove(best, supplies);
  }
}

Capacity SplitNetwork::capacity(int from_rank, int to_rank) const {
  return pair(from_rank, to_rank).capacity;
}

void SplitNetwork::join(int from, int via, int to, Capacity amount) {
  pair(from, via).capacity -= amount;
  pair(via, to).capacity -= amount;
  if (from == to) {
    return;  // a path back to its own start is useless
  }
  Pair& direct = pair(from, to);
  direct.capacity += amount;
  for (Part& part : direct.parts) {
    if (part.via == via) {
      part.left += amount;
      return;
    }
  }
  direct.parts.push_back({-1, via, amount});
}

Capacity SplitNetwork::joinable(int from, int via, int to, Capacity wanted,
                                const Supplies& supplies) const {
  const Capacity total = std::accumulate(supplies.begin(), supplies.end(), Capacity{0});
  FlowGraph graph(num_nodes_);
  for (int a = 0; a < num_nodes_; ++a) {
    for (int b = 0; b < num_nodes_; ++b) {
      if (a != b && pair(a, b).capacity > 0) {
        graph.add_arc(a, b, pair(a, b).capacity);
      }
    }
  }
  const int source = graph.add_node();
  for (int rank = 0; rank < num_ranks_; ++rank) {
    if (supplies[at(rank)] > 0) {
      graph.add_arc(source, rank, supplies[at(rank)]);
    }
  }
  // Cuts that hold the source, `from` and `to` but not `via` lose what is joined, for every rank
  // outside: an unlimited arc rank -> via keeps the rank outside with `via`.
  const int from_source = graph.add_arc(from, source, kUnlimited);
  graph.add_arc(from, to, kUnlimited);
  for (int rank = 0; rank < num_ranks_ && wanted > 0; ++rank) {
    if (rank == from || rank == to) {
      continue;
    }
    const int tie = graph.add_arc(rank, via, kUnlimited);
    wanted = std::min(wanted, graph.max_flow(from, via, total + wanted) - total);
    graph.set_capacity(tie, 0);
  }
  // Cuts that hold the source and `via` but neither `from` nor `to` lose it, for every rank
  // outside.
  graph.set_capacity(from_source, 0);
  graph.add_arc(via, source, kUnlimited);
  for (int rank = 0; rank < num_ranks_ && wanted > 0; ++rank) {
    const int tie = rank == to ? -1 : graph.add_arc(rank, to, kUnlimited);
    wanted = std::min(wanted, graph.max_flow(via, to, total + wanted) - total);
    if (tie >= 0) {
      graph.set_capacity(tie, 0);
    }
  }
  return std::max(wanted, Capacity{0});
}

void SplitNetwork::remove(int node, const Supplies& supplies) {
  std::vector<int> in;
  std::vector<int> out;
  Capacity entering = 0;
  for (int other = 0; other < num_nodes_; ++other) {
    if (pair(other, node).capacity > 0) {
      in.push_back(other);
      entering += pair(other, node).capacity;
    }
    if (pair(node, other).capacity > 0) {
      out.push_back(other);
    }
  }
  std::vector<int> around = in;
  around.insert(around.end(), out.begin(), out.end());
  std::sort(around.begin(), around.end());
  around.erase(std::unique(around.begin(), around.end()), around.end());

  // With two neighbours each direction has only one path through the node, and no cut gains by
  // keeping the node.
  const bool passage = around.size() == 2;
  const auto try_join = [&](int from, int to, Capacity wanted) {
    wanted = std::min({wanted, pair(from, node).capacity, pair(node, to).capacity});
    if (wanted > 0) {
      join(from, node, to,
           passage && from != to ? wanted : joinable(from, node, to, wanted, supplies));
    }
  };
  // First an even share for every pair, which gives flat trees behind a switch that joins all.
  // What the even shares leave is joined as far as it goes, pair by pair.
  std::vector<std::pair<std::pair<int, int>, Capacity>> even;
  for (const int from : in) {
    for (const int to : out) {
      const Capacity others = entering - pair(to, node).capacity;
      if (from != to && others > 0) {
        const auto share = static_cast<Capacity>(static_cast<__int128>(pair(from, node).capacity) *
                                                 pair(node, to).capacity / others);
        even.push_back({{from, to}, share});
      }
    }
  }
  for (const auto& [ends, share] : even) {
    try_join(ends.first, ends.second, share);
  }
  for (const bool loops : {false, true}) {
    for (const int from : in) {
      for (const int to : out) {
        if ((from == to) == loops) {
          try_join(from, to, kUnlimited);
        }
      }
    }
  }
  for (int other = 0; other < num_nodes_; ++other) {
    RW_ASSERT(pair(other, node).capacity == 0 && pair(node, other).capacity == 0);
  }
  gone_[at(node)] = true;
}

std::vector<PathShare> SplitNetwork::take_nodes(int from, int to, Capacity amount) {
  std::vector<PathShare> out;
  while (amount > 0) {
    // One part that holds all of it, if there is; else the largest: few and long pieces.
    std::vector<Part>& parts = pair(from, to).parts;
    Part* best = nullptr;
    for (Part& part : parts) {
      if (part.left <= 0) {
        continue;
      }
      if (best == nullptr ||
          (best->left < amount ? part.left > best->left
                               : part.left >= amount && part.left < best->left)) {
        best = &part;
      }
    }
    RW_ASSERT(best != nullptr);
    const Capacity taken = std::min(amount, best->left);
    best->left -= taken;
    amount -= taken;
    if (best->arc >= 0) {
      out.push_back({{best->arc}, taken});
      continue;
    }
    const int via = best->via;
    const std::vector<PathShare> first = take_nodes(from, via, taken);
    const std::vector<PathShare> second = take_nodes(via, to, taken);
    // Both halves carry `taken`, in pieces of their own: cut at the boundaries of either.
    std::size_t a = 0;
    std::size_t b = 0;
    Capacity left_a = first[0].amount;
    Capacity left_b = second[0].amount;
    while (a < first.size()) {
      const Capacity piece = std::min(left_a, left_b);
      PathShare joined = first[a];
      joined.arcs.insert(joined.arcs.end(), second[b].arcs.begin(), second[b].arcs.end());
      joined.amount = piece;
      out.push_back(std::move(joined));
      left_a -= piece;
      left_b -= piece;
      if (left_a == 0 && ++a < first.size()) {
        left_a = first[a].amount;
      }
      if (left_b == 0 && ++b < second.size()) {
        left_b = second[b].amount;
      }
    }
  }
  return out;
}

std::vector<PathShare> SplitNetwork::take(int from_rank, int to_rank, Capacity amount) {
  return take_nodes(from_rank, to_rank, amount);
}

}  // namespace ropewalk::plan
