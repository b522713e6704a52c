#include "plan/nic_report.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "plan/json.h"
#include "plan/loads.h"
#include "plan/planner.h"
#include "topology/replicate.h"

namespace ropewalk::plan {
namespace {

using Json = nlohmann::ordered_json;

/// One NIC rule and the rates it reaches.
struct Judged {
  std::string name;
  HostChannels channels;
  Plan plan;
  std::vector<std::string> idle;  // ids of NICs without a channel
};

Judged judge(const topology::Topology& machine, std::string name, HostChannels channels) {
  Judged judged{std::move(name), std::move(channels), {}, {}};
  judged.plan = plan_of_channels(machine, judged.channels);
  judged.plan.algorithm = "nics-" + judged.name;
  std::vector<bool> used(judged.channels.ports.size(), false);
  for (const HostChannel& channel : judged.channels.channels) {
    used[channel.nics.entry] = used[channel.nics.exit] = true;
  }
  for (std::size_t p = 0; p < used.size(); ++p) {
    if (!used[p]) judged.idle.push_back(machine.node(judged.channels.ports[p].node).id);
  }
  return judged;
}

double busbw(const Judged& judged) {
  return judged.plan.algbw.to_double() *
         bus_factor(Collective::kAllGather, judged.plan.num_ranks());
}

/// GB/s that one channel's ring carries.
double channel_gbps(const Judged& judged) {
  return busbw(judged) / static_cast<double>(judged.channels.channels.size());
}

Json json_of(const topology::Topology& machine, const Judged& judged) {
  const HostChannels& channels = judged.channels;
  const auto id = [&](topology::NodeIndex node) { return machine.node(node).id; };
  std::vector<int> in(channels.ports.size(), 0);
  std::vector<int> out(channels.ports.size(), 0);
  Json list = Json::array();
  for (const HostChannel& channel : channels.channels) {
    Json gpus = Json::array();
    for (const int index : channel.order) {
      gpus.push_back(id(channels.gpus[static_cast<std::size_t>(index)]));
    }
    ++in[channel.nics.entry];
    ++out[channel.nics.exit];
    list.push_back({{"entry", id(channels.ports[channel.nics.entry].node)},
                    {"gpus", std::move(gpus)},
                    {"exit", id(channels.ports[channel.nics.exit].node)}});
  }
  Json nics = Json::array();
  const double each = channel_gbps(judged);
  for (std::size_t p = 0; p < channels.ports.size(); ++p) {
    nics.push_back({{"id", id(channels.ports[p].node)},
                    {"gbps", channels.ports[p].gbps},
                    {"in_gbps", in[p] * each},
                    {"out_gbps", out[p] * each}});
  }
  return {{"name", judged.name},
          {"algbw_gbps", judged.plan.algbw.to_double()},
          {"busbw_gbps", busbw(judged)},
          {"largest_load", channels.assignment.largest_load},
          {"distance", channels.assignment.distance},
          {"rail_changes", channels.assignment.rail_changes},
          {"worst_path", topology::name(channels.assignment.worst_path)},
          {"mirrored", channels.mirrored},
          {"idle", judged.idle},
          {"nics", std::move(nics)},
          {"channels", std::move(list)},
          {"plan", Json::parse(write_json(machine, judged.plan))}};
}

Json variable(std::string name, std::string value, std::string why) {
  return {{"name", std::move(name)}, {"value", std::move(value)}, {"why", std::move(why)}};
}

Json environment(const Judged& best) {
  const auto channels = std::to_string(best.channels.channels.size());
  Json list = Json::array();
  list.push_back(variable("NCCL_GRAPH_FILE", "FILE",
                          "the graph file; every process of the host must read the same one"));
  if (best.channels.mirrored) {
    list.push_back(variable("NCCL_CROSS_NIC", "2",
                            "rings come in mirrored pairs: a NIC of one host meets the same NIC of "
                            "the next (NCCL 2.23 and later; 1 before)"));
  } else if (best.channels.assignment.rail_changes > 0) {
    list.push_back(variable("NCCL_CROSS_NIC", "1", "rings enter and leave by different NICs"));
  } else {
    list.push_back(variable("NCCL_CROSS_NIC", "0", "every ring keeps to one rail"));
  }
  list.push_back(variable("NCCL_MIN_NCHANNELS", channels, "fewer channels would leave NICs idle"));
  list.push_back(
      variable("NCCL_ALGO", "Ring",
               "for the comparison; leave it out when trees are wanted for small sizes"));
  list.push_back(variable("NCCL_DEBUG", "INFO", "to see the file being read"));
  list.push_back(variable("NCCL_DEBUG_SUBSYS", "INIT,GRAPH,NET",
                          "lines \"Channel ... via NET/...\" name the NIC of every channel"));
  return list;
}

std::string gbps(double value) { return fmt::format("{:.4g} GB/s", value); }

std::vector<std::string> in_words(const topology::Topology& machine, const Judged& before,
                                  const Judged& best) {
  std::vector<std::string> words;
  const std::size_t nics = best.channels.ports.size();
  if (before.idle.empty()) {
    words.push_back(fmt::format(
        "With one ring's NICs for all channels (RCCL 2.18's rule), all {} NICs work, too.", nics));
  } else {
    words.push_back(
        fmt::format("With one ring's NICs for all channels (RCCL 2.18's rule), {} of {} NICs "
                    "{} idle: {}.",
                    before.idle.size(), nics, before.idle.size() == 1 ? "is" : "are",
                    fmt::join(before.idle, ", ")));
  }
  words.push_back(fmt::format(
      "Balanced: {} channels over {} NICs; the busiest NIC has {:.3g} channels per GB/s of its "
      "speed, by RCCL 2.18's rule {:.3g}; the farthest NIC is {} from its GPU.",
      best.channels.channels.size(), nics - best.idle.size(), best.channels.assignment.largest_load,
      before.channels.assignment.largest_load,
      topology::name(best.channels.assignment.worst_path)));
  words.push_back(fmt::format(
      "Computed, not measured: {} (busbw, large messages), by RCCL 2.18's rule {}: {:.2f} times.",
      gbps(busbw(best)), gbps(busbw(before)), busbw(best) / busbw(before)));
  if (best.channels.gpus.size() > 1) {
    words.push_back(
        "NCCL's own search spreads channels over NICs, so with NCCL expect less of a gain, or none "
        "where it finds all of them: NCCL_DEBUG_SUBSYS=GRAPH shows what it uses.");
  }
  for (const LinkLoad& load : best.plan.links) {
    if (load.load != load.capacity) continue;
    const topology::Link& link = machine.link(static_cast<std::size_t>(load.link));
    words.push_back(
        fmt::format("What limits it now: the {} link from {} to {} ({}), and others like it.",
                    topology::name(link.type), machine.node(link.source).id,
                    machine.node(link.destination).id, gbps(link.capacity)));
    break;
  }
  if (best.channels.gpus.size() == 1) {
    words.push_back(
        "With one GPU on each host, NCCL sends and receives a channel by its first net: both ends "
        "of a channel are on one NIC, and channels differ.");
  }
  words.push_back(
      "Sends and receives between two ranks (and all-to-all) do not use graph files: each GPU "
      "takes "
      "its own preferred NIC for them.");
  words.push_back(
      "A file for all GPUs of the host fails a communicator on some of them; give it to jobs that "
      "use all.");
  return words;
}

}  // namespace

std::string nic_report(const topology::Topology& topology, const NicReportRequest& request) {
  const bool alone = topology.hosts() == 1;
  const topology::Topology machine =
      alone ? topology::replicate(
                  topology, 2, request.one_rail ? topology::Fabric::kRails : topology::Fabric::kOne)
            : topology;
  MeasuredNics measured = request.measured;
  if (alone) {
    measured.clear();
    for (const auto& [id, rate] : request.measured) measured.emplace("h0." + id, rate);
  }
  std::vector<Judged> judged;
  for (const NicRule rule : {NicRule::kFirstRing, NicRule::kLeastUsed, NicRule::kBalanced}) {
    ChannelRequest wanted;
    wanted.host = request.host;
    wanted.rule = rule;
    wanted.measured = measured;
    wanted.channels = request.channels;
    // With one GPU, both ends of a channel are at its first net whatever the file says.
    wanted.one_rail = request.one_rail;
    HostChannels made = make_channels(machine, wanted);
    if (made.gpus.size() == 1 && rule == NicRule::kBalanced) {
      wanted.one_rail = true;
      made = make_channels(machine, wanted);
    }
    judged.push_back(judge(machine, std::string(name(rule)), std::move(made)));
  }
  const Judged before = judged.front();
  const Judged best = judged.back();
  const NcclGraphs graph = graph_of_channels(machine, best.channels, channel_gbps(best));
  const auto words = in_words(machine, before, best);
  Json report = {{"schema", "ropewalk-nics/1"},
                 {"topology", topology.name()},
                 {"host", request.host},
                 {"ratio", (best.plan.algbw / before.plan.algbw).to_double()},
                 {"graph", write_nccl_graph(graph)},
                 {"environment", environment(best)},
                 {"words", words}};
  if (!request.graph.empty()) {
    judged.push_back(judge(machine, "given",
                           channels_of_graph(machine, request.host,
                                             read_nccl_graph(request.graph, "graph"), measured)));
  }
  // What any schedule could reach, beside what these rings do.
  Request any;
  any.collective = Collective::kAllGather;
  const Bound bound = make_bound(machine, any);
  Json rules = Json::array();
  for (Judged& each : judged) {
    each.plan.bound = bound;
    each.plan.optimal = is_at_bound(each.plan);
    rules.push_back(json_of(machine, each));
  }
  report["bound_algbw_gbps"] = bound.algbw.to_double();
  report["rules"] = std::move(rules);
  return report.dump(1);
}

}  // namespace ropewalk::plan
