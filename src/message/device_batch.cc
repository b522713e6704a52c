#include "message/device_batch.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <functional>
#include <map>
#include <tuple>
#include <vector>

#include "message/window.h"

namespace ropewalk::message {
namespace {

// A thread moves so many bytes at once, and a block has so many threads.
constexpr std::uint64_t kPack = 16;
constexpr std::size_t kMostThreads = 512;
constexpr std::uint64_t kWarp = 32;

// Where a put writes: as this process addresses it, or in a part that a link reaches.
struct Range {
  const Window* window = nullptr;  // null: mapped
  int peer = 0;
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};

Range target_of(const OperationSpec& put) {
  const Part& part = put.window->part(put.peer);
  Range range;
  range.begin = put.offset;
  if (part.mapped) {
    range.begin += reinterpret_cast<std::uint64_t>(part.data);
  } else {
    range.window = put.window;
    range.peer = put.peer;
  }
  range.end = range.begin + put.bytes;
  return range;
}

bool before(const Range& a, const Range& b) {
  if (a.window != b.window) return std::less<>()(a.window, b.window);
  if (a.peer != b.peer) return a.peer < b.peer;
  return a.begin < b.begin;
}

bool overlap(const Range& a, const Range& b) {
  return a.window == b.window && a.peer == b.peer && a.begin < b.end && b.begin < a.end;
}

}  // namespace

std::optional<std::string> reason_against_kernels(std::span<const OperationSpec> specs) {
  bool waits = false;
  std::vector<Range> targets;
  std::map<std::tuple<OperationKind, const Window*, int, int>, std::uint64_t> counts;
  for (const OperationSpec& spec : specs) {
    if (spec.kind == OperationKind::kSignal || spec.kind == OperationKind::kWaitSignal) {
      std::uint64_t& sum = counts[{spec.kind, spec.window, spec.peer, spec.slot}];
      if (spec.count > Window::kMostSignals - sum) {
        return "has no counts whose sum no counter holds: " + describe(spec);
      }
      sum += spec.count;
    }
    switch (spec.kind) {
      case OperationKind::kGet:
      case OperationKind::kFlush: return "has puts, signals and waits alone: " + describe(spec);
      case OperationKind::kWaitSignal: waits = true; continue;
      case OperationKind::kPut:
        if (spec.bytes > 0) targets.push_back(target_of(spec));
        break;
      case OperationKind::kSignal: break;
    }
    if (waits) return "has its waits at the end: " + describe(spec);
  }
  std::ranges::sort(targets, before);
  for (std::size_t k = 1; k < targets.size(); ++k) {
    if (overlap(targets[k - 1], targets[k])) return "has no puts that overlap";
  }
  for (const OperationSpec& spec : specs) {
    if (spec.kind != OperationKind::kPut || spec.bytes == 0) continue;
    Range source;
    source.begin = reinterpret_cast<std::uint64_t>(spec.source);
    source.end = source.begin + spec.bytes;
    // Of those that begin before its end, which do not overlap, only the last can reach it.
    const auto after = std::ranges::partition_point(targets, [&](const Range& target) {
      return target.window == nullptr && target.begin < source.end;
    });
    if (after != targets.begin() && overlap(*(after - 1), source)) {
      return "has no put from where another one puts: " + describe(spec);
    }
  }
  return {};
}

std::uint32_t lanes_of(std::uint64_t most_bytes, std::size_t num_puts) noexcept {
  const std::uint64_t packs = std::max<std::uint64_t>((most_bytes + kPack - 1) / kPack, 1);
  const std::uint64_t share =
      std::bit_floor(kMostThreads / std::clamp<std::size_t>(num_puts, 1, kMostThreads));
  return static_cast<std::uint32_t>(std::min(
      std::bit_ceil(std::min<std::uint64_t>(packs, kMostThreads)), std::max(share, kWarp)));
}

}  // namespace ropewalk::message
