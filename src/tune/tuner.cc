#include "tune/tuner.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <string_view>

#include "core/error.h"
#include "core/log.h"
#include "tune/forced_algorithms.h"

namespace ropewalk::tune {
namespace {

// Beyond this many ranks the schedules with a link between every two ranks are not considered where
// another one exists: their number of links, and the time to check them, grow with the square.
constexpr int kAllPairsRanks = 32;
// Smaller chunks must promise a tenth: the model knows only the latency of a call, and of calls
// back to back fewer chunks are better.
constexpr double kWorthCutting = 0.9;
// Nor do smaller ones pay. Over one hop, halves of 4 KiB and less took 1.2 to 1.4 times as long as
// the whole, back to back, and gained little one at a time.
constexpr std::size_t kLeastChunk = 2048;
constexpr std::size_t kLeastChunkOverOneHop = 8192;
constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();

bool all_pairs(std::string_view algorithm) {
  return algorithm == "one_shot" || algorithm == "two_shot" || algorithm == "direct";
}

}  // namespace

Tuner::Tuner(const Config& config, const GroupFacts& facts, const MachineConstants& constants,
             schedule::CheckedSchedules& schedules)
    : facts_(facts),
      schedules_(schedules),
      forced_(forced_algorithms(config.text(Setting::kAlgorithm))) {
  context_.machine = constants;
  context_.ranks_per_core = std::max(1.0, facts.ranks_per_processor);
  context_.network = facts.num_hosts > 1;
  channels_ = std::max(1, static_cast<int>(config.integer(Setting::kChannels)));
  const std::size_t given = config.bytes(Setting::kSingleCopyBytes);
  if (given != 0) {
    address_bytes_ = given;
  } else if (facts.same_process) {
    // No system call: it pays as soon as it saves a copy of some lines.
    address_bytes_ = 1024;
  } else {
    // One copy instead of two pays when the saved one costs more than the system call.
    address_bytes_ = static_cast<std::size_t>(constants.address_cost * constants.copy_rate);
  }
  point_to_point_.algorithm = "direct";
  set_chunks(point_to_point_);
}

void Tuner::set_chunks(Choice& choice) const {
  choice.chunk_bytes = facts_.slot_bytes;
  choice.address_bytes = address_bytes_;
  choice.address_chunk_bytes = facts_.all_by_address ? std::size_t{1} << 20U : 0;
  // Where ranks outnumber cores, a rank that helps takes the core from another one that copies:
  // shorter scatters then took 1.4 times as long.
  choice.share_bytes = context_.ranks_per_core > 1 ? std::size_t{1} << 20U : std::size_t{64} << 10U;
}

const Choice& Tuner::choose(Collective collective, int root, std::size_t unit_bytes) {
  const auto bucket = static_cast<std::size_t>(std::bit_width(unit_bytes));
  std::unique_ptr<Choice>& entry =
      has_root(collective) && root != 0
          ? rooted_[{collective, root}][bucket % kBuckets]
          : rootless_[static_cast<std::size_t>(collective)][bucket % kBuckets];
  if (entry == nullptr) {
    // All sizes of a bucket share the choice that is best for its middle.
    const std::size_t middle = bucket < 2 ? unit_bytes : std::size_t{3} << (bucket - 2);
    entry = std::make_unique<Choice>(priced(collective, root, middle).front());
    entry->index = next_index_++;
    const std::size_t last = (std::size_t{1} << std::min<std::size_t>(bucket, 63U)) - 1;
    log::info(log::kTuning, "{} of {} to {} bytes in a unit, {} ranks: {}, {:.4g} us predicted",
              name(collective), bucket == 0 ? 0 : (last >> 1U) + 1, last, facts_.num_ranks,
              entry->algorithm, entry->predicted_seconds * 1e6);
  }
  return *entry;
}

schedule::Request Tuner::request_of(Collective collective, int root) const noexcept {
  return {collective, facts_.num_ranks, has_root(collective) ? root : 0, channels_};
}

bool Tuner::is_forced(Collective collective, int root) const {
  const auto forced = forced_.find(collective);
  if (forced == forced_.end()) return false;
  const schedule::Request request = request_of(collective, root);
  return std::ranges::any_of(schedule::algorithms(), [&](const schedule::Algorithm& row) {
    return row.name == forced->second && row.supports(request);
  });
}

std::vector<std::string> Tuner::candidates(Collective collective, int root) const {
  if (is_forced(collective, root)) return {forced_.at(collective)};
  const schedule::Request request = request_of(collective, root);
  std::vector<std::string> names;
  std::vector<std::string> dense;
  for (const schedule::Algorithm& row : schedule::algorithms()) {
    if (!row.supports(request)) continue;
    (all_pairs(row.name) ? dense : names).emplace_back(row.name);
  }
  if (names.empty() || facts_.num_ranks <= kAllPairsRanks) {
    names.insert(names.end(), dense.begin(), dense.end());
  }
  return names;
}

Choice Tuner::priced(const std::string& algorithm, const ScheduleShape& shape,
                     std::size_t unit_bytes) const {
  Choice choice;
  choice.algorithm = algorithm;
  choice.channels = channels_;
  set_chunks(choice);
  // Staged: a chunk fits a slot; smaller ones fill a long chain sooner.
  double staged = std::numeric_limits<double>::infinity();
  const std::size_t least = shape.longest_path > 1 ? kLeastChunk : kLeastChunkOverOneHop;
  for (std::size_t chunk = facts_.slot_bytes; chunk >= least || chunk == facts_.slot_bytes;
       chunk /= 2) {
    const double seconds = predict(shape, context_, unit_bytes, chunk, false);
    if (seconds < staged * kWorthCutting) {
      staged = seconds;
      choice.chunk_bytes = chunk;
    }
  }
  choice.predicted_seconds = staged;
  if (!facts_.all_by_address || !shape.by_address) {
    choice.address_chunk_bytes = 0;
    return choice;
  }
  double by_address = std::numeric_limits<double>::infinity();
  for (std::size_t chunk = std::size_t{4} << 20U; chunk >= address_bytes_ && chunk >= 4096;
       chunk /= 2) {
    const double seconds = predict(shape, context_, unit_bytes, chunk, true);
    if (seconds < by_address * kWorthCutting) {
      by_address = seconds;
      choice.address_chunk_bytes = chunk;
    }
  }
  if (by_address < staged) {
    choice.predicted_seconds = by_address;
  } else {
    choice.address_bytes = kNever;
    choice.address_chunk_bytes = 0;
  }
  return choice;
}

std::vector<Choice> Tuner::priced(Collective collective, int root, std::size_t unit_bytes) {
  std::vector<Choice> all;
  for (const std::string& algorithm : candidates(collective, root)) {
    const std::shared_ptr<const schedule::Checked> checked =
        schedules_.get(algorithm, request_of(collective, root));
    all.push_back(priced(algorithm, ScheduleShape::of(*checked), unit_bytes));
  }
  if (all.empty()) {
    throw Error(Errc::kInvalidUsage, "no algorithm for {} over {} ranks", name(collective),
                facts_.num_ranks);
  }
  // Stable: of equals the first of the registry, on every rank.
  std::stable_sort(all.begin(), all.end(), [](const Choice& a, const Choice& b) {
    return a.predicted_seconds < b.predicted_seconds;
  });
  return all;
}

}  // namespace ropewalk::tune
