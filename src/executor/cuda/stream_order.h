// Keeps a communicator's operations in the order of their calls across streams.
#pragma once

#include <cuda_runtime_api.h>

#include "executor/cuda/owned.h"

namespace ropewalk::executor {

/// An open capture on a stream.
struct Capture {
  unsigned long long number = 0;  ///< 0: none is open; unique in the process
  cudaGraph_t graph = nullptr;
};
Capture capture_on(cudaStream_t stream);

/// Threads: one at a time. Its device is current in every call, and when it is made.
class StreamOrder {
 public:
  /// Makes the next work on `stream` run after all marked operations, unless `stream` captures: a
  /// graph has its own order, and captured operations must not be marked.
  Capture follow(cudaStream_t stream);
  /// Marks the work just enqueued on `stream` as the last operation.
  void mark(cudaStream_t stream);
  /// Whether all marked operations have run, graphs excepted.
  [[nodiscard]] bool has_run() const;
  /// Whether all operations have run. False if graphs have any, since their state is unknown.
  [[nodiscard]] bool idle() const { return !captured_ && has_run(); }
  void wait_until_idle() const;
  /// Declares all operations so far, captured ones too, as finished.
  void forget() noexcept { captured_ = marked_ = false; }

 private:
  Event last_{cudaEventDisableTiming};
  unsigned long long last_stream_ = 0;  // CUDA's stream id, since its handle may be reused
  bool marked_ = false;
  bool captured_ = false;  // some operations were captured
};

}  // namespace ropewalk::executor
