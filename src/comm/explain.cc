#include "comm/explain.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "comm/collective_call.h"
#include "comm/communicator.h"
#include "comm/device_group.h"
#include "comm/explained_links.h"

namespace ropewalk::comm {
namespace {

using nlohmann::json;

// What became of the plans that take long; null where none do.
json planning(const Communicator::Explained& explained) {
  if (!explained.background.has_value()) return nullptr;
  const auto state = [&]() -> const char* {
    switch (explained.background->state) {
      case tune::BackgroundPlans::State::kUnderWay: return "under way";
      case tune::BackgroundPlans::State::kMade: return "made";
      case tune::BackgroundPlans::State::kInUse: return "in use";
      case tune::BackgroundPlans::State::kFailed: return "failed";
    }
    return "";
  };
  return {{"state", state()},
          {"algorithms", explained.background->algorithms},
          {"later", explained.later.has_value() ? json(explained.later->algorithm) : json()},
          {"from_call", explained.first.has_value() ? json(*explained.first) : json()}};
}

// On host memory; else null.
json chunks(const Communicator::Explained& explained) {
  if (!explained.chunks.has_value()) return nullptr;
  const ChunkReport& report = *explained.chunks;
  const char* state = !report.tuned     ? "fixed"
                      : !report.decides ? "follows"
                      : report.settled  ? "settled"
                                        : "measuring";
  return {{"bytes", report.bytes},
          {"start_bytes", report.start_bytes},
          {"state", state},
          {"gain", report.settled ? json(report.gain) : json()}};
}

// The forms that calls try, where what they take decides; else null.
json copies(const Communicator::Explained& explained) {
  if (!explained.forms.has_value() || !explained.forms->adapts) return nullptr;
  const FormReport& report = *explained.forms;
  const tune::Choice& chosen = explained.choice;
  const auto form_of = [&](int form) -> const tune::Choice& {
    return form == 0 ? chosen : *choice_of(chosen, report.trial, form);
  };
  const auto by_address = [](const tune::Choice& choice) { return choice.address_chunk_bytes > 0; };
  json forms = json::array();
  for (int form = 0; form < report.trial.forms(); ++form) {
    forms.push_back(
        {{"algorithm", form_of(form).algorithm}, {"by_address", by_address(form_of(form))}});
  }
  const auto trial = [&](std::size_t data) -> json {
    if (!report.decides) return nullptr;
    return {{"settled", report.settled[data]}, {"gain", report.gain[data]}};
  };
  return {{"algorithm", form_of(report.form).algorithm},
          {"by_address", by_address(form_of(report.form))},
          {"chosen_by_address", by_address(chosen)},
          {"forms", std::move(forms)},
          {"decides", report.decides},
          {"data_in_caches", trial(0)},
          {"data_from_memory", trial(1)}};
}

// Over which of this rank's NICs the channels of the chosen schedule go, with the share of the data
// of each; empty where each host has one, and where a plan's routes name them.
json channel_nics(Communicator& comm, const tune::Choice& choice) {
  json all = json::array();
  const std::vector<int>& hosts = comm.facts().host_of_rank;
  const bool routed = choice.routed != nullptr && !choice.routed->routes.empty();
  if (comm.facts().rail_rates.empty() || routed) return all;
  const int own = hosts[static_cast<std::size_t>(comm.rank())];
  const auto other = std::ranges::find_if(hosts, [&](int host) { return host != own; });
  const auto peer = static_cast<int>(other - hosts.begin());
  const std::vector<int>& weight = choice.schedule->schedule().weight;
  const double sum = std::accumulate(weight.begin(), weight.end(), 0.0);
  const link::NetworkLinks& links = comm.links().to_hosts();
  for (int channel = 0; channel < static_cast<int>(weight.size()); ++channel) {
    all.push_back(
        {{"channel", channel},
         {"nic", links.nic(channel, peer)},
         {"share", weight[static_cast<std::size_t>(channel)] / sum},
         {"distance", links.rails().distance(comm.rank(), peer, channel % links.rails().count())}});
  }
  return all;
}

}  // namespace

std::string explain(Communicator& comm, Collective collective, std::size_t bytes, int root) {
  CollectiveCall call;
  call.collective = collective;
  call.type = DataType::kUint8;
  call.root = has_root(collective) ? root : 0;
  // A root's buffers are the largest.
  call.count = 1;
  const Extent of_one = extent_of(call, call.root, comm.size());
  call.count = bytes / std::max(of_one.input_bytes, of_one.output_bytes);
  const Communicator::Explained explained = comm.explain(call);

  const topology::Topology* machine = comm.planned_machine();
  json candidates = json::array();
  for (const tune::Choice& choice : explained.candidates) {
    const bool by_address = choice.address_chunk_bytes > 0;
    candidates.push_back(
        {{"algorithm", choice.algorithm},
         {"kind", choice.algorithm.starts_with("plan-") ? "plan" : "shape"},
         {"channels", choice.channels},
         {"nic_rule", comm.facts().rail_rates.empty() ? json() : json(plan::name(choice.nic_rule))},
         {"chunk_bytes", by_address ? choice.address_chunk_bytes : choice.chunk_bytes},
         {"by_address", by_address},
         {"predicted_us", choice.predicted_seconds * 1e6},
         {"algbw_gbps", choice.algbw_gbps > 0 && std::isfinite(choice.algbw_gbps)
                            ? json(choice.algbw_gbps)
                            : json()}});
  }
  const std::optional<std::size_t> copied =
      comm.device() == nullptr ? std::nullopt : comm.device()->copied_from(collective);
  const std::string network = comm.links().network();
  const std::optional<std::string> slots =
      comm.device() == nullptr ? std::nullopt : comm.device()->network_slots();
  json nics = json::array();
  for (const double rate : comm.facts().rail_rates) nics.push_back(rate / 1e9);
  if (comm.facts().nic_rate > 0) nics.push_back(comm.facts().nic_rate / 1e9);
  const machine::Machine& placed = comm.machine();
  const json report = {
      {"operation", name(collective)},
      {"bytes", bytes},
      {"root", has_root(collective) ? json(root) : json()},
      {"ranks", comm.size()},
      {"hosts", comm.facts().num_hosts},
      {"network", network.empty() ? json() : json(network)},
      {"network_slots", slots.has_value() ? json(*slots) : json()},
      {"nic_gbps", std::move(nics)},
      {"machine",
       {{"name", placed.topology.name()},
        {"origin", placed.origin},
        {"fingerprint", fingerprint(placed)}}},
      {"bound", machine == nullptr ? json() : bound_on(*machine, collective, root)},
      {"limiting_links",
       machine == nullptr ? json::array() : limiting_links(*machine, explained.choice)},
      {"candidates", std::move(candidates)},
      {"planning", planning(explained)},
      {"chunks", chunks(explained)},
      {"copies", copies(explained)},
      {"memory", comm.device() == nullptr ? "host" : "GPU"},
      {"chosen", explained.algorithm},
      {"protocol", executor::name(explained.choice.protocol)},
      {"channels", explained.choice.schedule->schedule().num_channels()},
      {"nic_rule",
       comm.facts().rail_rates.empty() ? json() : json(plan::name(explained.choice.nic_rule))},
      {"channel_nics", channel_nics(comm, explained.choice)},
      {"chosen_by", explained.chosen_by},
      {"copy_engines", copied.has_value() && call.count >= *copied}};
  return report.dump();
}

}  // namespace ropewalk::comm
