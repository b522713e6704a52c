// Operations of one communicator run in the order of their calls, on whatever streams.
#pragma once

#include <cuda_runtime_api.h>

#include "executor/cuda/owned.h"

namespace ropewalk::executor {

/// A capture that is open on a stream.
struct Capture {
  unsigned long long number = 0;  ///< 0: none is open; no two captures of a process have the same
  cudaGraph_t graph = nullptr;
};
Capture capture_on(cudaStream_t stream);

/// Threads: one at a time. Its device is current in every call, and when it is made.
class StreamOrder {
 public:
  /// Makes what is enqueued on `stream` next run after all that was marked, unless `stream`
  /// captures: a graph's own order holds within it, and what is captured is not to be marked.
  Capture follow(cudaStream_t stream);
  /// What was just enqueued on `stream` is the last operation.
  void mark(cudaStream_t stream);
  /// Everything that was enqueued has run, apart from graphs.
  [[nodiscard]] bool has_run() const;
  /// Everything has run. False when graphs have operations, of which nothing is known.
  [[nodiscard]] bool idle() const { return !captured_ && has_run(); }
  void wait_until_idle() const;
  /// What was captured and marked so far is over.
  void forget() noexcept { captured_ = marked_ = false; }

 private:
  Event last_{cudaEventDisableTiming};
  unsigned long long last_stream_ = 0;  // its number: streams may be gone when the next is used
  bool marked_ = false;
  bool captured_ = false;  // operations went into graphs
};

}  // namespace ropewalk::executor
