// Times operations over both classes of links between GPUs (tune/hybrid_links.h), some of those
// that are enqueued at once, by what the blocks of their launches note.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <utility>

#include "trace/device_times.h"
#include "tune/hybrid_controller.h"

namespace ropewalk::comm {

/// Threads: one at a time.
class HybridTimer {
 public:
  using Timed = std::function<void(const tune::HybridTimes&)>;

  /// @param times outlives it
  HybridTimer(trace::DeviceTimes& times, Timed timed) : times_(times), timed_(std::move(timed)) {}

  /// Tells of the operations that were followed and have ended, in their order, and forgets them.
  /// @return whether another one may be followed
  bool poll();
  /// Follows the operation that `range` is of, whose last `host_blocks` blocks are the channels
  /// through the host's memory. @param known all of it but the time @pre poll() returned true
  void follow(const trace::StampRange& range, std::uint32_t host_blocks,
              const tune::HybridTimes& known);

  /// At once. Their stamps must fit into half of the memory for them.
  static constexpr std::size_t kMostFollowed = 4;

 private:
  struct Followed {
    trace::StampRange range;
    std::uint32_t host_blocks = 0;
    tune::HybridTimes known;
  };
  trace::DeviceTimes& times_;
  Timed timed_;
  std::deque<Followed> followed_;  // the oldest first
};

}  // namespace ropewalk::comm
