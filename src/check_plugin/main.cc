// ropewalk-check-plugin: reads a request as JSON on standard input, prints one JSON object a line
// on standard output, each as soon as it is known.
//
//   {"file": TEXT, "version": N or null, "device": N, "timeout_s": N, "connections": N,
//    "large": BOOL, "log": BOOL, "rules": [ID...] (empty: all), "sizes": [N...] (empty: no
//    measures)}
//   {"list": true}
//
//   {"rule_list": [{id, title, relies, where, processes}...]}          for "list"
//   {"plugin": {file, name, version, versions[], devices[], log[]}}    when it loads
//   {"rule": {id, title, outcome, expected, came, missing, call, side, log[], log_left_out,
//             seconds}}
//   {"measure": {memory: "host" or "gpu", sizes[]} or {memory, missing} or {memory, failed}}
//   {"fairness": N, "connections_per_second": N}                       when their rules passed
//
// outcome is "passed", "failed" or "skipped". log: warnings that the plugin logged meanwhile, as
// {side, call, text}; those of its start stand with the plugin, not with each rule. Exit status 0;
// 2 with a message on standard error when the request is wrong. `ropewalk check-plugin` is the
// command for people; this program is apart so that nothing but itself is in the processes that
// load the plugin.
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

// Those that were asked for, and those that they need or prefer.
std::set<std::string_view> chosen_rules(const Json& ids) {
  std::set<std::string_view> chosen;
  for (const Json& id : ids) {
    const Rule* rule = find_rule(id.get<std::string>());
    if (rule == nullptr) {
      throw Error(Errc::kInvalidArgument, "there is no rule \"{}\"", id.get<std::string>());
    }
    for (const Rule* preferred = find_rule(rule->prefers); preferred != nullptr;
         preferred = find_rule(preferred->needs)) {
      chosen.insert(preferred->id);
    }
    for (; rule != nullptr; rule = find_rule(rule->needs)) chosen.insert(rule->id);
  }
  return chosen;
}

std::string_view word(State state) {
  return state == State::kPassed ? "passed" : state == State::kSkipped ? "skipped" : "failed";
}

Json log_of(const Verdict& verdict) {
  Json log = Json::array();
  for (const Logged& line : verdict.log) {
    log.push_back({{"side", line.side}, {"call", line.call}, {"text", line.text}});
  }
  return log;
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
            {"log", log_of(verdict)},
            {"log_left_out", verdict.log_left_out},
            {"seconds", verdict.seconds}}}};
}

// What the plugin says of itself, through the page.
void describe_plugin(Supervisor& supervisor, const Options& options) {
  const Verdict verdict = supervisor.run(1, 2 * options.timeout, [&](Session& session) {
    session.start(true);
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
  Json plugin = Json::parse(text);
  plugin["log"] = log_of(verdict);
  print({{"plugin", plugin}});
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

Options options_of(const Json& request) {
  Options options;
  options.file = request.at("file").get<std::string>();
  if (!request.at("version").is_null()) options.version = request.at("version").get<int>();
  options.device = request.at("device").get<int>();
  options.timeout =
      std::chrono::milliseconds(static_cast<int>(request.at("timeout_s").get<double>() * 1000));
  options.connections = request.at("connections").get<int>();
  options.large = request.at("large").get<bool>();
  options.log = request.at("log").get<bool>();
  return options;
}

// Checks the rules in their order, and reports the outcome of each.
class Check {
 public:
  Check(const Options& options, std::set<std::string_view> chosen)
      : options_(options), chosen_(std::move(chosen)) {}

  void run() {
    // The plugin's description is printed first, but read only after these rules have checked the
    // calls needed for it: a call that hangs would otherwise take the time limit twice.
    constexpr std::string_view kLastBefore = "properties-written";
    for (const Rule& rule : rules()) {
      start_beside(rule);
      if (is_chosen(rule)) check(rule);
      if (rule.id == kLastBefore) describe();
    }
    tell_measures();
  }

  [[nodiscard]] bool passed(std::string_view id) const {
    const auto found = outcomes_.find(id);
    return found != outcomes_.end() && found->second == State::kPassed;
  }
  [[nodiscard]] Supervisor& supervisor() noexcept { return supervisor_; }

 private:
  [[nodiscard]] bool is_chosen(const Rule& rule) const {
    return chosen_.empty() || chosen_.contains(rule.id);
  }
  [[nodiscard]] std::chrono::milliseconds limit(const Rule& rule) const {
    return (rule.time_factor + 1) * options_.timeout;
  }

  // Why a rule says nothing now; empty: it does.
  [[nodiscard]] std::string obstacle(const Rule& rule) const {
    const auto needed = outcomes_.find(rule.needs);
    if (needed == outcomes_.end() || needed->second == State::kPassed) return "";
    return fmt::format("rule {}, which was {}", rule.needs, word(needed->second));
  }

  // Those that run beside this rule and the ones after it.
  void start_beside(const Rule& present) {
    for (const Rule& rule : rules()) {
      if (rule.beside != present.id || !is_chosen(rule) || !obstacle(rule).empty()) continue;
      options_.connects = passed(rule.prefers);
      resting_.start(rule.processes, limit(rule), rule.check);
      started_ = &rule;
    }
  }

  void check(const Rule& rule) {
    Verdict verdict;
    if (const std::string missing = obstacle(rule); !missing.empty()) {
      verdict.state = State::kSkipped;
      verdict.missing = missing;
    } else if (started_ == &rule) {
      verdict = resting_.finish();
    } else {
      options_.connects = passed(rule.prefers);
      verdict = supervisor_.run(rule.processes, limit(rule), rule.check);
    }
    outcomes_[rule.id] = verdict.state;
    stuck_or_gone_ = stuck_or_gone_ || !verdict.call.empty();
    if (described_) {
      print(report(rule, verdict));
    } else {
      held_.push_back(report(rule, verdict));
    }
    if (rule.id == "fairness") least_share_ = supervisor_.page().processes[1].numbers[0];
    if (rule.id == "leaks") connections_per_second_ = supervisor_.page().processes[0].numbers[0];
  }

  void describe() {
    if (!stuck_or_gone_) describe_plugin(supervisor_, options_);
    for (const Json& line : held_) print(line);
    described_ = true;
  }

  void tell_measures() const {
    if (passed("fairness")) print({{"fairness", least_share_}});
    if (passed("leaks")) print({{"connections_per_second", connections_per_second_}});
  }

  Options options_;
  std::set<std::string_view> chosen_;
  Supervisor resting_{options_};
  Supervisor supervisor_{options_, &resting_};
  const Rule* started_ = nullptr;  // by resting_
  std::map<std::string_view, State> outcomes_;
  bool stuck_or_gone_ = false;  // a rule crashed, ended or hung in a call
  bool described_ = false;
  std::vector<Json> held_;  // until the plugin is described
  double least_share_ = 0;
  double connections_per_second_ = 0;
};

void check(const Json& request) {
  const Options options = options_of(request);
  const auto sizes = request.at("sizes").get<std::vector<std::size_t>>();
  if (sizes.size() > kMostSizes) {
    throw Error(Errc::kInvalidArgument, "{} sizes: at most {}", sizes.size(), kMostSizes);
  }
  Check all(options, chosen_rules(request.at("rules")));
  all.run();
  if (!sizes.empty() && all.passed("transfer")) measure_all(all.supervisor(), options, sizes);
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
  } catch (const nlohmann::json::exception& error) {
    std::cerr << "ropewalk-check-plugin: the request on standard input: " << error.what()
              << "\nThe command for people is: ropewalk check-plugin FILE\n";
    return 2;
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
  return 0;
}
