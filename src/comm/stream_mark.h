// A point in a CUDA stream that the host can wait for.
#pragma once

#include <chrono>
#include <memory>

#include "comm/device_group.h"

namespace ropewalk::comm {

/// Threads: one at a time.
class StreamMark {
 public:
  virtual ~StreamMark() = default;
  /// Whether all that was enqueued before the mark has run.
  /// @throws Error kCuda
  [[nodiscard]] virtual bool passed() = 0;
};

/// Marks where `stream` of GPU `device` is now.
/// @throws Error kInvalidUsage while the stream is captured, and without GPUs; kCuda
std::unique_ptr<StreamMark> mark_stream(int device, DeviceStream stream);

/// @return false if `timeout` passed first; a negative timeout waits for ever.
/// @throws Error kCuda
bool wait(StreamMark& mark, std::chrono::microseconds timeout);

}  // namespace ropewalk::comm
