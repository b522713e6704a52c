// Maximum flow and minimum cut, exact, on graphs of up to some ten thousand arcs.
#pragma once

#include <cstdint>
#include <vector>

namespace ropewalk::plan {

using Capacity = std::int64_t;

/// More than any sum of real capacities: an arc that no minimum cut contains.
inline constexpr Capacity kUnlimited = INT64_MAX / 8;

/// A flow network with whole-number capacities. Dinic's algorithm: E. A. Dinic, Soviet Mathematics
/// Doklady 11 (1970), O(nodes^2 arcs), far less on these graphs.
///
/// Made once and used for many flows: capacities can be changed, and nodes and arcs added, between
/// calls. Threads: one at a time.
class FlowGraph {
 public:
  explicit FlowGraph(int nodes);

  int add_node();
  /// @return the arc's number, for set_capacity
  int add_arc(int from, int to, Capacity capacity);
  void set_capacity(int arc, Capacity capacity);
  [[nodiscard]] Capacity capacity(int arc) const {
    return capacities_[static_cast<std::size_t>(arc)];
  }

  /// The maximum flow from `source` to `sink`, or `enough` if it is at least that.
  /// Stopping early is what makes tests of the form "at least D?" cheap.
  Capacity max_flow(int source, int sink, Capacity enough = kUnlimited);

  /// After max_flow: the nodes that the last flow's residual graph reaches from its source. A
  /// minimum cut if the flow was not stopped early.
  [[nodiscard]] std::vector<bool> source_side() const;

 private:
  struct Arc {
    int to;
    Capacity left;
  };

  bool layer(int source, int sink);
  Capacity push(int node, int sink, Capacity limit);

  std::vector<std::vector<int>> leaving_;  // half-arcs of each node; 2a and 2a+1 are one arc
  std::vector<Arc> halves_;
  std::vector<Capacity> capacities_;
  std::vector<int> layer_;
  std::vector<std::size_t> next_;
  std::vector<int> queue_;
  int last_source_ = 0;
};

}  // namespace ropewalk::plan
