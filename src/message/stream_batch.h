// What a prepared batch is for its launches on streams outside of graphs (puts_and_signals.h).
// Apart from it, since nvcc does not compile what operations bring with them.
#pragma once

#include <cstdint>
#include <vector>

#include "message/device_kernels.h"
#include "message/operation.h"

namespace ropewalk::message {

/// Made once, and launched any number of times.
struct StreamBatch {
  std::vector<Window*> windows;        ///< that it uses
  std::vector<DeviceCopy> copies;      ///< which do not overlap
  std::uint64_t bytes = 0;             ///< of all copies
  std::uint32_t lanes = 1;             ///< PutsAndSignals::lanes
  std::vector<OperationSpec> signals;  ///< one for each counter
  std::vector<OperationSpec> waits;    ///< likewise; after all others
  bool driver_waits = false;           ///< and not the kernel
};

}  // namespace ropewalk::message
