#include "schedule/fair_share.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

namespace ropewalk::schedule {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();
// Bytes per second that a sum of rates may miss a link's capacity by and still fit: rounding.
constexpr double kSlack = 1e-6;

struct Flow {
  const std::vector<int>* path = nullptr;
  double left = 0;  // bytes at `since`
  double rate = 0;  // bytes per second
  double limit = kNoLimit;
  double since = 0;
  std::uint64_t version = 0;  // of its entry in the queue of arrivals
  bool flowing = false;
  bool mark = false;
};

struct Link {
  double capacity = 0;  // bytes per second
  double limits = 0;    // sum of the limits of flows on it that have one
  int unlimited = 0;    // flows on it that have none
  std::vector<int> flows;
  bool mark = false;
  [[nodiscard]] bool fits_all() const {
    return unlimited == 0 && limits <= capacity * (1 + 1e-9) + kSlack;
  }
};

class FairShare : public FlowEngine {
 public:
  FairShare(const topology::Topology& topology, const std::vector<std::vector<int>>& paths)
      : paths_(paths) {
    for (const topology::Link& link : topology.links()) {
      links_.push_back({link.capacity * 1e9, 0, 0, {}, false});
      latency_.push_back(topology::latency_us(link) * 1e-6);
    }
  }

  void start(int flow, int path, double bytes, double gbps) override {
    if (flows_.size() <= static_cast<std::size_t>(flow)) {
      flows_.resize(static_cast<std::size_t>(flow) + 1);
    }
    Flow& started = at(flow);
    started.path = &paths_[static_cast<std::size_t>(path)];
    started.left = bytes;
    started.limit = gbps > 0 ? gbps * 1e9 : kNoLimit;
    started.flowing = false;
    double latency = 0;
    for (const int link : *started.path) latency += latency_[static_cast<std::size_t>(link)];
    events_.emplace(now_ + latency, ++sequence_, flow, ++started.version);
  }

  void run(const std::function<void(int, double)>& arrived) override {
    while (!events_.empty()) {
      const auto [time, sequence, flow, version] = events_.top();
      events_.pop();
      if (at(flow).version != version) continue;
      now_ = time;
      if (at(flow).flowing) {
        leave(flow);
        arrived(flow, now_);
      } else {
        enter(flow);
      }
    }
  }

 private:
  Flow& at(int flow) { return flows_[static_cast<std::size_t>(flow)]; }
  Link& link(int index) { return links_[static_cast<std::size_t>(index)]; }

  void enter(int flow) {
    Flow& entering = at(flow);
    entering.flowing = true;
    entering.since = now_;
    entering.rate = 0;
    for (const int index : *entering.path) {
      Link& used = link(index);
      used.flows.push_back(flow);
      if (entering.limit < kNoLimit) {
        used.limits += entering.limit;
      } else {
        ++used.unlimited;
      }
    }
    const bool fits = std::all_of(entering.path->begin(), entering.path->end(),
                                  [&](int index) { return link(index).fits_all(); });
    if (fits) {
      set_rate(flow, entering.limit);
    } else {
      share_around(flow);
    }
  }

  void leave(int flow) {
    Flow& leaving = at(flow);
    leaving.flowing = false;
    ++leaving.version;
    bool fitted = true;
    for (const int index : *leaving.path) {
      Link& used = link(index);
      fitted = fitted && used.fits_all();
      const auto found = std::find(used.flows.begin(), used.flows.end(), flow);
      *found = used.flows.back();
      used.flows.pop_back();
      if (leaving.limit < kNoLimit) {
        used.limits = used.flows.empty() ? 0 : used.limits - leaving.limit;
      } else {
        --used.unlimited;
      }
    }
    if (!fitted) share_around(flow);
  }

  void set_rate(int flow, double rate) {
    Flow& changed = at(flow);
    // Its arrival is in the queue already. Where many flows share, most keep their rates.
    if (changed.rate > 0 && std::abs(changed.rate - rate) <= 1e-12 * rate) return;
    changed.left = std::max(0.0, changed.left - changed.rate * (now_ - changed.since));
    changed.since = now_;
    changed.rate = rate;
    events_.emplace(now_ + (changed.left > 0 ? changed.left / rate : 0), ++sequence_, flow,
                    ++changed.version);
    // Stale events would otherwise stay queued until their time: for N flows that share, N for each
    // of N arrivals.
    if (events_.size() > 4 * flows_.size() + 1024) {
      events_.erase_if(
          [&](const Event& each) { return at(std::get<2>(each)).version != std::get<3>(each); });
    }
  }

  /// Shares anew among all flows that are connected with `flow` through links that do not fit all.
  void share_around(int flow) {
    std::vector<int> flows;
    std::vector<int> links;
    const auto visit_links = [&](int of) {
      for (const int index : *at(of).path) {
        if (link(index).mark) continue;
        link(index).mark = true;
        links.push_back(index);
      }
    };
    visit_links(flow);
    for (std::size_t i = 0; i < links.size(); ++i) {
      for (const int other : link(links[i]).flows) {
        if (at(other).mark) continue;
        at(other).mark = true;
        flows.push_back(other);
        visit_links(other);
      }
    }
    fill(flows, links);
    for (const int index : links) link(index).mark = false;
    for (const int other : flows) at(other).mark = false;
  }

  /// Progressive filling. All marks of `flows` are set.
  void fill(const std::vector<int>& flows, const std::vector<int>& links) {
    std::vector<double> left;
    std::vector<int> open;
    for (const int index : links) {
      left.push_back(link(index).capacity);
      open.push_back(static_cast<int>(link(index).flows.size()));
    }
    std::vector<int> rest = flows;
    position_.assign(links_.size(), 0);
    for (std::size_t i = 0; i < links.size(); ++i) {
      position_[static_cast<std::size_t>(links[i])] = i;
    }
    const auto settle = [&](int flow, double rate) {
      for (const int index : *at(flow).path) {
        const std::size_t i = position_[static_cast<std::size_t>(index)];
        left[i] = std::max(0.0, left[i] - rate);
        --open[i];
      }
      set_rate(flow, rate);
    };
    while (!rest.empty()) {
      double level = kNoLimit;
      for (std::size_t i = 0; i < links.size(); ++i) {
        if (open[i] > 0) level = std::min(level, left[i] / open[i]);
      }
      // Who is content with less than that level gets its limit; else the fullest links settle.
      double lowest = kNoLimit;
      for (const int flow : rest) lowest = std::min(lowest, at(flow).limit);
      std::vector<int> settled;
      if (lowest <= level) {
        for (const int flow : rest) {
          if (at(flow).limit <= lowest) settled.push_back(flow);
        }
        for (const int flow : settled) settle(flow, lowest);
      } else {
        std::vector<bool> full(links.size(), false);
        for (std::size_t i = 0; i < links.size(); ++i) {
          full[i] = open[i] > 0 && left[i] / open[i] <= level * (1 + 1e-9);
        }
        for (const int flow : rest) {
          const bool stops = std::any_of(
              at(flow).path->begin(), at(flow).path->end(),
              [&](int index) { return full[position_[static_cast<std::size_t>(index)]]; });
          if (stops) settled.push_back(flow);
        }
        for (const int flow : settled) settle(flow, level);
      }
      std::vector<int> still;
      std::sort(settled.begin(), settled.end());
      for (const int flow : rest) {
        if (!std::binary_search(settled.begin(), settled.end(), flow)) still.push_back(flow);
      }
      rest = std::move(still);
    }
  }

  const std::vector<std::vector<int>>& paths_;
  std::vector<Link> links_;
  std::vector<double> latency_;
  std::vector<Flow> flows_;
  std::vector<std::size_t> position_;
  // time, order of making, flow, version
  using Event = std::tuple<double, std::uint64_t, int, std::uint64_t>;
  struct Queue : std::priority_queue<Event, std::vector<Event>, std::greater<>> {
    template <typename Predicate>
    void erase_if(Predicate&& predicate) {
      std::erase_if(c, predicate);
      std::make_heap(c.begin(), c.end(), comp);
    }
  };
  Queue events_;
  std::uint64_t sequence_ = 0;
  double now_ = 0;
};

}  // namespace

std::unique_ptr<FlowEngine> make_fair_share_engine(const topology::Topology& topology,
                                                   const Traffic& traffic) {
  return std::make_unique<FairShare>(topology, traffic.paths);
}

}  // namespace ropewalk::schedule
