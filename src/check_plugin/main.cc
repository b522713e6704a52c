// ropewalk-check-plugin: reads a request as JSON on standard input, prints one JSON object a line
// on standard output, each as soon as it is known.
//
//   {"file": TEXT, "version": N or null, "device": N, "timeout_s": N, "connections": N,
//    "large": BOOL, "log": BOOL, "rules": [ID...] (empty: all), "sizes": [N...] (empty: no
//    measures)}
//   {"list": true}
//
//   {"rule_list": [{id, title, relies, where, processes}...]}          for "list"
//   {"plugin": {file, name, version, versions[], devices[]}}           when it loads
//   {"rule": {id, title, outcome, expected, came, missing, call, side, warning, seconds}}
//   {"measure": {memory: "host" or "gpu", sizes[]} or {memory, missing} or {memory, failed}}
//   {"fairness": N, "connections_per_second": N}                       when their rules passed
//
// outcome is "passed", "failed" or "skipped". Exit status 0; 2 with a message on standard error
// when the request is wrong. `ropewalk check-plugin` is the command for people; this program is
// apart so that nothing but itself is in the processes that load the plugin.
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iostream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "check_plugin/measure.h"
#include "check_plugin/rules.h"
#include "check_plugin/supervisor.h"
#include "core/error.h"

namespace ropewalk::check_plugin {
namespace {

using Json = nlohmann::json;

void print(const Json& line) {
  std::cout << line.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
}

Json list_of_rules() {
  Json list = Json::array();
  for (const Rule& rule : rules()) {
    list.push_back({{"id", rule.id},
                    {"title", rule.title},
                    {"relies", rule.relies},
                    {"where", rule.where},
                    {"processes", rule.processes}});
  }
  return {{"rule_list", list}};
}

const Rule* find_rule(std::string_view id) {
  for (const Rule& rule : rules()) {
    if (rule.id == id) return &rule;
  }
  return nullptr;
}

// Those that were asked for, and those that they need.
std::set<std::string_view> chosen_rules(const Json& ids) {
  std::set<std::string_view> chosen;
  for (const Json& id : ids) {
    const Rule* rule = find_rule(id.get<std::string>());
    if (rule == nullptr) {
      throw Error(Errc::kInvalidArgument, "there is no rule \"{}\"", id.get<std::string>());
    }
    for (; rule != nullptr; rule = find_rule(rule->needs)) chosen.insert(rule->id);
  }
  return chosen;
}

std::string_view word(State state) {
  return state == State::kPassed ? "passed" : state == State::kSkipped ? "skipped" : "failed";
}

Json report(const Rule& rule, const Verdict& verdict) {
  return {{"rule",
           {{"id", rule.id},
            {"title", rule.title},
            {"outcome", word(verdict.state)},
            {"expected", verdict.expected},
            {"came", verdict.came},
            {"missing", verdict.missing},
            {"call", verdict.call},
            {"side", verdict.side},
            {"warning", verdict.warning},
            {"seconds", verdict.seconds}}}};
}

// What the plugin says of itself, through the page.
void describe_plugin(Supervisor& supervisor, const Options& options) {
  const Verdict verdict = supervisor.run(1, 2 * options.timeout, [&](Session& session) {
    session.start();
    Json devices = Json::array();
    for (int i = 0; i < session.device_count(); ++i) {
      Properties found;
      session.expect(session.plugin().properties(i, found), Call::kGetProperties);
      devices.push_back({{"name", found.name.value_or("")},
                         {"pci_path", found.pci_path.value_or("")},
                         {"speed_mbps", found.speed},
                         {"latency_us", found.latency},
                         {"host_memory", (found.ptr_support & abi::kHostPointer) != 0},
                         {"gpu_memory", (found.ptr_support & abi::kCudaPointer) != 0},
                         {"dma_buf", (found.ptr_support & abi::kDmaBufPointer) != 0},
                         {"max_recvs", found.max_recvs},
                         {"max_comms", found.max_comms}});
    }
    const Json found = {{"file", options.file},
                        {"name", session.plugin().name()},
                        {"version", session.plugin().version()},
                        {"versions", session.plugin().versions()},
                        {"devices", devices}};
    const std::string text = found.dump(-1, ' ', false, Json::error_handler_t::replace);
    if (text.size() >= kMailBytes) throw Failed{"a description that fits", "a longer one"};
    session.tell(std::as_bytes(std::span(text.c_str(), text.size() + 1)));
  });
  if (verdict.state != State::kPassed) return;  // the rules say why
  const auto* text = reinterpret_cast<const char*>(supervisor.page().processes[0].mail.data());
  print({{"plugin", Json::parse(text)}});
}

void measure_memory(Supervisor& supervisor, const Options& options, const char* memory,
                    const std::vector<std::size_t>& sizes,
                    const std::function<void(Session&)>& body) {
  const Verdict verdict = supervisor.run(2, 30 * options.timeout, body);
  Json line = {{"memory", memory}};
  if (verdict.state == State::kPassed) {
    line["sizes"] = measured(supervisor.page().processes[1], sizes);
  } else if (verdict.state == State::kSkipped) {
    line["missing"] = verdict.missing;
  } else {
    line["failed"] = fmt::format("expected: {}; came: {}", verdict.expected, verdict.came);
  }
  print({{"measure", line}});
}

void measure_all(Supervisor& supervisor, const Options& options,
                 const std::vector<std::size_t>& sizes) {
  const std::size_t bytes = shared_bytes(sizes);
  void* shared = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw system_error(errno, "mapping memory for copies");
  measure_memory(supervisor, options, "host", sizes, [&](Session& session) {
    measure(session, sizes, static_cast<std::byte*>(shared));
  });
  munmap(shared, bytes);
  measure_memory(supervisor, options, "gpu", sizes,
                 [&](Session& session) { measure_gpu(session, sizes); });
}

void check(const Json& request) {
  Options options;
  options.file = request.at("file").get<std::string>();
  if (!request.at("version").is_null()) options.version = request.at("version").get<int>();
  options.device = request.at("device").get<int>();
  options.timeout =
      std::chrono::milliseconds(static_cast<int>(request.at("timeout_s").get<double>() * 1000));
  options.connections = request.at("connections").get<int>();
  options.large = request.at("large").get<bool>();
  options.log = request.at("log").get<bool>();
  const std::set<std::string_view> chosen = chosen_rules(request.at("rules"));
  const auto sizes = request.at("sizes").get<std::vector<std::size_t>>();
  if (sizes.size() > kMostSizes) {
    throw Error(Errc::kInvalidArgument, "{} sizes: at most {}", sizes.size(), kMostSizes);
  }

  Supervisor supervisor(options);
  describe_plugin(supervisor, options);
  std::map<std::string_view, State> outcomes;
  for (const Rule& rule : rules()) {
    if (!chosen.empty() && !chosen.contains(rule.id)) continue;
    Verdict verdict;
    const auto needed = outcomes.find(rule.needs);
    if (needed != outcomes.end() && needed->second != State::kPassed) {
      verdict.state = State::kSkipped;
      verdict.missing = fmt::format("rule {}, which was {}", rule.needs, word(needed->second));
    } else {
      verdict =
          supervisor.run(rule.processes, (rule.time_factor + 1) * options.timeout, rule.check);
    }
    outcomes[rule.id] = verdict.state;
    print(report(rule, verdict));
    if (verdict.state != State::kPassed) continue;
    if (rule.id == "fairness") {
      print({{"fairness", supervisor.page().processes[1].numbers[0]}});
    } else if (rule.id == "leaks") {
      print({{"connections_per_second", supervisor.page().processes[0].numbers[0]}});
    }
  }
  if (!sizes.empty() && outcomes["transfer"] == State::kPassed) {
    measure_all(supervisor, options, sizes);
  }
}

}  // namespace
}  // namespace ropewalk::check_plugin

int main() {
  using namespace ropewalk::check_plugin;  // NOLINT: the program's own
  // Plugins that copy by the GPU ask for it; nothing here launches kernels of its own.
  setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  const std::string text{std::istreambuf_iterator<char>(std::cin), {}};
  try {
    const nlohmann::json request = nlohmann::json::parse(text);
    if (request.value("list", false)) {
      print(list_of_rules());
    } else {
      check(request);
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
