#include "tune/planned_candidates.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "plan/driver_hops.h"
#include "plan/link_split.h"
#include "plan/planner.h"
#include "schedule/from_plan.h"
#include "schedule/limits.h"
#include "schedule/text.h"

namespace ropewalk::tune {
namespace {

using plan::joins_gpus;
using topology::LinkType;

constexpr const char* kBetweenGpus = "between-gpus";
constexpr const char* kBesides = "besides";
constexpr const char* kPcie = "plan-optimal-pcie";
constexpr const char* kHybrid = "-hybrid";  // after the name of the plans that it joins
// What planning may take, in GPUs squared times links. Measured on one core of an AMD EPYC: packing
// takes some 15 us for each, the search for rings between hosts 40 us, so that what is made takes
// about a quarter of a second at most. (Two DGX-H100: 42,000. DGX-2 over NVLink: 8,000.)
constexpr double kMostPackingWork = 17'000;
constexpr double kMostRingWork = 6'000;
constexpr double kMostTreesWork = 300'000;
// A thorough request may take so many times as long.
constexpr double kThorough = 120;
// Rings through NICs follow from one host's GPUs and NICs: no search over all of them.
constexpr double kMostNicRingsWork = 10'000'000;
// To compare with: never the best.
constexpr double kMostFirstRingWork = 10'000;
// Shares of two classes of links are those of long messages; shorter ones take the faster alone.
constexpr double kLongMessage = 1e9;

bool driver_takes_all(const topology::Topology& machine, const plan::Plan& plan) {
  return std::ranges::all_of(plan.trees, [&](const plan::Tree& tree) {
    return plan::hop_class(machine, plan, tree) == plan::HopClass::kPeerAccess;
  });
}

using schedule::Pipelining;

/// Plans that stand side by side are cut alike.
Pipelining pipelining_of(const std::vector<plan::Plan>& plans, const PlansRequest& request) {
  std::size_t trees = 0;
  for (const plan::Plan& plan : plans) trees += plan.trees.size();
  const bool fits = trees <= static_cast<std::size_t>(request.max_channels);
  return request.lags && fits ? Pipelining::kByLags : Pipelining::kByParts;
}

class Maker {
 public:
  Maker(const topology::Topology& machine, const PlansRequest& request)
      : machine_(machine), request_(request) {}

  PlansMade make() {
    const bool joined = connects(kBetweenGpus);
    const bool besides = connects(kBesides);
    const std::string main = joined ? kBetweenGpus : "";
    for (const plan::AlgorithmInfo& algorithm : plan::algorithms()) {
      const std::string name = "plan-" + std::string(algorithm.name);
      keep(name, attempt(name, std::string(algorithm.name), main, request_.max_channels));
    }
    if (!joined || !besides) {
      const char* why = "links between GPUs and others do not both connect all ranks";
      made_.refused.emplace(kPcie, why);
      for (const std::string& each : hybrid_algorithms()) {
        made_.refused.emplace("plan-" + each + kHybrid, why);
      }
      return std::move(made_);
    }
    keep(kPcie, attempt(kPcie, "optimal", kBesides, request_.max_channels));
    for (const std::string& algorithm : hybrid_algorithms()) add_hybrid(algorithm);
    return std::move(made_);
  }

 private:
  /// Channels of the schedule that becomes of it.
  [[nodiscard]] int channels_of(const plan::Plan& plan) const {
    return schedule::from_plan(plan, pipelining_of({plan}, request_)).schedule.num_channels();
  }

  [[nodiscard]] bool connects(const char* plane) const {
    try {
      (void)plan::make_network(machine_, {plane, {}});
      return true;
    } catch (const Error&) {
      return false;
    }
  }

  void keep(const std::string& name, std::optional<plan::Plan> plan) {
    if (plan.has_value()) made_.algorithms.push_back({name, {std::move(*plan)}});
  }

  /// The plan with the best rate that needs no more channels; nothing, with the reason noted, where
  /// there is none.
  std::optional<plan::Plan> attempt(const std::string& name, const std::string& algorithm,
                                    const std::string& plane, int max_channels,
                                    bool channel_per_tree = false) {
    plan::Request request;
    request.collective = request_.collective;
    request.root = request_.root;
    request.algorithm = algorithm;
    request.selection.plane = plane;
    const double work = work_of(plane);
    std::string why = too_much(algorithm, work, request_.thorough);
    if (!why.empty()) {
      made_.refused[name] = why;
      if (!request_.thorough && too_much(algorithm, work, true).empty()) made_.later.insert(name);
      return std::nullopt;
    }
    if (algorithm == "optimal" && !any_number(work)) made_.later.insert(name);
    for (const int trees : numbers_of_trees(algorithm, max_channels, work)) {
      request.trees_per_root = trees;
      try {
        plan::Plan plan = plan::make_plan(machine_, request);
        if (plane != kBesides && !driver_takes_all(machine_, plan)) {
          made_.refused[name] = "it has hops that a driver would not take";
          return std::nullopt;
        }
        const int channels =
            channel_per_tree ? static_cast<int>(plan.trees.size()) : channels_of(plan);
        if (channels <= max_channels) return plan;
        why = fmt::format("it needs {} channels, {} are there", channels, max_channels);
      } catch (const Error& error) {
        if (why.empty()) why = error.what();
        break;
      }
    }
    made_.refused[name] = why;
    return std::nullopt;
  }

  /// Requests to try, in this order: any number, then fewer.
  [[nodiscard]] std::vector<int> numbers_of_trees(const std::string& algorithm, int max_channels,
                                                  double work) const {
    if (algorithm == "packed") return {0, max_channels};
    if (algorithm != "optimal") return {0};
    std::vector<int> numbers;
    if (any_number(work)) numbers.push_back(0);
    for (int trees = 16; trees > 0; trees /= 2) {
      // As many channels as one rank has trees, or somewhat fewer.
      if (trees <= 2 * max_channels) numbers.push_back(trees);
    }
    return numbers;
  }

  /// Whether trees of any number are asked for: from one root, where nodes are many, that takes
  /// longest and gives most.
  [[nodiscard]] bool any_number(double work) const {
    return request_.thorough || work <= kMostPackingWork || !has_root(request_.collective);
  }

  /// GPUs squared times the links of the plane.
  [[nodiscard]] double work_of(const std::string& plane) const {
    const auto gpus = static_cast<double>(machine_.gpus().size());
    double links = 0;
    for (const topology::Link& link : machine_.links()) {
      if (plane.empty() || joins_gpus(link.type) == (plane == kBetweenGpus)) ++links;
    }
    return gpus * gpus * links;
  }

  /// Why an algorithm would take too long; "" where it would not.
  [[nodiscard]] std::string too_much(const std::string& algorithm, double work,
                                     bool thorough) const {
    const bool several_hosts = machine_.hosts() > 1;
    const double brief = algorithm == "packed"                  ? kMostPackingWork
                         : algorithm == "ring" && several_hosts ? kMostRingWork
                         : algorithm == "nics-first-ring"       ? kMostFirstRingWork
                         : algorithm.starts_with("nics-")       ? kMostNicRingsWork
                                                                : kMostTreesWork;
    const double most = thorough ? brief * kThorough : brief;
    if (work <= most) return "";
    return fmt::format(
        "planning would take too long: GPUs squared times links are {:.0f}, {:.0f} "
        "at most",
        work, most);
  }

  /// Plans of both classes of links side by side.
  void add_hybrid(const std::string& algorithm) {
    const std::string name = "plan-" + algorithm + kHybrid;
    const auto fast = std::find_if(
        made_.algorithms.begin(), made_.algorithms.end(),
        [&](const PlannedAlgorithm& each) { return each.name == "plan-" + algorithm; });
    if (fast == made_.algorithms.end()) {
      made_.refused[name] = "there is no plan-" + algorithm;
      if (made_.later.contains("plan-" + algorithm)) made_.later.insert(name);
      return;
    }
    const plan::Plan first = fast->plans.front();
    const int left = request_.max_channels - channels_of(first);
    std::optional<plan::Plan> second;
    if (pipelining_of({first}, request_) == Pipelining::kByLags) {
      second = attempt(name, algorithm, kBesides, left, true);
    }
    if (!second.has_value()) second = attempt(name, algorithm, kBesides, left);
    if (!second.has_value()) return;
    made_.refused.erase(name);
    made_.algorithms.push_back({name, {first, std::move(*second)}});
  }

  static const std::vector<std::string>& hybrid_algorithms() {
    static const std::vector<std::string> algorithms = {"optimal", "packed", "ring"};
    return algorithms;
  }

  const topology::Topology& machine_;
  const PlansRequest& request_;
  PlansMade made_;
};

/// Both as one: first all channels of `a`, then those of `b`.
schedule::PlannedSchedule side_by_side(schedule::PlannedSchedule a, schedule::PlannedSchedule b,
                                       double share_of_a) {
  if (a.schedule.parts != b.schedule.parts) {
    throw Error(Errc::kInvalidArgument, "the two classes of links cut a channel into {} and {}",
                a.schedule.parts, b.schedule.parts);
  }
  std::vector<double> shares;
  const auto add = [&](const std::vector<int>& weights, double share) {
    double total = 0;
    for (const int weight : weights) total += weight;
    for (const int weight : weights) shares.push_back(share * weight / total);
  };
  add(a.schedule.weight, share_of_a);
  add(b.schedule.weight, 1 - share_of_a);
  const double scale = schedule::kMaxWeight / *std::max_element(shares.begin(), shares.end());
  const int first = a.schedule.num_channels();
  a.schedule.weight.clear();
  for (const double share : shares) {
    a.schedule.weight.push_back(std::max(1, static_cast<int>(std::lround(share * scale))));
  }
  for (std::size_t rank = 0; rank < a.schedule.programs.size(); ++rank) {
    auto& mine = a.schedule.programs[rank];
    auto& others = b.schedule.programs[rank];
    mine.insert(mine.end(), std::make_move_iterator(others.begin()),
                std::make_move_iterator(others.end()));
  }
  a.routes.append(b.routes, first);
  return a;
}

schedule::PlannedSchedule compiled(const PlannedAlgorithm& algorithm, const PlansRequest& request) {
  const Pipelining pipelining = pipelining_of(algorithm.plans, request);
  schedule::PlannedSchedule out = schedule::from_plan(algorithm.plans.front(), pipelining);
  if (algorithm.plans.size() == 1) return out;
  const auto link_class = [](const plan::Plan& plan) {
    return plan::LinkClass{plan.algbw.to_double() * 1e3, plan.latency_us};
  };
  const plan::LinkSplit split = plan::split_over_classes(
      {link_class(algorithm.plans[0]), link_class(algorithm.plans[1])}, kLongMessage);
  return side_by_side(std::move(out), schedule::from_plan(algorithm.plans[1], pipelining),
                      split.bytes[0] / kLongMessage);
}

}  // namespace

const std::vector<std::string>& planned_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const plan::AlgorithmInfo& algorithm : plan::algorithms()) {
      out.push_back("plan-" + std::string(algorithm.name));
    }
    out.emplace_back(kPcie);
    out.emplace_back("plan-optimal-hybrid");
    out.emplace_back("plan-packed-hybrid");
    out.emplace_back("plan-ring-hybrid");
    return out;
  }();
  return names;
}

bool beside_fabric(std::string_view name) { return name == kPcie || name.ends_with(kHybrid); }

topology::Topology planned_machine(const topology::Topology& machine) {
  topology::Description description = machine.description();
  topology::Plane between{kBetweenGpus, {}};
  topology::Plane besides{kBesides, {}};
  for (const LinkType type : topology::all_link_types()) {
    (joins_gpus(type) ? between : besides).types.push_back(type);
  }
  description.planes = {between, besides};
  return topology::Topology(std::move(description));
}

std::uint64_t digest_of(const PlannedCandidates& candidates) {
  std::string all;
  for (const std::shared_ptr<const RoutedSchedule>& each : candidates.schedules) {
    all += fmt::format("{:016x}{:016x}{}", ropewalk::digest(print(each->checked->schedule())),
                       each->routes.digest(), each->algorithm);
  }
  return std::max<std::uint64_t>(1, ropewalk::digest(all));
}

PlansMade make_plans(const topology::Topology& machine, const PlansRequest& request) {
  const auto& planned = plan::planned_collectives();
  if (machine.gpus().size() < 2 ||
      std::find(planned.begin(), planned.end(), request.collective) == planned.end()) {
    return {};
  }
  return Maker(machine, request).make();
}

PlannedCandidates compile_plans(PlansMade made, const PlansRequest& request) {
  PlannedCandidates out;
  out.refused = std::move(made.refused);
  out.later = std::move(made.later);
  for (const PlannedAlgorithm& algorithm : made.algorithms) {
    try {
      schedule::PlannedSchedule planned = compiled(algorithm, request);
      planned.schedule.algorithm = algorithm.name;
      if (planned.schedule.num_channels() > request.max_channels) {
        throw Error(Errc::kInvalidArgument, "it needs {} channels, {} are there",
                    planned.schedule.num_channels(), request.max_channels);
      }
      auto checked = std::make_shared<const schedule::Checked>(
          schedule::Checked::from(std::move(planned.schedule)));
      out.schedules.push_back(std::make_shared<const RoutedSchedule>(
          RoutedSchedule{algorithm.name, std::move(checked), std::move(planned.routes)}));
    } catch (const Error& error) {
      out.refused.emplace(algorithm.name, error.what());
    }
  }
  return out;
}

}  // namespace ropewalk::tune
