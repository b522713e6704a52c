// Work of a stream that is captured once and launched any number of times.
#pragma once

#include <cuda_runtime_api.h>

#include <utility>

#include "executor/cuda/cuda_error.h"

namespace ropewalk::executor {

/// A CUDA graph of what was enqueued on one stream.
///
/// One thread may have captures of several streams open at once. They all end() before the first of
/// them is load()ed: CUDA instantiates no graph while the thread captures.
///
/// Threads: one at a time. Lifetime: within the stream's. The stream's device is current in every
/// call.
class CapturedGraph {
 public:
  explicit CapturedGraph(cudaStream_t stream) : stream_(stream) {}
  ~CapturedGraph() { forget(); }
  CapturedGraph(const CapturedGraph&) = delete;
  CapturedGraph& operator=(const CapturedGraph&) = delete;

  /// Captures what is enqueued on the stream from now on, instead of running it. Discards the
  /// earlier capture.
  void begin() {
    forget();
    // Relaxed: a call's first use may allocate, which other modes forbid during a capture.
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed),
               "cudaStreamBeginCapture");
    capturing_ = true;
  }
  void end() {
    capturing_ = false;
    check_cuda(cudaStreamEndCapture(stream_, &graph_), "cudaStreamEndCapture");
  }
  /// Instantiates the graph.
  void load() {
    check_cuda(cudaGraphInstantiate(&launched_, graph_, 0), "cudaGraphInstantiate");
    cudaGraphDestroy(std::exchange(graph_, nullptr));
    check_cuda(cudaGraphUpload(launched_, stream_), "cudaGraphUpload");
    check_cuda(cudaStreamSynchronize(stream_), "cudaStreamSynchronize (cudaGraphUpload)");
  }
  /// Launches the graph on the stream.
  void launch() { check_cuda(cudaGraphLaunch(launched_, stream_), "cudaGraphLaunch"); }

  /// Ends an open capture, and discards it. Launched work continues.
  void forget() noexcept {
    // A capture that an error ended returns that error here.
    if (std::exchange(capturing_, false) && cudaStreamEndCapture(stream_, &graph_) != cudaSuccess) {
      cudaGetLastError();
    }
    if (graph_ != nullptr) cudaGraphDestroy(std::exchange(graph_, nullptr));
    if (launched_ != nullptr) cudaGraphExecDestroy(std::exchange(launched_, nullptr));
  }

 private:
  cudaStream_t stream_;
  bool capturing_ = false;
  cudaGraph_t graph_ = nullptr;
  cudaGraphExec_t launched_ = nullptr;
};

}  // namespace ropewalk::executor
