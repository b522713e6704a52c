#include "monitor/job_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>

namespace ropewalk::monitor {
namespace {

using nlohmann::json;

// The collectives that NCCL counts, and their names here.
constexpr std::array<std::pair<const char*, const char*>, 5> kKinds = {
    {{"Broadcast", "broadcast"},
     {"Reduce", "reduce"},
     {"AllGather", "all_gather"},
     {"ReduceScatter", "reduce_scatter"},
     {"AllReduce", "all_reduce"}}};
constexpr int kRemoteError = 6;  // ncclRemoteError

std::string hash(const CommunicatorSummary& each) { return fmt::format("{:016x}", each.identity); }

// "2", or "1-2" where they differ.
std::string range(const std::map<std::string, int>& numbers) {
  if (numbers.empty()) return "0";
  const auto smaller = [](const auto& a, const auto& b) { return a.second < b.second; };
  const int least = std::ranges::min_element(numbers, smaller)->second;
  const int most = std::ranges::max_element(numbers, smaller)->second;
  return least == most ? std::to_string(least) : fmt::format("{}-{}", least, most);
}

std::string errors_of(const CommunicatorSummary& each) {
  if (!each.missing().empty()) return "INCOMPLETE";
  return each.absent().empty() ? "OK" : "MISMATCH";
}

std::string managed(const RankSummary& rank) {
  return fmt::format("GPU {} managed by process {} on node {}", std::max(rank.device, 0),
                     rank.process, rank.host);
}

void add_problems(std::string& text, std::size_t number, const CommunicatorSummary& each,
                  bool verbose) {
  const std::string errors = errors_of(each);
  if (errors == "OK" && !each.broken()) return;
  text += fmt::format("#{}-0 ({}) {}\n", number, hash(each), each.broken() ? "ERROR" : errors);
  const std::vector<int> missing = each.missing();
  if (!missing.empty()) {
    text += fmt::format("  Missing {} rank{}\n", missing.size(), missing.size() == 1 ? "" : "s");
    for (const int rank : missing) text += fmt::format("  Rank {} does not respond\n", rank);
  }
  const std::vector<int> absent = each.absent();
  if (!absent.empty()) {
    text += "  Communicator ranks have different collective operation counts\n";
    std::map<std::uint64_t, int, std::greater<>> launched;
    for (const auto& [rank, summary] : each.by_rank) ++launched[summary.call];
    for (const auto& [call, ranks] : launched) {
      text += fmt::format("  {} ranks have launched up to operation {}\n", ranks, call);
    }
    for (const auto& [rank, summary] : each.by_rank) {
      if (!verbose && std::ranges::find(absent, rank) == absent.end()) continue;
      text += fmt::format("  Rank {} has launched up to operation {} -- {}\n", rank, summary.call,
                          managed(summary));
    }
  }
  for (const auto& [rank, summary] : each.by_rank) {
    if (!summary.failure.empty()) text += fmt::format("  Rank {}: {}\n", rank, summary.failure);
  }
  text += "\n";
}

// ---- Prometheus ----

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || c == '"') result += '\\';
    result += c == '\n' ? std::string("\\n") : std::string(1, c);
  }
  return result;
}

using Labels = std::vector<std::pair<const char*, std::string>>;

void add_head(std::string& text, const char* name, const char* kind, const char* help) {
  text += fmt::format("# HELP {} {}\n# TYPE {} {}\n", name, help, name, kind);
}

void add_line(std::string& text, const char* name, const Labels& labels, double value) {
  std::string inside;
  for (const auto& [key, label] : labels) {
    inside += fmt::format("{}{}=\"{}\"", inside.empty() ? "" : ",", key, escaped(label));
  }
  text += fmt::format("{}{{{}}} {:.12g}\n", name, inside, value);
}

}  // namespace

std::vector<int> CommunicatorSummary::missing() const {
  std::vector<int> ranks;
  for (int rank = 0; rank < size; ++rank) {
    if (!by_rank.contains(rank)) ranks.push_back(rank);
  }
  return ranks;
}

std::vector<int> CommunicatorSummary::absent() const {
  std::uint64_t reached = 0;
  for (const auto& [rank, call] : before) reached = std::max(reached, call);
  std::vector<int> ranks;
  for (const auto& [rank, summary] : by_rank) {
    if (summary.call < reached) ranks.push_back(rank);
  }
  return ranks;
}

bool CommunicatorSummary::broken() const {
  return std::ranges::any_of(by_rank,
                             [](const auto& entry) { return !entry.second.failure.empty(); });
}

std::string ras_text(std::span<const CommunicatorSummary> all, double seconds, bool verbose) {
  std::map<std::string, std::set<int>> processes;  // by node
  std::map<std::string, int> gpus_of;              // by process
  std::set<std::pair<std::string, int>> gpus;
  for (const CommunicatorSummary& each : all) {
    for (const auto& [rank, summary] : each.by_rank) {
      processes[summary.host].insert(summary.process);
      int& its = gpus_of[fmt::format("{} {}", summary.host, summary.process)];
      if (summary.device < 0) continue;
      const std::string process = fmt::format("{} {}", summary.host, summary.process);
      if (gpus.insert({process, summary.device}).second) ++its;
    }
  }
  std::map<std::string, int> processes_of;
  for (const auto& [host, its] : processes) processes_of[host] = static_cast<int>(its.size());
  const std::string heading = fmt::format("Communicators... ({:.3f}s)", seconds);
  std::string text = fmt::format(
      "Ropewalk, answering as NCCL's RAS\n\nJob summary\n===========\n\n"
      "  Nodes  Processes         GPUs  Processes     GPUs\n"
      "(total)   per node  per process    (total)  (total)\n"
      "{:7d}  {:>9s}  {:>11s}  {:9d}  {:7d}\n\n{}\n{}\n\n"
      "Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors\n"
      "    #  in group  per comm  per node  per comm  in group\n",
      processes.size(), range(processes_of), range(gpus_of), gpus_of.size(), gpus.size(), heading,
      std::string(heading.size(), '='));
  std::string problems;
  for (std::size_t number = 0; number < all.size(); ++number) {
    const CommunicatorSummary& each = all[number];
    std::map<std::string, int> nodes;
    for (const auto& [rank, summary] : each.by_rank) ++nodes[summary.host];
    text += fmt::format("{:5d}  {:8d}  {:8d}  {:>8s}  {:8d}  {:8d}  {:>8s}  {:>6s}\n", number, 1,
                        nodes.size(), range(nodes), each.size, each.size,
                        each.broken() ? "ABORT" : "RUNNING", errors_of(each));
    add_problems(problems, number, each, verbose);
  }
  return text + "\nErrors\n======\n\n" + (problems.empty() ? "No errors\n" : problems);
}

std::string ras_timestamp(std::time_t when) {
  std::tm local{};
  localtime_r(&when, &local);
  std::array<char, 32> text{};
  (void)std::strftime(text.data(), text.size(), "%F %T", &local);
  return text.data();
}

std::string ras_json(std::span<const CommunicatorSummary> all, double seconds) {
  json communicators = json::array();
  std::size_t silent = 0;
  for (const CommunicatorSummary& each : all) {
    json ranks = json::array();
    for (const auto& [rank, summary] : each.by_rank) {
      json counts;
      for (const auto& [name, operation] : kKinds) {
        const auto its = summary.counts.find(operation);
        counts[name] = its == summary.counts.end() ? 0 : its->second;
      }
      const bool failed = !summary.failure.empty();
      ranks.push_back({{"rank", rank},
                       {"host", summary.host},
                       {"pid", summary.process},
                       {"cuda_dev", std::max(summary.device, 0)},
                       {"nvml_dev", std::max(summary.device, 0)},
                       {"status",
                        {{"init_state", 0},
                         {"async_error", failed ? kRemoteError : 0},
                         {"finalize_called", false},
                         {"destroy_flag", false},
                         {"abort_flag", failed}}},
                       {"collective_counts", std::move(counts)}});
    }
    json missing = json::array();
    for (const int rank : each.missing()) {
      missing.push_back({{"rank", rank},
                         {"host", ""},
                         {"pid", 0},
                         {"cuda_dev", 0},
                         {"nvml_dev", 0},
                         {"status", {{"unresponsive", true}, {"considered_dead", false}}}});
    }
    silent += missing.size();
    communicators.push_back({{"hash", "0x" + hash(each)},
                             {"secondary_hash", "0x0:0x0"},
                             {"size", each.size},
                             {"ranks_count", each.by_rank.size()},
                             {"missing_ranks_count", missing.size()},
                             {"ranks", std::move(ranks)},
                             {"missing_ranks", std::move(missing)}});
  }
  const json report = {{"nccl_version", "ropewalk"},
                       {"cuda_runtime_version", 0},
                       {"cuda_driver_version", 0},
                       {"timestamp", ras_timestamp(std::time(nullptr))},
                       {"communicators_count", all.size()},
                       {"communicators", std::move(communicators)},
                       {"ras", {{"collection_time_sec", seconds}, {"timeouts_count", silent}}}};
  return report.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string metrics_text(std::span<const CommunicatorSummary> all) {
  std::string text;
  add_head(text, "ropewalk_ranks", "gauge", "Ranks of the communicator.");
  for (const CommunicatorSummary& each : all) {
    add_line(text, "ropewalk_ranks", {{"communicator", hash(each)}}, each.size);
  }
  add_head(text, "ropewalk_ranks_answering", "gauge", "Ranks of the communicator that answer.");
  for (const CommunicatorSummary& each : all) {
    add_line(text, "ropewalk_ranks_answering", {{"communicator", hash(each)}},
             static_cast<double>(each.by_rank.size()));
  }
  const auto each_rank = [&](const auto& body) {
    for (const CommunicatorSummary& each : all) {
      for (const auto& [rank, summary] : each.by_rank) {
        body(each, summary,
             Labels{{"communicator", hash(each)}, {"rank", std::to_string(summary.rank)}});
      }
    }
  };
  add_head(text, "ropewalk_rank_absent", "gauge",
           "1: other ranks are in a collective that this one, or its GPU, has not entered.");
  each_rank([&](const CommunicatorSummary& each, const RankSummary& summary, const Labels& labels) {
    const std::vector<int> absent = each.absent();
    const bool is = std::ranges::find(absent, summary.rank) != absent.end();
    add_line(text, "ropewalk_rank_absent", labels, is ? 1 : 0);
  });
  add_head(text, "ropewalk_rank_failed", "gauge", "1: the communicator is broken at this rank.");
  each_rank([&](const CommunicatorSummary&, const RankSummary& summary, const Labels& labels) {
    add_line(text, "ropewalk_rank_failed", labels, summary.failure.empty() ? 0 : 1);
  });
  add_head(text, "ropewalk_rank_stalled_seconds", "gauge",
           "For how long nothing has moved in the operation that the rank is in.");
  each_rank([&](const CommunicatorSummary&, const RankSummary& summary, const Labels& labels) {
    add_line(text, "ropewalk_rank_stalled_seconds", labels, summary.stalled_seconds);
  });
  add_head(text, "ropewalk_calls_begun_total", "counter", "Calls that were begun.");
  each_rank([&](const CommunicatorSummary&, const RankSummary& summary, Labels labels) {
    labels.emplace_back("operation", "");
    for (const auto& [operation, count] : summary.counts) {
      labels.back().second = operation;
      add_line(text, "ropewalk_calls_begun_total", labels, static_cast<double>(count));
    }
  });
  add_head(text, "ropewalk_link_bytes_total", "counter",
           "Bytes that the rank has sent to a peer, by what they went over.");
  each_rank([&](const CommunicatorSummary&, const RankSummary& summary, Labels labels) {
    labels.emplace_back("peer", "");
    labels.emplace_back("link", "");
    for (const executor::Traffic::Entry& link : summary.links) {
      labels[labels.size() - 2].second = std::to_string(link.peer);
      labels.back().second = link.over;
      add_line(text, "ropewalk_link_bytes_total", labels, static_cast<double>(link.bytes));
    }
  });
  return text;
}

}  // namespace ropewalk::monitor
