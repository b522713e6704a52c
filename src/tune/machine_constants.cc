#include "tune/machine_constants.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "executor/host/limits.h"
#include "executor/host/link_limits.h"
#include "tune/processors.h"
#include "tune/tuning_store.h"

namespace ropewalk::tune {
namespace {

using nlohmann::json;
using std::chrono_literals::operator""s;

// One row per constant: its key in the file and its member.
constexpr std::array<std::pair<const char*, double MachineConstants::*>, 11> kFields = {
    {{"hop_latency_s", &MachineConstants::hop_latency},
     {"chunk_cost_s", &MachineConstants::chunk_cost},
     {"copy_rate_Bps", &MachineConstants::copy_rate},
     {"combine_rate_Bps", &MachineConstants::combine_rate},
     {"address_cost_s", &MachineConstants::address_cost},
     {"address_rate_Bps", &MachineConstants::address_rate},
     {"address_move_rate_Bps", &MachineConstants::address_move_rate},
     {"switch_cost_s", &MachineConstants::switch_cost},
     {"network_latency_s", &MachineConstants::network_latency},
     {"network_rate_Bps", &MachineConstants::network_rate},
     {"network_message_s", &MachineConstants::network_message}}};

json to_json(const MachineConstants& constants) {
  json object;
  for (const auto& [key, member] : kFields) object[key] = constants.*member;
  return object;
}

// What the file has of this machine.
struct Kept {
  MachineConstants constants;
  int measurements = 1;
  std::int64_t last = 0;  // when, in seconds since 1970
};

constexpr const char* kMeasurements = "measurements";
constexpr const char* kLast = "last_measured_at";

std::int64_t now() { return std::chrono::system_clock::now().time_since_epoch() / 1s; }

std::optional<Kept> read(const std::string& path) {
  return read_tuning_as(path, machine_name(), [](const json& entry) {
    Kept kept;
    for (const auto& [key, member] : kFields) kept.constants.*member = constant_of(entry, key);
    kept.measurements = entry.value(kMeasurements, kept.measurements);
    kept.last = entry.value(kLast, kept.last);
    return kept;
  });
}

void write(const std::string& path, const Kept& kept) {
  json entry = to_json(kept.constants);
  entry[kMeasurements] = kept.measurements;
  entry[kLast] = kept.last;
  write_tuning(path, machine_name(), entry);
}

// Other work on the machine makes costs higher and rates lower, never the reverse.
MachineConstants best_of(const MachineConstants& one, const MachineConstants& other) {
  MachineConstants best;
  for (const auto& [key, member] : kFields) {
    const bool is_rate = std::string_view(key).ends_with("_Bps");
    best.*member =
        is_rate ? std::max(one.*member, other.*member) : std::min(one.*member, other.*member);
  }
  return best;
}

// A job that started on a busy machine must not slow down all that follow: measured again by later
// ones, after half a minute and ever more rarely, within two days eight times in all.
bool is_due(const Kept& kept) {
  constexpr int kMostMeasurements = 8;
  constexpr std::int64_t kFirstPause = 30;
  if (kept.measurements >= kMostMeasurements) return false;
  const std::int64_t pause = kFirstPause << 2 * (std::max(kept.measurements, 1) - 1);
  const std::int64_t since = now() - kept.last;
  return since < 0 || since >= pause;
}

// One core that sends to itself has all in its caches, and nothing comes meanwhile: on a Xeon a
// message took it 2.2 us, and one between ranks 5 to 8 of their time, with a latency of 6.4. (Four
// ranks with a core each then took two_shot for all-reduces of 4 to 16 KiB, by six messages from
// each rank, in two to three times as long as recursive doubling takes with two.)
constexpr double kLeastMessageShare = 0.65;  // of the latency

MachineConstants between_ranks(MachineConstants constants) {
  constants.network_message =
      std::max(constants.network_message, kLeastMessageShare * constants.network_latency);
  return constants;
}

MachineConstants measured() {
  const OnAllProcessors free;
  const executor::Limits limits = executor::measure_path_costs(std::chrono::milliseconds(75));
  MachineConstants constants;
  const auto take = [](double& constant, double measured) {
    if (measured > 0) constant = measured;
  };
  if (const auto link = executor::measure_link(limits.cores)) {
    // The hop includes the work of both ends, which the model counts apart.
    take(constants.hop_latency, link->hop_seconds - 2 * constants.chunk_cost);
    take(constants.copy_rate, link->staged_bytes_per_second);
    take(constants.combine_rate, link->staged_bytes_per_second);
  }
  if (limits.process_read.has_value()) {
    take(constants.address_cost, limits.process_read->seconds_per_call);
    take(constants.address_rate, limits.process_read->fresh_bytes_per_second);
    take(constants.address_move_rate, limits.process_read->moved_bytes_per_second);
  }
  take(constants.network_latency, limits.tcp_latency_seconds.value_or(0));
  take(constants.network_message, limits.tcp_message_seconds.value_or(0));
  return constants;
}

}  // namespace

std::string tuning_file(const Config& config) {
  if (const std::string& given = config.text(Setting::kTuningFile); !given.empty()) return given;
  if (const char* cache = std::getenv("XDG_CACHE_HOME"); cache != nullptr && *cache != '\0') {
    return std::string(cache) + "/ropewalk/tuning.json";
  }
  const char* home = std::getenv("HOME");
  return std::string(home == nullptr ? "/tmp" : home) + "/.cache/ropewalk/tuning.json";
}

MachineConstants machine_constants(const Config& config) {
  if (!config.flag(Setting::kTune)) return {};
  const std::string path = tuning_file(config);
  const std::optional<Kept> before = read(path);
  if (before && !is_due(*before)) return between_ranks(before->constants);
  Kept kept{measured(), 1, now()};
  if (before) {
    kept.constants = best_of(kept.constants, before->constants);
    kept.measurements = before->measurements + 1;
  }
  write(path, kept);
  log::info(log::kTuning, "measured this machine's constants into {} ({} times by now)", path,
            kept.measurements);
  return between_ranks(kept.constants);
}

std::string describe_constants(const Config& config, bool measure) {
  const std::string path = tuning_file(config);
  json object;
  object["file"] = path;
  const std::optional<Kept> kept = read(path);
  if (!config.flag(Setting::kTune)) {
    object["source"] = "built in (TUNE is 0)";
    object["constants"] = to_json(MachineConstants{});
  } else if (kept.has_value()) {
    object["source"] = "file";
    object["constants"] = to_json(between_ranks(kept->constants));
    object[kMeasurements] = kept->measurements;
  } else if (measure) {
    object["source"] = "measured now";
    object["constants"] = to_json(machine_constants(config));
  } else {
    object["source"] = "built in (not measured yet)";
    object["constants"] = to_json(MachineConstants{});
  }
  object["gpus"] = tuning_within(path, machine_name());
  return object.dump();
}

}  // namespace ropewalk::tune
