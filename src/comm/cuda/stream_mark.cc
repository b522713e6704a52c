// StreamMark by a CUDA event.
#include "comm/stream_mark.h"

#include "executor/cuda/cuda_error.h"

namespace ropewalk::comm {
namespace {

class EventMark final : public StreamMark {
 public:
  EventMark(int device, cudaStream_t stream) : device_(device) {
    const executor::CurrentDevice current(device_);
    executor::check_cuda(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming),
                         "cudaEventCreateWithFlags");
    if (const cudaError_t result = cudaEventRecord(event_, stream); result != cudaSuccess) {
      cudaEventDestroy(event_);
      executor::check_cuda(result, "cudaEventRecord");
    }
  }
  ~EventMark() override { cudaEventDestroy(event_); }
  EventMark(const EventMark&) = delete;
  EventMark& operator=(const EventMark&) = delete;

  bool passed() override {
    const executor::CurrentDevice current(device_);
    const cudaError_t result = cudaEventQuery(event_);
    if (result == cudaErrorNotReady) {
      cudaGetLastError();
      return false;
    }
    executor::check_cuda(result, "cudaEventQuery");
    return true;
  }

 private:
  int device_;
  cudaEvent_t event_ = nullptr;
};

}  // namespace

std::unique_ptr<StreamMark> mark_stream(int device, DeviceStream stream) {
  if (const std::string reason = why_no_device(); !reason.empty()) {
    throw Error(Errc::kInvalidUsage, reason);
  }
  const auto on = static_cast<cudaStream_t>(stream);
  const executor::CurrentDevice current(device);
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  executor::check_cuda(cudaStreamIsCapturing(on, &capturing), "cudaStreamIsCapturing");
  if (capturing != cudaStreamCaptureStatusNone) {
    throw Error(Errc::kInvalidUsage, "the stream is being captured: wait for the graph's launch");
  }
  return std::make_unique<EventMark>(device, on);
}

}  // namespace ropewalk::comm
