#include "comm/agreed_chunks.h"

#include <algorithm>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::comm {
namespace {

// Of a rank's larger buffer: shorter calls do not last long enough for chunks to matter.
constexpr std::size_t kLongCall = std::size_t{1} << 20U;
// Chunks that are staged: shorter ones cost more than they spare, whatever the links.
constexpr std::size_t kLeastStaged = std::size_t{4} << 10U;
constexpr std::size_t kLeastByAddress = std::size_t{64} << 10U;
constexpr std::size_t kMostByAddress = std::size_t{16} << 20U;
constexpr int kMostRootedRanks = 256;  // decider_of()'s

}  // namespace

std::size_t chosen_chunk(const tune::Choice& choice, bool by_address) noexcept {
  return by_address ? std::max(choice.chunk_bytes, choice.address_chunk_bytes) : choice.chunk_bytes;
}

std::optional<ChunkRange> chunk_range(const CollectiveCall& call, const Extent& extent,
                                      const tune::Choice& choice, bool by_address,
                                      std::size_t slot_bytes) {
  const schedule::Schedule& schedule = choice.schedule->schedule();
  const std::size_t unit_bytes = call.count * extent.element_bytes;
  const std::size_t bytes = largest_bytes(call, extent, schedule.num_ranks);
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
  const std::optional<int> decider = decider_of(call, choice, extent, kMostRootedRanks);
  if (!decider.has_value()) return std::nullopt;
  range.decider = *decider;
  if (has_root(call.collective)) range.period_calls = tune::PeriodMeter::calls_of(bytes);
  return range;
}

ChunkShape::ChunkShape(const tune::Choice& choice, const ChunkRange& range, bool decides)
    : algorithm_(choice.algorithm), range_(range), now_(range.start) {
  if (!decides) return;
  controller_.emplace(range.start, range.least, range.most);
  if (range.period_calls > 0) periods_.emplace(range.period_calls);
}

void ChunkShape::begins(double seconds, int rank) {
  if (!periods_.has_value()) return;
  const std::optional<double> took = periods_->begins(now_, seconds);
  if (took.has_value()) measured(*took, rank);
}

void ChunkShape::measured(double seconds, int rank) {
  const bool settled = controller_->settled();
  controller_->measured(now_, seconds);
  if (!controller_->settled() || settled) return;
  log::info(log::kTuning, "rank {}: {} in chunks of {} bytes, {} at first: {:.3g} times as fast",
            rank, algorithm_, bytes_of(controller_->wanted()), range_.start_bytes,
            controller_->gain());
}

void ChunkShape::completed(std::uint8_t note, double seconds, int rank) {
  if (note == tune::kNoChunk) {
    throw Error(Errc::kInternal, "rank {} was not told the chunk size of the next call", rank);
  }
  if (controller_.has_value() && !periods_.has_value()) measured(seconds, rank);
  now_ = note;
}

ChunkReport ChunkShape::report() const noexcept {
  ChunkReport report{chunk_bytes(), range_.start_bytes, true, controller_.has_value()};
  if (controller_.has_value()) {
    report.settled = controller_->settled();
    report.gain = controller_->gain();
  }
  return report;
}

}  // namespace ropewalk::comm
