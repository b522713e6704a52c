// Work of a stream that is noted once, and started any number of times.
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

  /// What is enqueued on the stream from now on is noted and does not run. Forgets what was
  /// captured before.
  void begin() {
    forget();
    // Relaxed: what a call sets up when it is made for the first time is made at once.
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed),
               "starting to capture");
    capturing_ = true;
  }
  void end() {
    capturing_ = false;
    check_cuda(cudaStreamEndCapture(stream_, &graph_), "ending to capture");
  }
  /// Makes it ready to be launched.
  void load() {
    check_cuda(cudaGraphInstantiate(&launched_, graph_, 0), "making a graph");
    cudaGraphDestroy(std::exchange(graph_, nullptr));
    check_cuda(cudaGraphUpload(launched_, stream_), "loading a graph");
    check_cuda(cudaStreamSynchronize(stream_), "loading a graph");
  }
  /// Enqueues all of it.
  void launch() { check_cuda(cudaGraphLaunch(launched_, stream_), "starting a graph"); }

  /// Ends an open capture, and drops what was captured. What was launched goes on.
  void forget() noexcept {
    // A capture that an error has ended all the same says so again.
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
