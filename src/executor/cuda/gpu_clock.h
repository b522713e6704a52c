// Reads a GPU's clock (%globaltimer) and the host's at the same moment.
#pragma once

#include <cstdint>
#include <optional>

#include "executor/cuda/owned.h"

namespace ropewalk::executor {

/// Threads: one at a time. Belongs to the device that is current when it is made, and in every
/// call.
class GpuClock {
 public:
  GpuClock();

  struct Reading {
    std::uint64_t device_ns = 0;
    std::uint64_t ticks = 0;  ///< of core/ticks.h, accurate to some microseconds
  };
  /// Uses a kernel of one thread on a stream of its own. Allocates nothing, and does not wait for
  /// other kernels.
  /// @return nothing if the kernel did not answer within 100 ms
  /// @throws Error kCuda
  std::optional<Reading> read();

 private:
  PinnedBuffer memory_;
  Stream stream_;
};

}  // namespace ropewalk::executor
