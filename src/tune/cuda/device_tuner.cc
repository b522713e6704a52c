#include "tune/cuda/device_tuner.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "core/error.h"
#include "executor/cuda/kernel_table.h"
#include "plan/chunk_model.h"
#include "schedule/compile.h"
#include "tune/forced_algorithms.h"

namespace ropewalk::tune {
namespace {

using executor::Protocol;

// A block of its own pays from this much data on: less is there sooner than a second block helps.
constexpr std::size_t kBlockBytes[executor::kNumProtocols] = {
    std::size_t{32} << 10, 2048, std::size_t{64} * 8 * executor::kLineWords};
constexpr int kWarp = 32;
// Chunks per slot-sized share: a few on their way hide the latency of a hop.
constexpr std::size_t kLeastChunk = std::size_t{128} << 10;

std::size_t index(Protocol protocol) { return static_cast<std::size_t>(protocol); }

}  // namespace

DeviceTuner::DeviceTuner(const Config& config, int num_ranks, const Limits& limits,
                         const DeviceConstants& constants, schedule::CheckedSchedules& schedules)
    : num_ranks_(num_ranks),
      limits_(limits),
      constants_(constants),
      schedules_(schedules),
      forced_(forced_algorithms(config.text(Setting::kAlgorithm))),
      forced_channels_(static_cast<int>(config.integer(Setting::kChannels))),
      forced_threads_(static_cast<int>(config.integer(Setting::kDeviceThreads))) {
  const std::string& forced = config.text(Setting::kProtocol);
  for (const Protocol protocol : {Protocol::kLl, Protocol::kLl128, Protocol::kSimple}) {
    if (protocol == Protocol::kLl128 && !limits.whole_lines) continue;
    if (forced == "auto" || forced == executor::name(protocol)) protocols_.push_back(protocol);
  }
  if (protocols_.empty()) {
    throw Error(Errc::kInvalidUsage,
                "setting ROPEWALK_PROTOCOL: {} needs GPUs that are joined by NVLink", forced);
  }
}

const DeviceTuner::Load& DeviceTuner::load_of(const std::string& algorithm, Collective collective,
                                              int root) {
  const auto key = std::make_tuple(algorithm, collective, root);
  if (const auto known = loads_.find(key); known != loads_.end()) return known->second;
  return loads_[key] = load_of(*schedules_.get(algorithm, {collective, num_ranks_, root, 1}));
}

DeviceTuner::Load DeviceTuner::load_of(const schedule::Checked& checked) const {
  Load load;
  load.hops = checked.report().longest_path;
  load.parts = checked.schedule().parts;
  std::vector<double> out(static_cast<std::size_t>(num_ranks_));
  std::vector<double> in(out.size());
  for (const schedule::LinkLoad& link : checked.report().links) {
    load.chunks = std::max(load.chunks, link.messages);
    out[static_cast<std::size_t>(link.source)] += link.units;
    in[static_cast<std::size_t>(link.destination)] += link.units;
  }
  for (std::size_t r = 0; r < out.size(); ++r) {
    load.units = std::max({load.units, out[r], in[r]});
    double work = 0;
    for (const schedule::StepList& steps : checked.schedule().programs[r]) {
      for (const schedule::Step& step : steps) {
        work += static_cast<double>(step.operands.size() + step.send.size()) +
                (step.write_output ? 1 : 0);
      }
    }
    load.work = std::max(load.work, work / (load.parts * checked.schedule().num_channels()));
  }
  return load;
}

DeviceChoice DeviceTuner::shape(const std::string& algorithm, const Load& load, Protocol protocol,
                                std::size_t unit_bytes, Channels channels) const {
  const std::size_t p = index(protocol);
  DeviceChoice choice;
  choice.algorithm = algorithm;
  choice.protocol = protocol;
  const double moved = std::max(load.units, 1.0) * static_cast<double>(unit_bytes);
  choice.channels = std::clamp(
      static_cast<int>(std::ceil(moved / static_cast<double>(kBlockBytes[p]))), 1, channels.most);
  if (forced_channels_ > 0) choice.channels = std::min(forced_channels_, channels.most);
  choice.channels = std::min((choice.channels + channels.multiple - 1) / channels.multiple,
                             std::max(1, channels.most / channels.multiple)) *
                    channels.multiple;
  // What a channel moves of each part.
  const std::size_t part =
      std::max<std::size_t>(1, unit_bytes / static_cast<std::size_t>(load.parts * choice.channels));
  if (protocol == Protocol::kSimple) {
    choice.threads = static_cast<int>(executor::kMaxThreads);
    choice.chunk_bytes =
        std::clamp(part / 4, std::min(kLeastChunk, limits_.slot_bytes[p]), limits_.slot_bytes[p]);
  } else {
    // A thread for each word, or each two of ll128.
    const std::size_t per_thread = protocol == Protocol::kLl ? 8 : 15;
    const std::size_t threads = (part + per_thread - 1) / per_thread;
    choice.threads = std::clamp(static_cast<int>((threads + kWarp - 1) / kWarp) * kWarp, 2 * kWarp,
                                static_cast<int>(executor::kMaxThreads));
    // A slot takes all that a round sends over a link.
    const std::size_t whole = protocol == Protocol::kLl ? 8 : 8 * executor::kLineWords;
    choice.chunk_bytes =
        limits_.slot_bytes[p] / static_cast<std::size_t>(load.chunks) / whole * whole;
  }
  if (forced_threads_ > 0) choice.threads = std::max(kWarp, forced_threads_ / kWarp * kWarp);
  const double flags[executor::kNumProtocols] = {1, 2, 16.0 / 15};
  const double wire = moved * flags[p];
  const double moving =
      std::max(wire / constants_.link_rate, load.work * static_cast<double>(unit_bytes) /
                                                (choice.channels * constants_.block_rate[p]));
  if (choice.chunk_bytes == 0) return choice;
  const double chunks =
      std::ceil(static_cast<double>(part) / static_cast<double>(choice.chunk_bytes));
  const double period = moving / chunks;
  const double filled = chunks > 1 ? 1 + constants_.fill * std::max(0, load.hops - 1) : 1;
  choice.predicted_seconds = constants_.launch[p] + load.hops * constants_.hop[p] +
                             std::max(0.0, load.units - 1) * constants_.fan[p] +
                             plan::pipelined_seconds(filled * period, chunks, period);
  return choice;
}

DeviceChoice DeviceTuner::choose(Collective collective, int root, std::size_t unit_bytes) {
  std::vector<std::string> candidates;
  if (const auto forced = forced_.find(collective); forced != forced_.end()) {
    candidates.push_back(forced->second);
  } else {
    for (const schedule::Algorithm& row : schedule::algorithms()) {
      if (row.supports({collective, num_ranks_, root, 1})) candidates.emplace_back(row.name);
    }
  }
  DeviceChoice best;
  best.predicted_seconds = std::numeric_limits<double>::infinity();
  for (const std::string& algorithm : candidates) {
    DeviceChoice choice = best_protocol(algorithm, load_of(algorithm, collective, root), unit_bytes,
                                        {limits_.channels, 1});
    if (choice.predicted_seconds < best.predicted_seconds) best = std::move(choice);
  }
  return best;
}

DeviceChoice DeviceTuner::best_protocol(const std::string& algorithm, const Load& load,
                                        std::size_t unit_bytes, Channels channels) const {
  DeviceChoice best;
  best.predicted_seconds = std::numeric_limits<double>::infinity();
  for (const Protocol protocol : protocols_) {
    DeviceChoice choice = shape(algorithm, load, protocol, unit_bytes, channels);
    if (choice.chunk_bytes == 0) continue;
    if (choice.predicted_seconds < best.predicted_seconds) best = std::move(choice);
  }
  return best;
}

DeviceChoice DeviceTuner::choose_given(const schedule::Checked& given,
                                       std::size_t unit_bytes) const {
  return best_protocol(kGivenSchedule, load_of(given), unit_bytes,
                       {limits_.channels, given.schedule().num_channels()});
}

DeviceChoice DeviceTuner::choose_message(std::size_t bytes) const {
  return best_protocol("message", {1, 1, 1, 1, 2}, bytes, {limits_.message_channels, 1});
}

}  // namespace ropewalk::tune
