#include "tune/kept_plans.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "core/digest.h"
#include "core/error.h"
#include "core/file_descriptor.h"
#include "core/interrupt.h"
#include "core/log.h"
#include "core/replace_file.h"
#include "plan/json.h"
#include "topology/json.h"

namespace ropewalk::tune {
namespace {

using nlohmann::json;

constexpr std::string_view kSchema = "ropewalk-kept-plans";

json header(const PlannedMachine& machine, const PlansRequest& request) {
  json header = {{"schema", kSchema},
                 {"version", kKeptPlansVersion},
                 {"machine", fmt::format("{:016x}", machine.hash())},
                 {"operation", name(request.collective)},
                 {"root", request.root},
                 {"max_channels", request.max_channels}};
  if (request.lags) header["lags"] = true;
  if (request.thorough) header["thorough"] = true;
  return header;
}

std::string text_of(const PlannedMachine& machine, const PlansRequest& request,
                    const PlansMade& made) {
  json all = header(machine, request);
  all["refused"] = made.refused;
  all["later"] = made.later;
  all["algorithms"] = json::array();
  for (const PlannedAlgorithm& algorithm : made.algorithms) {
    json plans = json::array();
    for (const plan::Plan& plan : algorithm.plans) {
      plans.push_back(plan::write_json(machine.topology(), plan));
    }
    all["algorithms"].push_back({{"name", algorithm.name}, {"plans", std::move(plans)}});
  }
  return kept_plans_text(all.dump());
}

PlansMade parse(const std::string& text, const std::string& path, const PlannedMachine& machine,
                const PlansRequest& request) {
  const std::size_t end = text.find('\n');
  if (end == std::string::npos || text.size() < end + 2 || text.back() != '\n') {
    throw Error(Errc::kInvalidArgument, "it is truncated");
  }
  const std::string_view body = std::string_view(text).substr(end + 1, text.size() - end - 2);
  if (text.substr(0, end) != digest_text(body)) {
    throw Error(Errc::kInvalidArgument, "its checksum is wrong");
  }
  const json all = json::parse(body);
  const json wanted = header(machine, request);
  for (const auto& [key, value] : wanted.items()) {
    if (all.at(key) != value) {
      throw Error(Errc::kInvalidArgument, "its {} is {}, not {}", key, all.at(key).dump(),
                  value.dump());
    }
  }
  PlansMade made;
  made.refused = all.at("refused").get<std::map<std::string, std::string>>();
  made.later = all.at("later").get<std::set<std::string>>();
  for (const json& algorithm : all.at("algorithms")) {
    PlannedAlgorithm read{algorithm.at("name").get<std::string>(), {}};
    for (const json& plan : algorithm.at("plans")) {
      read.plans.push_back(
          plan::read_json(plan.get_ref<const std::string&>(), path, machine.topology()));
    }
    if (read.plans.empty()) throw Error(Errc::kInvalidArgument, "{} has no plan", read.name);
    made.algorithms.push_back(std::move(read));
  }
  return made;
}

std::optional<PlansMade> read(const std::string& path, const PlannedMachine& machine,
                              const PlansRequest& request) {
  std::error_code ignored;
  const std::uintmax_t size = std::filesystem::file_size(path, ignored);
  if (ignored) return std::nullopt;
  try {
    if (size > plan::kMaxPlanBytes) throw Error(Errc::kInvalidArgument, "it has {} bytes", size);
    std::ifstream file(path, std::ios::binary);
    std::ostringstream text;
    text << file.rdbuf();
    return parse(text.str(), path, machine, request);
  } catch (const std::exception& error) {
    log::warn("the plans in {} are unusable ({}); planning again", path, error.what());
    return std::nullopt;
  }
}

// While one lives, no other process of this host makes the same plans: processes of one job need
// them at the same time, and one of them makes them for all. Waits no longer than planning takes;
// without the lock a process plans for itself.
class PlanningLock {
 public:
  PlanningLock(const std::string& path, bool thorough) {
    std::error_code ignored;
    std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
    file_ = FileDescriptor(open((path + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!file_) return;
    const auto end =
        std::chrono::steady_clock::now() + (thorough ? kLongestThoroughWait : kLongestWait);
    while (flock(file_.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK &&
           std::chrono::steady_clock::now() < end) {
      check_stopped("waiting for plans");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

 private:
  static constexpr std::chrono::seconds kLongestWait{2};
  static constexpr std::chrono::seconds kLongestThoroughWait{300};
  FileDescriptor file_;  // closing it unlocks
};

void write(const std::string& path, const std::string& text) {
  std::error_code ignored;
  std::filesystem::create_directories(std::filesystem::path(path).parent_path(), ignored);
  if (const int failed = replace_file(path, text, 0666); failed != 0) {
    log::warn("cannot write plans to {}: {}", path, std::system_category().message(failed));
  }
}

}  // namespace

KeptPlans::KeptPlans() : planner_(make_plans) {}

PlannedMachine::PlannedMachine(const topology::Topology& machine)
    : topology_(planned_machine(machine)), hash_(digest(topology::write_json(topology_))) {}

std::string kept_plans_text(const std::string& body) {
  return fmt::format("{}\n{}\n", digest_text(body), body);
}

std::string plans_file(const std::string& folder, std::uint64_t machine_hash,
                       const PlansRequest& request) {
  return fmt::format(
      "{}/plans/{:016x}-{}-{}-{}{}.json", folder, machine_hash, name(request.collective),
      request.root, request.max_channels,
      fmt::format("{}{}", request.lags ? "-lags" : "", request.thorough ? "-thorough" : ""));
}

std::shared_ptr<const PlannedCandidates> KeptPlans::get(const PlannedMachine& machine,
                                                        const PlansRequest& request,
                                                        const std::string& folder) {
  std::shared_ptr<Entry> entry;
  Planner planner;
  {
    const Lock lock(mutex_);
    std::shared_ptr<Entry>& kept = entries_[{machine.hash(), request}];
    if (kept == nullptr) kept = std::make_shared<Entry>();
    kept->last_use = ++uses_;
    entry = kept;
    planner = planner_;
    if (entries_.size() > kCapacity) {
      entries_.erase(std::min_element(entries_.begin(), entries_.end(), [](auto& a, auto& b) {
        return a.second->last_use < b.second->last_use;
      }));
    }
  }
  const Lock lock(entry->making);
  if (entry->made != nullptr) return entry->made;
  const auto start = std::chrono::steady_clock::now();
  const std::string path =
      folder.empty() ? std::string() : plans_file(folder, machine.hash(), request);
  std::optional<PlansMade> made;
  std::unique_ptr<PlanningLock> lock_of_host;
  if (!path.empty() && !std::filesystem::exists(path))
    lock_of_host = std::make_unique<PlanningLock>(path, request.thorough);
  if (!path.empty()) made = read(path, machine, request);
  const bool from_disk = made.has_value();
  if (!from_disk) {
    made = planner(machine.topology(), request);
    check_stopped("planning");  // an interrupted planning is noted as a reason for no plan
    if (!path.empty() && !made->algorithms.empty()) {
      write(path, text_of(machine, request, *made));
    }
  }
  lock_of_host.reset();
  PlannedCandidates candidates = compile_plans(std::move(*made), request);
  for (const auto& [algorithm, why] : candidates.refused) {
    log::trace(log::kTuning, "{} from root {} has no {}: {}", name(request.collective),
               request.root, algorithm, why);
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  log::info(log::kTuning, "{} plans for {} from root {} on {} {} in {:.1f} ms{}",
            candidates.schedules.size(), name(request.collective), request.root,
            machine.topology().name(), from_disk ? "read" : "made", took.count(),
            request.thorough ? ", those that take long among them" : "");
  entry->made = std::make_shared<const PlannedCandidates>(std::move(candidates));
  return entry->made;
}

void KeptPlans::get_later(std::shared_ptr<const PlannedMachine> machine,
                          const PlansRequest& request, const std::string& folder, Done done) {
  background_.post([this, machine = std::move(machine), request, folder, done = std::move(done)] {
    std::shared_ptr<const PlannedCandidates> made;
    try {
      made = get(*machine, request, folder);
    } catch (const std::exception& error) {
      if (background_.stopped()) return;
      log::warn("planning {} in the background: {}", name(request.collective), error.what());
    }
    done(std::move(made));
  });
}

void KeptPlans::plan_with(Planner planner) {
  const Lock lock(mutex_);
  planner_ = std::move(planner);
}

}  // namespace ropewalk::tune
