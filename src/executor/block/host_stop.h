// How a thread of the host makes a rank stop, as kernels do for themselves: whoever is first writes
// down why.
#pragma once

#include <atomic>
#include <cstdint>

#include "executor/block/launch.h"

namespace ropewalk::executor {

/// Does nothing where a kernel or another thread was first. What waits ends soon. Threads: any.
inline void stop_once(Control& control, const StopRecord& record) noexcept {
  StopRecord& stop = control.stop;
  std::uint32_t none = 0;
  if (!std::atomic_ref(stop.reason)
           .compare_exchange_strong(none, static_cast<std::uint32_t>(StopReason::kAborted))) {
    return;
  }
  stop.peer = record.peer;
  stop.own = record.own;
  stop.theirs = record.theirs;
  stop.got = record.got;
  stop.expected = record.expected;
  std::atomic_ref(stop.reason).store(record.reason);
  std::atomic_ref(control.abort).store(1);
}

}  // namespace ropewalk::executor
