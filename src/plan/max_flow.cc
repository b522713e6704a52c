#include "plan/max_flow.h"

#include <algorithm>

#include "core/index.h"
#include "core/interrupt.h"

namespace ropewalk::plan {

FlowGraph::FlowGraph(int nodes) : leaving_(at(nodes)) {}

int FlowGraph::add_node() {
  leaving_.emplace_back();
  return static_cast<int>(leaving_.size()) - 1;
}

int FlowGraph::add_arc(int from, int to, Capacity capacity) {
  const int arc = static_cast<int>(capacities_.size());
  leaving_[at(from)].push_back(2 * arc);
  leaving_[at(to)].push_back(2 * arc + 1);
  halves_.push_back({to, 0});
  halves_.push_back({from, 0});
  capacities_.push_back(capacity);
  return arc;
}

void FlowGraph::set_capacity(int arc, Capacity capacity) { capacities_[at(arc)] = capacity; }

// From the sink: so every node that push() enters leads there, until its arcs are full.
bool FlowGraph::layer(int source, int sink) {
  layer_.assign(leaving_.size(), -1);
  layer_[at(sink)] = 0;
  queue_.clear();
  queue_.push_back(sink);
  for (std::size_t head = 0; head < queue_.size(); ++head) {
    const int node = queue_[head];
    for (const int half : leaving_[at(node)]) {
      const int from = halves_[at(half)].to;
      if (halves_[at(half ^ 1)].left > 0 && layer_[at(from)] < 0) {
        layer_[at(from)] = layer_[at(node)] + 1;
        if (from == source) {
          return true;
        }
        queue_.push_back(from);
      }
    }
  }
  return false;
}

Capacity FlowGraph::push(int node, int sink, Capacity limit) {
  if (node == sink) {
    return limit;
  }
  const int next_layer = layer_[at(node)] - 1;
  Capacity sent = 0;
  for (std::size_t& i = next_[at(node)]; i < leaving_[at(node)].size(); ++i) {
    const int half = leaving_[at(node)][i];
    Arc& arc = halves_[at(half)];
    if (arc.left <= 0 || layer_[at(arc.to)] != next_layer) {
      continue;
    }
    const Capacity pushed = push(arc.to, sink, std::min(limit - sent, arc.left));
    arc.left -= pushed;
    halves_[at(half ^ 1)].left += pushed;
    sent += pushed;
    if (sent == limit) {
      return sent;  // before ++i: this arc may have more
    }
  }
  return sent;
}

Capacity FlowGraph::max_flow(int source, int sink, Capacity enough) {
  check_stopped("planning");
  for (std::size_t arc = 0; arc < capacities_.size(); ++arc) {
    halves_[2 * arc].left = capacities_[arc];
    halves_[2 * arc + 1].left = 0;
  }
  last_source_ = source;
  if (source == sink) {
    return enough;
  }
  Capacity flow = 0;
  while (flow < enough && layer(source, sink)) {
    next_.assign(leaving_.size(), 0);
    flow += push(source, sink, enough - flow);
  }
  return flow;
}

std::vector<bool> FlowGraph::source_side() const {
  std::vector<bool> reached(leaving_.size(), false);
  std::vector<int> pending{last_source_};
  reached[at(last_source_)] = true;
  while (!pending.empty()) {
    const int node = pending.back();
    pending.pop_back();
    for (const int half : leaving_[at(node)]) {
      const Arc& arc = halves_[at(half)];
      if (arc.left > 0 && !reached[at(arc.to)]) {
        reached[at(arc.to)] = true;
        pending.push_back(arc.to);
      }
    }
  }
  return reached;
}

}  // namespace ropewalk::plan
