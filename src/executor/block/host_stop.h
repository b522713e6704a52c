// How a thread of the host makes a rank stop, as kernels do for themselves: whoever is first writes
// down why.
#pragma once

#include <atomic>
#include <cstdint>

#include "executor/block/launch.h"

namespace ropewalk::executor {

/// Does nothing where a kernel or another thread was first. What waits ends soon. Threads: any.
inline void stop_once(Control& control, const StopRecord& record) noexcept {
  StopRecord& place = control.stop;
  std::uint32_t none = 0;
  if (!std::atomic_ref(place.reason)
           .compare_exchange_strong(none, static_cast<std::uint32_t>(StopReason::kAborted))) {
    return;
  }
  place.peer = record.peer;
  place.own = record.own;
  place.theirs = record.theirs;
  place.got = record.got;
  place.expected = record.expected;
  std::atomic_ref(place.reason).store(record.reason);
  std::atomic_ref(control.abort).store(1);
}

}  // namespace ropewalk::executor
