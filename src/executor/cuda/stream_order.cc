#include "executor/cuda/stream_order.h"

#include "executor/cuda/cuda_error.h"

namespace ropewalk::executor {

Capture capture_on(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  Capture capture;
#if CUDART_VERSION >= 13000
  const cudaError_t asked =
      cudaStreamGetCaptureInfo(stream, &status, &capture.number, &capture.graph);
#else
  const cudaError_t asked =
      cudaStreamGetCaptureInfo_v2(stream, &status, &capture.number, &capture.graph);
#endif
  check_cuda(asked, "cudaStreamGetCaptureInfo");
  if (status == cudaStreamCaptureStatusNone) return {};
  // Of a capture that an error invalidated, CUDA says only that it is still open.
  if (status == cudaStreamCaptureStatusInvalidated) return {~0ULL, nullptr};
  return capture;
}

Capture StreamOrder::follow(cudaStream_t stream) {
  const Capture capture = capture_on(stream);
  if (capture.number != 0) {
    captured_ = true;
    return capture;
  }
  // The last stream may have been destroyed, and another one may have its address.
  unsigned long long id = 0;
  check_cuda(cudaStreamGetId(stream, &id), "cudaStreamGetId");
  if (marked_ && id != last_stream_) {
    check_cuda(cudaStreamWaitEvent(stream, last_.get(), 0), "cudaStreamWaitEvent");
  }
  last_stream_ = id;
  return {};
}

void StreamOrder::mark(cudaStream_t stream) {
  check_cuda(cudaEventRecord(last_.get(), stream), "cudaEventRecord");
  marked_ = true;
}

bool StreamOrder::has_run() const {
  if (!marked_) return true;
  const cudaError_t ended = cudaEventQuery(last_.get());
  if (ended != cudaSuccess) cudaGetLastError();
  return ended == cudaSuccess;
}

void StreamOrder::wait_until_idle() const {
  if (marked_)
    check_cuda(cudaEventSynchronize(last_.get()), "cudaEventSynchronize (the last operation)");
  if (captured_) check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize (graphs)");
}

}  // namespace ropewalk::executor
