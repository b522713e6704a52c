// Times operations over both classes of links between GPUs (tune/hybrid_links.h), one at a time, by
// what the blocks of their launches note.
#pragma once

#include <functional>
#include <optional>
#include <utility>

#include "comm/device_times.h"
#include "tune/hybrid_controller.h"

namespace ropewalk::comm {

/// Threads: one at a time.
class HybridTimer {
 public:
  using Timed = std::function<void(const tune::HybridTimes&)>;

  /// @param times outlives it
  HybridTimer(DeviceTimes& times, Timed timed) : times_(times), timed_(std::move(timed)) {}

  /// Tells of the operation that was followed, once it has ended, and forgets it.
  /// @return whether none is followed now
  bool poll();
  /// Follows the operation that `range` is of, whose last `host_blocks` blocks are the channels
  /// through the host's memory. @param known all of it but the time @pre poll() returned true
  void follow(const StampRange& range, std::uint32_t host_blocks, const tune::HybridTimes& known);

 private:
  struct Followed {
    StampRange range;
    std::uint32_t host_blocks = 0;
    tune::HybridTimes known;
  };
  DeviceTimes& times_;
  Timed timed_;
  std::optional<Followed> followed_;
};

}  // namespace ropewalk::comm
