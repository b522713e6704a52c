#include "monitor/job_events.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string_view>

namespace ropewalk::monitor {
namespace {

std::string managed_by(const JobProcess& process) {
  const std::set<int>& devices = process.devices;
  const std::string gpus = devices.empty() ? "no GPU"
                                           : fmt::format("GPU{} {}", devices.size() > 1 ? "s" : "",
                                                         fmt::join(devices, ","));
  return fmt::format("Process {} on node {} managing {}", process.number, process.host, gpus);
}

std::string of_rank(std::uint64_t identity, int rank, std::string_view what) {
  return fmt::format("rank {} of communicator {:016x} {}", rank, identity, what);
}

}  // namespace

std::optional<JobProcess> JobWatch::process_of(std::uint64_t identity, int rank) const {
  const auto ranks = ranks_.find(identity);
  if (ranks == ranks_.end()) return std::nullopt;
  const auto name = ranks->second.find(rank);
  if (name == ranks->second.end()) return std::nullopt;
  return JobProcess{name->second.first, name->second.second, processes_.at(name->second)};
}

std::vector<JobEvent> JobWatch::learn(std::span<const CommunicatorSummary> all) {
  const bool begins = processes_.empty();
  std::set<Name> unknown;
  for (const CommunicatorSummary& each : all) {
    std::map<int, Name>& ranks = ranks_[each.identity];
    for (const auto& [rank, summary] : each.by_rank) {
      Name name{summary.host, summary.process};
      if (!processes_.contains(name)) unknown.insert(name);
      std::set<int>& devices = processes_[name];
      if (summary.device >= 0) devices.insert(summary.device);
      ranks[rank] = std::move(name);
    }
  }
  std::vector<JobEvent> events;
  if (begins) return events;
  for (const Name& name : unknown) {
    events.push_back({JobEvent::Group::kLifecycle, "PEER_NEW",
                      JobProcess{name.first, name.second, processes_.at(name)}, ""});
  }
  return events;
}

std::vector<JobEvent> JobWatch::see(const PeerStates& now) {
  PeerStates& before = before_[now.identity];
  std::vector<JobEvent> events;
  const auto add = [&](JobEvent::Group group, const char* name, int rank, std::string_view what) {
    events.push_back(
        {group, name, process_of(now.identity, rank), of_rank(now.identity, rank, what)});
  };
  for (const int rank : now.suspected) {
    if (before.suspected.contains(rank)) continue;
    add(JobEvent::Group::kTrace, "PEER_UNRESPONSIVE", rank, "gives no sign of life");
  }
  for (const int rank : before.suspected) {
    if (now.suspected.contains(rank) || now.lost.contains(rank)) continue;
    add(JobEvent::Group::kTrace, "PEER_RECOVERED", rank, "gives signs of life again");
  }
  for (const int rank : now.left) {
    if (before.left.contains(rank)) continue;
    add(JobEvent::Group::kTrace, "PEER_DISCONNECTED", rank, "has finalized it");
  }
  for (const auto& [rank, reason] : now.lost) {
    if (before.lost.contains(rank)) continue;
    const std::optional<JobProcess> process = process_of(now.identity, rank);
    if (process && !dead_.emplace(process->host, process->number).second) continue;
    add(JobEvent::Group::kLifecycle, "PEER_DEAD", rank, fmt::format("was lost: {}", reason));
  }
  before = now;
  return events;
}

void JobWatch::forget(std::uint64_t identity) {
  ranks_.erase(identity);
  before_.erase(identity);
}

std::string event_text(const JobEvent& event, std::time_t when) {
  std::vector<std::string> words = {fmt::format("[{}] {}:", ras_timestamp(when), event.name)};
  if (event.process) words.push_back(managed_by(*event.process));
  if (!event.details.empty()) words.push_back(event.details);
  return fmt::format("{}\n", fmt::join(words, " "));
}

std::string event_json(const JobEvent& event, std::time_t when) {
  nlohmann::ordered_json object = {
      {"timestamp", ras_timestamp(when)},
      {"group", event.group == JobEvent::Group::kLifecycle ? "LIFECYCLE" : "TRACE"},
      {"event", event.name}};
  if (event.process) {
    object["peer"] = {{"host", event.process->host},
                      {"pid", event.process->number},
                      {"cuda_devs", event.process->devices},
                      {"nvml_devs", event.process->devices}};
  }
  object["details"] = event.details;
  return object.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace ropewalk::monitor
