#include "comm/agreed_chunks.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "comm/prepared.h"
#include "core/error.h"
#include "core/log.h"
#include "schedule/layout.h"
#include "schedule/reach.h"

namespace ropewalk::comm {
namespace {

// Of a rank's larger buffer: shorter calls do not last long enough for chunks to matter.
constexpr std::size_t kLongCall = std::size_t{1} << 20U;
// Chunks that are staged: shorter ones cost more than they spare, whatever the links.
constexpr std::size_t kLeastStaged = std::size_t{4} << 10U;
constexpr std::size_t kLeastByAddress = std::size_t{64} << 10U;
constexpr std::size_t kMostByAddress = std::size_t{16} << 20U;
// Of operations with a root: what finds the rank that decides takes time with the square of them.
constexpr int kMostRootedRanks = 256;

// The rank whose note all ranks have when a call is over.
std::optional<int> decider_of(const CollectiveCall& call, const schedule::Schedule& schedule,
                              const Extent& extent) {
  switch (call.collective) {
    case Collective::kAllReduce:
    case Collective::kAllGather:
    case Collective::kReduceScatter:
    case Collective::kAllToAll: return 0;
    case Collective::kBroadcast:
    case Collective::kScatter:
    case Collective::kReduce:
    case Collective::kGather: {
      if (schedule.num_ranks > kMostRootedRanks) return std::nullopt;
      const std::vector<int> heard =
          schedule::heard_by_all(schedule, call.count, granule_of(extent.element_bytes));
      if (heard.empty()) return std::nullopt;
      return std::ranges::find(heard, call.root) != heard.end() ? call.root : heard.front();
    }
    case Collective::kSendRecv: return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace

std::size_t chosen_chunk(const tune::Choice& choice, bool by_address) noexcept {
  return by_address ? std::max(choice.chunk_bytes, choice.address_chunk_bytes) : choice.chunk_bytes;
}

std::optional<ChunkRange> chunk_range(const CollectiveCall& call, const Extent& extent,
                                      const tune::Choice& choice, bool by_address,
                                      std::size_t slot_bytes) {
  const schedule::Schedule& schedule = choice.schedule->schedule();
  if (choice.algorithm == tune::kGivenSchedule || call.carried == CarriedType::kNothing ||
      schedule.num_ranks < 2) {
    return std::nullopt;
  }
  const std::size_t unit_bytes = call.count * extent.element_bytes;
  // Of a rank's larger buffer; the same on all ranks.
  const int units =
      std::min(schedule::num_units(call.collective, schedule.num_ranks), schedule.num_ranks);
  const std::size_t bytes = unit_bytes * static_cast<std::size_t>(units);
  if (bytes < kLongCall) return std::nullopt;
  const bool given = by_address && choice.address_chunk_bytes > choice.chunk_bytes;
  const std::size_t least =
      given ? std::max({kLeastByAddress, choice.address_bytes, 2 * choice.chunk_bytes})
            : kLeastStaged;
  // Larger chunks than a part are all the same.
  const std::size_t part = std::max(
      least, unit_bytes / static_cast<std::size_t>(schedule.parts * schedule.num_channels()));
  ChunkRange range;
  range.start_bytes = chosen_chunk(choice, by_address);
  range.start = tune::chunk_code(std::min(range.start_bytes, part));
  range.least = std::min(range.start, tune::chunk_code(least));
  range.most =
      std::max(range.start, tune::chunk_code(std::min(given ? kMostByAddress : slot_bytes, part)));
  // Sizes that are no codes are rounded down.
  if (tune::chunk_bytes(range.least) < least && range.least < range.start) ++range.least;
  if (range.least == range.most) return std::nullopt;
  const std::optional<int> decider = decider_of(call, schedule, extent);
  if (!decider.has_value()) return std::nullopt;
  range.decider = *decider;
  if (has_root(call.collective)) range.period_calls = tune::PeriodMeter::calls_of(bytes);
  return range;
}

AgreedChunks::Shape::Shape(std::string algorithm, const ChunkRange& range, bool decides)
    : algorithm_(std::move(algorithm)), range_(range), now_(range.start) {
  if (!decides) return;
  controller_.emplace(range.start, range.least, range.most);
  if (range.period_calls > 0) periods_.emplace(range.period_calls);
}

void AgreedChunks::Shape::begins(double seconds, int rank) {
  if (!periods_.has_value()) return;
  const std::optional<double> took = periods_->begins(now_, seconds);
  if (took.has_value()) measured(*took, rank);
}

void AgreedChunks::Shape::measured(double seconds, int rank) {
  const bool settled = controller_->settled();
  controller_->measured(now_, seconds);
  if (!controller_->settled() || settled) return;
  log::info(log::kTuning, "rank {}: {} in chunks of {} bytes, {} at first: {:.3g} times as fast",
            rank, algorithm_, bytes_of(controller_->wanted()), range_.start_bytes,
            controller_->gain());
}

void AgreedChunks::Shape::completed(std::uint8_t note, double seconds, int rank) {
  if (note == tune::kNoChunk) {
    throw Error(Errc::kInternal, "rank {} was not told the chunk size of the next call", rank);
  }
  if (controller_.has_value() && !periods_.has_value()) measured(seconds, rank);
  now_ = note;
}

ChunkReport AgreedChunks::Shape::report() const noexcept {
  ChunkReport report{chunk_bytes(), range_.start_bytes, true, controller_.has_value()};
  if (controller_.has_value()) {
    report.settled = controller_->settled();
    report.gain = controller_->gain();
  }
  return report;
}

AgreedChunks::Shape* AgreedChunks::of(const CollectiveCall& call, const Extent& extent,
                                      const tune::Choice& choice, const ChunkRange& range) {
  const Key key = key_of(call, extent);
  auto found = shapes_.find(key);
  if (found == shapes_.end() && shapes_.size() == kMostShapes) return nullptr;
  Shape fresh(choice.algorithm, range, rank_ == range.decider);
  if (found == shapes_.end()) {
    found = shapes_.emplace(key, std::move(fresh)).first;
  } else if (found->second.algorithm_ != choice.algorithm || found->second.range_ != range) {
    found->second = std::move(fresh);
  }
  return &found->second;
}

std::optional<ChunkReport> AgreedChunks::report(const CollectiveCall& call,
                                                const Extent& extent) const {
  const auto found = shapes_.find(key_of(call, extent));
  if (found == shapes_.end()) return std::nullopt;
  return found->second.report();
}

}  // namespace ropewalk::comm
