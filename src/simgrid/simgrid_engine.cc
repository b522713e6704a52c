#include "simgrid/simgrid_engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <simgrid/s4u.hpp>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace ropewalk::simgrid {
namespace {

namespace sg4 = ::simgrid::s4u;

constexpr double kAnySpeed = 1e9;  // hosts do not compute here

class SimgridEngine : public schedule::FlowEngine {
 public:
  SimgridEngine(const topology::Topology& topology, const schedule::Traffic& traffic)
      : engine_(started()) {
    // No routes between paths: a full zone would keep a table of all pairs of them.
    sg4::NetZone* machine = sg4::create_empty_zone("machine");
    std::vector<sg4::Link*> links;
    for (std::size_t i = 0; i < topology.links().size(); ++i) {
      const topology::Link& link = topology.link(i);
      sg4::Link* made = machine->create_link(fmt::format("link{}", i), link.capacity * 1e9);
      made->set_latency(topology::latency_us(link) * 1e-6);
      links.push_back(made->seal());
    }
    const std::vector<std::vector<int>>& paths = traffic.paths;
    const std::vector<double> pace = pace_of_paths(traffic);
    for (std::size_t p = 0; p < paths.size(); ++p) {
      sg4::NetZone* zone = sg4::create_full_zone(fmt::format("path{}", p))->set_parent(machine);
      sg4::Host* from = zone->create_host(fmt::format("from{}", p), kAnySpeed)->seal();
      sg4::Host* to = zone->create_host(fmt::format("to{}", p), kAnySpeed)->seal();
      std::vector<sg4::LinkInRoute> route;
      for (const int link : paths[p]) route.emplace_back(links[static_cast<std::size_t>(link)]);
      if (pace[p] > 0) {
        // A flow between hosts takes no rate of its own in 3.32; a link of its own does that.
        sg4::Link* own = zone->create_link(fmt::format("pace{}", p), pace[p] * 1e9);
        route.emplace_back(own->set_latency(0.0)->seal());
      }
      zone->add_route(from->get_netpoint(), to->get_netpoint(), nullptr, nullptr, route,
                      /*symmetrical=*/false);
      zone->seal();
      ends_.emplace_back(from, to);
    }
    machine->seal();
  }

  void start(int flow, int path, double bytes, double /*gbps: see pace_of_paths*/) override {
    const auto& [from, to] = ends_[static_cast<std::size_t>(path)];
    sg4::CommPtr comm = sg4::Comm::sendto_init();
    // SimGrid counts whole bytes.
    comm->set_payload_size(static_cast<std::uint64_t>(std::max(1LL, std::llround(bytes))));
    under_way_.emplace(comm.get(), std::pair(flow, comm));
    comm->set_source(from);
    comm->set_destination(to);
    // Knowing both ends has started it, as an activity that waits for nothing.
    if (comm->get_state() != sg4::Activity::State::STARTED) comm->start();
  }

  void run(const std::function<void(int, double)>& arrived) override {
    sg4::Activity::on_completion_cb([&](const sg4::Activity& activity) {
      const auto found = under_way_.find(&activity);
      if (found == under_way_.end()) return;
      const auto [flow, comm] = found->second;  // keeps it alive until the end of this call
      under_way_.erase(found);
      arrived(flow, sg4::Engine::get_clock());
    });
    engine_.run();
  }

 private:
  /// GB/s by path: that of the pipes that use it, 0 where they have none.
  static std::vector<double> pace_of_paths(const schedule::Traffic& traffic) {
    std::vector<double> pace(traffic.paths.size(), 0);
    for (const schedule::Traffic::Strand& strand : traffic.strands) {
      for (const schedule::Traffic::Step& step : strand.steps) {
        for (const schedule::Traffic::Send& send : step.send) {
          pace[static_cast<std::size_t>(send.path)] =
              traffic.pipes[static_cast<std::size_t>(send.pipe)].gbps;
        }
      }
    }
    return pace;
  }

  static sg4::Engine& started() {
    static std::string name = "ropewalk-simgrid";
    static std::string options[] = {
        "--cfg=network/model:CM02",       "--cfg=network/crosstraffic:0",
        "--cfg=network/TCP-gamma:1e15",   "--cfg=network/bandwidth-factor:1",
        "--cfg=network/latency-factor:1", "--cfg=network/weight-S:0",
        "--cfg=network/loopback-lat:0",   "--log=root.threshold:error",
    };
    static char* arguments[1 + std::size(options) + 1] = {};
    static int count = 1 + static_cast<int>(std::size(options));
    arguments[0] = name.data();
    for (std::size_t i = 0; i < std::size(options); ++i) arguments[i + 1] = options[i].data();
    static sg4::Engine engine(&count, arguments);
    return engine;
  }

  sg4::Engine& engine_;
  std::vector<std::pair<sg4::Host*, sg4::Host*>> ends_;
  std::unordered_map<const void*, std::pair<int, sg4::CommPtr>> under_way_;
};

}  // namespace

std::unique_ptr<schedule::FlowEngine> make_simgrid_engine(const topology::Topology& topology,
                                                          const schedule::Traffic& traffic) {
  return std::make_unique<SimgridEngine>(topology, traffic);
}

double simgrid_seconds(const schedule::Traffic& traffic) {
  // Measured with SimGrid 3.32 on one core: each new host or link is looked up by name in a list,
  // and at every arrival the shares of the flows that meet there are computed again.
  const auto paths = static_cast<double>(traffic.paths.size());
  double passes = 0;
  std::unordered_set<int> links;
  for (const std::vector<int>& path : traffic.paths) {
    passes += static_cast<double>(path.size());
    links.insert(path.begin(), path.end());
  }
  const double paths_per_link = links.empty() ? 0 : passes / static_cast<double>(links.size());
  return 1e-7 * paths * paths + traffic.messages() * (7e-6 + 6e-7 * paths_per_link);
}

}  // namespace ropewalk::simgrid
