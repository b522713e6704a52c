#include "schedule/microbench.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "core/error.h"
#include "schedule/building.h"
#include "schedule/limits.h"
#include "schedule/tree.h"

namespace ropewalk::schedule {
namespace {

constexpr std::string_view kForward = "forward";
constexpr std::string_view kReduceForward = "reduce-forward";
constexpr std::string_view kReduceBroadcast = "reduce-broadcast";

/// A pattern as a tree over nodes with its root at node 0, and the rank at each node.
struct Shape {
  Tree tree;
  std::vector<int> order;
};

Shape chain(int length, bool towards_last) {
  Shape shape{path_tree(length), {}};
  shape.order.resize(static_cast<std::size_t>(length));
  std::iota(shape.order.begin(), shape.order.end(), 0);
  // What is reduced flows to the root: from rank 0 to the last rank, as what is forwarded does.
  if (towards_last) std::reverse(shape.order.begin(), shape.order.end());
  return shape;
}

/// Root, centre, and `width` leaves of the centre; `ranks` names root and centre, the leaves take
/// the numbers from `first_leaf` on.
Shape broom(int width, int root, int centre, int first_leaf) {
  std::vector<int> parent = {-1, 0};
  Shape shape{{}, {root, centre}};
  for (int leaf = 0; leaf < width; ++leaf) {
    parent.push_back(1);
    shape.order.push_back(first_leaf + leaf);
  }
  shape.tree = tree_of(std::move(parent));
  return shape;
}

Shape star(int width) {
  std::vector<int> parent = {-1};
  Shape shape{{}, {width}};
  for (int leaf = 0; leaf < width; ++leaf) {
    parent.push_back(0);
    shape.order.push_back(leaf);
  }
  shape.tree = tree_of(std::move(parent));
  return shape;
}

Shape spider(int legs, int length) {
  std::vector<int> parent = {-1};
  for (int leg = 0; leg < legs; ++leg) {
    for (int i = 0; i < length; ++i) parent.push_back(i == 0 ? 0 : leg * length + i);
  }
  Shape shape{tree_of(std::move(parent)), {}};
  shape.order.resize(shape.tree.parent.size());
  std::iota(shape.order.begin(), shape.order.end(), 0);
  return shape;
}

Shape shape_of(const MicroRequest& request) {
  if (request.pattern == "chain") return chain(request.length, request.test != kForward);
  if (request.pattern == "fan-in") {
    return broom(request.width, request.width + 1, request.width, /*first_leaf=*/0);
  }
  if (request.pattern == "fan-out") return broom(request.width, 0, 1, /*first_leaf=*/2);
  if (request.pattern == "mimo") return star(request.width);
  return spider(request.width, request.length);
}

Schedule empty(const MicroRequest& request, Collective collective, int num_ranks, int root,
               int parts) {
  std::string label(request.pattern);
  label += '.';
  label += request.test;
  return blank(label, {collective, num_ranks, root, 1}, parts, 1);
}

/// Sources to sink through the centre, unreduced: a gather whose blocks all pass the centre.
Schedule fan_in_forward(const MicroRequest& request) {
  const int centre = request.width;
  const int sink = request.width + 1;
  Schedule schedule = empty(request, Collective::kGather, sink + 1, sink, 1);
  const auto steps = [&](int rank) -> StepList& {
    return schedule.programs[static_cast<std::size_t>(rank)][0];
  };
  steps(sink).push_back(write(sink, {Operand::input()}));
  steps(centre).push_back(send(centre, {Operand::input()}, {sink}));
  steps(sink).push_back(write(centre, {Operand::link(centre)}));
  for (int source = 0; source < request.width; ++source) {
    steps(source).push_back(send(source, {Operand::input()}, {centre}));
    steps(centre).push_back(send(source, {Operand::link(source)}, {sink}));
    steps(sink).push_back(write(source, {Operand::link(centre)}));
  }
  return schedule;
}

/// Every rank's data to the next rank, all through the centre: one stream in and one out for
/// every leaf. The centre takes the last leaf's data and gives its own to the first.
Schedule mimo_forward(const MicroRequest& request) {
  const int centre = request.width;
  Schedule schedule = empty(request, Collective::kSendRecv, centre + 1, 0, 1);
  const auto steps = [&](int rank) -> StepList& {
    return schedule.programs[static_cast<std::size_t>(rank)][0];
  };
  steps(centre).push_back(send(centre, {Operand::input()}, {0}));
  for (int leaf = 0; leaf < centre; ++leaf) {
    steps(leaf).push_back(send(leaf, {Operand::input()}, {centre}));
    if (leaf + 1 < centre) {
      steps(centre).push_back(send(leaf, {Operand::link(leaf)}, {leaf + 1}));
    } else {
      steps(centre).push_back(write(leaf, {Operand::link(leaf)}));
    }
    const int incoming = leaf == 0 ? centre : leaf - 1;
    steps(leaf).push_back(write(incoming, {Operand::link(centre)}));
  }
  return schedule;
}

Schedule along_tree(const MicroRequest& request) {
  const Shape shape = shape_of(request);
  const int ranks = shape.tree.size();
  const int root = shape.order.front();
  if (request.test == kForward) {
    Schedule schedule = empty(request, Collective::kBroadcast, ranks, root, 1);
    add_tree_broadcast(schedule, 0, shape.tree, shape.order);
    return schedule;
  }
  if (request.test == kReduceForward) {
    Schedule schedule = empty(request, Collective::kReduce, ranks, root, 1);
    add_tree_reduce(schedule, 0, shape.tree, shape.order);
    return schedule;
  }
  const int parts = tree_all_reduce_parts(shape.tree.height());
  Schedule schedule = empty(request, Collective::kAllReduce, ranks, 0, parts);
  add_tree_all_reduce(schedule, 0, shape.tree, shape.order);
  return schedule;
}

long long ranks_of(const MicroRequest& request) {
  if (request.pattern == "chain") return request.length;
  if (request.pattern == "mimo") return 1LL + request.width;
  if (request.pattern == "multi-chain") return 1 + 1LL * request.width * request.length;
  return 2LL + request.width;
}

void validate(const MicroRequest& request) {
  const auto tests = micro_tests(request.pattern);
  if (tests.empty()) {
    throw Error(Errc::kInvalidArgument,
                "unknown pattern \"{}\"; known are chain, fan-in, fan-out, mimo, multi-chain",
                request.pattern);
  }
  if (std::find(tests.begin(), tests.end(), request.test) == tests.end()) {
    std::string known;
    for (const std::string_view test : tests) {
      if (!known.empty()) known += ", ";
      known += test;
    }
    throw Error(Errc::kInvalidArgument, "pattern {} has no test \"{}\"; it has {}", request.pattern,
                request.test, known);
  }
  if (request.width < 1) {
    throw Error(Errc::kInvalidArgument, "pattern {} of width {}: must be 1 or more",
                request.pattern, request.width);
  }
  const int shortest = request.pattern == "chain" ? 2 : 1;
  if ((request.pattern == "chain" || request.pattern == "multi-chain") &&
      request.length < shortest) {
    throw Error(Errc::kInvalidArgument, "pattern {} with chains of {} ranks: must be {} or more",
                request.pattern, request.length, shortest);
  }
  if (ranks_of(request) > kMaxRanks) {
    throw Error(Errc::kInvalidArgument, "pattern {} would have {} ranks: at most {}",
                request.pattern, ranks_of(request), kMaxRanks);
  }
}

}  // namespace

std::vector<std::string_view> micro_tests(std::string_view pattern) {
  if (pattern == "chain" || pattern == "fan-in" || pattern == "multi-chain") {
    return {kForward, kReduceForward, kReduceBroadcast};
  }
  if (pattern == "fan-out" || pattern == "mimo") return {kForward, kReduceBroadcast};
  return {};
}

Schedule compile_micro(const MicroRequest& request) {
  validate(request);
  if (request.test == kForward && request.pattern == "fan-in") return fan_in_forward(request);
  if (request.test == kForward && request.pattern == "mimo") return mimo_forward(request);
  return along_tree(request);
}

}  // namespace ropewalk::schedule
