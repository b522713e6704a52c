#include "schedule/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "schedule/from_plan.h"

namespace ropewalk::schedule {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kBins = 60;  // to be shown; twice as many while time is unknown

/// What each link carried when: bins that double their width as time goes on.
class Usage {
 public:
  Usage(std::size_t links, double first_width) : bytes_(links), width_(first_width) {}

  void add(const std::vector<int>& path, double begin, double end, double bytes) {
    while (end >= width_ * 2 * kBins) widen();
    const auto first = static_cast<std::size_t>(begin / width_);
    const auto last = std::min(2 * kBins - 1, static_cast<std::size_t>(end / width_));
    for (const int link : path) {
      std::vector<double>& bins = bytes_[static_cast<std::size_t>(link)];
      if (bins.empty()) bins.assign(2 * kBins, 0);
      if (first == last || end <= begin) {
        bins[first] += bytes;
        continue;
      }
      for (std::size_t bin = first; bin <= last; ++bin) {
        const double from = std::max(begin, static_cast<double>(bin) * width_);
        const double to = std::min(end, static_cast<double>(bin + 1) * width_);
        bins[bin] += bytes * std::max(0.0, to - from) / (end - begin);
      }
    }
  }

  void finish(const topology::Topology& topology, Outcome& outcome) const {
    outcome.bin_seconds = width_;
    const auto used =
        std::min(2 * kBins, static_cast<std::size_t>(std::ceil(outcome.seconds / width_ - 1e-9)));
    for (std::size_t link = 0; link < bytes_.size(); ++link) {
      auto& shares = outcome.utilisation.emplace_back();
      if (bytes_[link].empty()) continue;
      const double capacity = topology.link(link).capacity * 1e9;
      for (std::size_t bin = 0; bin < used; ++bin) {
        // The last bin may be cut short by the end.
        const double span = std::min(width_, outcome.seconds - static_cast<double>(bin) * width_);
        shares.push_back(span > 0 ? bytes_[link][bin] / (capacity * span) : 0);
      }
    }
  }

 private:
  void widen() {
    for (std::vector<double>& bins : bytes_) {
      if (bins.empty()) continue;
      for (std::size_t bin = 0; bin < kBins; ++bin) bins[bin] = bins[2 * bin] + bins[2 * bin + 1];
      std::fill(bins.begin() + kBins, bins.end(), 0);
    }
    width_ *= 2;
  }

  std::vector<std::vector<double>> bytes_;
  double width_;
};

/// Strands waiting for chunks and slots.
class Player {
 public:
  Player(const topology::Topology& topology, const Traffic& traffic, FlowEngine& engine)
      : topology_(topology),
        traffic_(traffic),
        engine_(engine),
        pipes_(traffic.pipes.size()),
        strands_(traffic.strands.size()),
        usage_(topology.links().size(), 1e-7) {
    for (std::size_t s = 0; s < traffic.strands.size(); ++s) {
      strands_[s].rounds_left = traffic.strands[s].rounds;
      for (const Traffic::Step& step : traffic.strands[s].steps) {
        for (const int pipe : step.receive) at(pipe).receiver = static_cast<int>(s);
        for (const Traffic::Send& send : step.send) at(send.pipe).sender = static_cast<int>(s);
      }
    }
  }

  Outcome run() {
    outcome_.link_bytes.assign(topology_.links().size(), 0);
    for (std::size_t s = 0; s < strands_.size(); ++s) ready_.push_back(static_cast<int>(s));
    go_on();
    engine_.run([this](int pipe, double now) { arrive(pipe, now); });
    for (const Strand& strand : strands_) {
      if (strand.rounds_left > 0) throw Error(Errc::kInternal, "simulation: strands are stuck");
    }
    usage_.finish(topology_, outcome_);
    return std::move(outcome_);
  }

 private:
  struct Waiting {
    int path;
    double bytes;
  };
  struct Pipe {
    int sender = -1;
    int receiver = -1;
    int taken = 0;    // slots: waiting, in transit, or arrived
    int arrived = 0;  // chunks to receive
    std::deque<Waiting> waiting;
    bool busy = false;
    double since = 0;
    Waiting current{};
  };
  struct Strand {
    std::size_t step = 0;
    int rounds_left = 0;
  };

  Pipe& at(int pipe) { return pipes_[static_cast<std::size_t>(pipe)]; }

  void go_on() {
    while (!ready_.empty()) {
      const int strand = ready_.back();
      ready_.pop_back();
      while (advance(strand)) {
      }
    }
  }

  bool advance(int index) {
    Strand& mine = strands_[static_cast<std::size_t>(index)];
    if (mine.rounds_left == 0) return false;
    const std::vector<Traffic::Step>& steps =
        traffic_.strands[static_cast<std::size_t>(index)].steps;
    const Traffic::Step& step = steps[mine.step];
    for (const int pipe : step.receive) {
      if (at(pipe).arrived == 0) return false;
    }
    for (const Traffic::Send& send : step.send) {
      if (at(send.pipe).taken >= traffic_.slots) return false;
    }
    for (const int pipe : step.receive) {
      --at(pipe).arrived;
      --at(pipe).taken;
      ready_.push_back(at(pipe).sender);
    }
    for (const Traffic::Send& send : step.send) {
      Pipe& pipe = at(send.pipe);
      ++pipe.taken;
      pipe.waiting.push_back({send.path, step.bytes});
      if (!pipe.busy) begin(send.pipe);
    }
    if (++mine.step == steps.size()) {
      mine.step = 0;
      --mine.rounds_left;
    }
    return true;
  }

  void begin(int index) {
    Pipe& pipe = at(index);
    pipe.current = pipe.waiting.front();
    pipe.waiting.pop_front();
    pipe.busy = true;
    pipe.since = now_;
    engine_.start(index, pipe.current.path, pipe.current.bytes,
                  traffic_.pipes[static_cast<std::size_t>(index)].gbps);
  }

  void arrive(int index, double now) {
    now_ = now;
    Pipe& pipe = at(index);
    const std::vector<int>& path = traffic_.paths[static_cast<std::size_t>(pipe.current.path)];
    usage_.add(path, pipe.since, now, pipe.current.bytes);
    for (const int link : path) {
      outcome_.link_bytes[static_cast<std::size_t>(link)] += pipe.current.bytes;
    }
    ++outcome_.messages;
    outcome_.seconds = now;
    ++pipe.arrived;
    pipe.busy = false;
    if (!pipe.waiting.empty()) begin(index);
    ready_.push_back(pipe.receiver);
    go_on();
  }

  const topology::Topology& topology_;
  const Traffic& traffic_;
  FlowEngine& engine_;
  std::vector<Pipe> pipes_;
  std::vector<Strand> strands_;
  std::vector<int> ready_;
  Usage usage_;
  Outcome outcome_;
  double now_ = 0;
};

/// What the links alone allow: the busiest one's time, and the links that take it.
double busiest_seconds(const topology::Topology& topology, const Traffic& traffic) {
  std::vector<double> bytes(topology.links().size(), 0);
  for (const Traffic::Strand& strand : traffic.strands) {
    for (const Traffic::Step& step : strand.steps) {
      for (const Traffic::Send& send : step.send) {
        for (const int link : traffic.paths[static_cast<std::size_t>(send.path)]) {
          bytes[static_cast<std::size_t>(link)] += step.bytes * strand.rounds;
        }
      }
    }
  }
  double seconds = 0;
  for (std::size_t link = 0; link < bytes.size(); ++link) {
    seconds = std::max(seconds, bytes[link] / (topology.link(link).capacity * 1e9));
  }
  return seconds;
}

Json links_of(const topology::Topology& topology, const Outcome& outcome) {
  Json links = Json::array();
  for (std::size_t i = 0; i < topology.links().size(); ++i) {
    if (outcome.link_bytes[i] <= 0) continue;
    const topology::Link& link = topology.link(i);
    Json over_time = Json::array();
    for (const double share : outcome.utilisation[i]) {
      over_time.push_back(std::round(share * 1e4) / 1e4);
    }
    links.push_back(
        {{"source", topology.node(link.source).id},
         {"destination", topology.node(link.destination).id},
         {"type", topology::name(link.type)},
         {"capacity", link.capacity},
         {"bytes", outcome.link_bytes[i]},
         {"utilisation", outcome.link_bytes[i] / (link.capacity * 1e9 * outcome.seconds)},
         {"over_time", std::move(over_time)}});
  }
  return links;
}

void require_sizes(const TrafficOptions& options) {
  const auto positive = [](double value) { return std::isfinite(value) && value > 0; };
  if (!positive(options.bytes) || options.bytes > 1e18) {
    throw Error(Errc::kInvalidArgument, "simulation of {} bytes", options.bytes);
  }
  if (options.chunk_bytes != 0 && !positive(options.chunk_bytes)) {
    throw Error(Errc::kInvalidArgument, "simulation with chunks of {} bytes", options.chunk_bytes);
  }
  if (!positive(options.most_messages) || options.most_messages > 1e9) {
    throw Error(Errc::kInvalidArgument, "simulation of at most {} messages: must be 1 to 1e9",
                options.most_messages);
  }
}

/// The subject of the simulation, for the report.
struct Played {
  std::string_view kind;
  Collective collective{};
  int ranks = 0;
  std::string algorithm;
  double predicted_seconds = 0;
  bool paced = false;
};

std::string report(const topology::Topology& topology, const Traffic& traffic,
                   const TrafficOptions& options, const SimulationEngine& engine,
                   const Played& played) {
  if (engine.cost && engine.most_seconds > 0) {
    const double seconds = engine.cost(traffic);
    if (seconds > engine.most_seconds) {
      throw Error(Errc::kTimeout, "{:.3g} messages over {:.3g} paths would take {} some {:.0f} s",
                  traffic.messages(), static_cast<double>(traffic.paths.size()), engine.name,
                  seconds);
    }
  }
  const auto made = engine.make(topology, traffic);
  const Outcome outcome = play(topology, traffic, *made);
  const double predicted = played.predicted_seconds;
  const double rate = outcome.seconds > 0 ? options.bytes / outcome.seconds / 1e9 : 0;
  const double analytic = predicted > 0 ? options.bytes / predicted / 1e9 : 0;
  const Json json = {{"schema", "ropewalk-simulation/1"},
                     {"engine", engine.name},
                     {"topology", topology.name()},
                     {"subject", played.kind},
                     {"collective", name(played.collective)},
                     {"algorithm", played.algorithm},
                     {"ranks", played.ranks},
                     {"bytes", options.bytes},
                     {"paced", played.paced},
                     {"messages", outcome.messages},
                     {"wished_messages", traffic.wished_messages},
                     {"chunk_bytes", traffic.largest_chunk()},
                     {"seconds", outcome.seconds},
                     {"algbw_gbps", rate},
                     {"analytic_seconds", predicted},
                     {"analytic_gbps", analytic},
                     {"ratio", analytic > 0 ? rate / analytic : 0},
                     {"bin_seconds", outcome.bin_seconds},
                     {"links", links_of(topology, outcome)}};
  return json.dump(1);
}

}  // namespace

Outcome play(const topology::Topology& topology, const Traffic& traffic, FlowEngine& engine) {
  return Player(topology, traffic, engine).run();
}

std::string simulate(const topology::Topology& topology, const plan::Plan& plan,
                     const TrafficOptions& options, const SimulationEngine& engine) {
  require_sizes(options);
  from_plan(plan);  // refuses trees that are none
  return report(topology, traffic_of(topology, plan, options), options, engine,
                {"plan", plan.collective, plan.num_ranks(), plan.algorithm,
                 options.bytes / (plan.algbw.to_double() * 1e9), options.paced});
}

std::string simulate(const topology::Topology& topology, const Checked& checked,
                     const TrafficOptions& options, const SimulationEngine& engine) {
  require_sizes(options);
  const Schedule& schedule = checked.schedule();
  const Traffic traffic = traffic_of(topology, schedule, {}, options);
  return report(topology, traffic, options, engine,
                {"schedule", schedule.collective, schedule.num_ranks, schedule.algorithm,
                 busiest_seconds(topology, traffic), false});
}

}  // namespace ropewalk::schedule
