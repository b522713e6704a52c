// MeasureSite on the memory of a GPU.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "comm/cuda/cuda_error.h"
#include "comm/cuda/device_window.h"
#include "comm/measure_site.h"
#include "core/log.h"

namespace ropewalk::comm {
namespace {

class DeviceSite final : public MeasureSite {
 public:
  DeviceSite(Communicator& comm, int device) : comm_(comm), current_(device) {
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "making a stream");
  }
  ~DeviceSite() override {
    forget_graph();
    // What still runs uses the buffers that are freed next.
    cudaStreamSynchronize(stream_);
    for (const std::uint64_t number : registered_) {
      try {
        comm_.deregister_buffer(number);
      } catch (const Error& error) {
        log::warn("deregistering a measured buffer: {}", error.what());
      }
    }
    cudaStreamDestroy(stream_);
  }
  DeviceSite(const DeviceSite&) = delete;
  DeviceSite& operator=(const DeviceSite&) = delete;

  std::byte* take(std::size_t bytes, std::size_t offset) override {
    buffers_.emplace_back(std::max<std::size_t>(offset + bytes, 1));
    check_cuda(cudaMemset(buffers_.back().data(), 0x5a, offset + bytes), "clearing device memory");
    check_cuda(cudaDeviceSynchronize(), "clearing device memory");
    return buffers_.back().data() + offset;
  }
  void register_buffers() override {
    for (const DeviceMemory& buffer : buffers_) {
      registered_.push_back(comm_.register_buffer(buffer.data(), buffer.bytes()));
    }
  }
  void write(std::byte* to, std::span<const std::byte> from) override {
    copy(to, from.data(), from.size());
  }
  void read(std::span<std::byte> to, const std::byte* from) override {
    copy(to.data(), from, to.size());
  }
  void run(const CollectiveCall& call) override { comm_.enqueue(call, stream_); }

  void finish() override {
    // A kernel whose peer is lost is ended by the communicator's abort flag; then this returns.
    check_cuda(cudaStreamSynchronize(stream_), "waiting for a stream");
    comm_.look_at_device();
    comm_.fate().check();
  }

  void capture(const std::function<void()>& enqueue) override {
    forget_graph();
    check_cuda(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal),
               "starting to capture");
    cudaGraph_t graph = nullptr;
    try {
      enqueue();
    } catch (...) {
      cudaStreamEndCapture(stream_, &graph);
      if (graph != nullptr) cudaGraphDestroy(graph);
      cudaGetLastError();
      throw;
    }
    check_cuda(cudaStreamEndCapture(stream_, &graph), "ending to capture");
    const cudaError_t made = cudaGraphInstantiate(&graph_, graph, 0);
    cudaGraphDestroy(graph);
    check_cuda(made, "making a graph");
    check_cuda(cudaGraphUpload(graph_, stream_), "loading a graph");
    check_cuda(cudaStreamSynchronize(stream_), "loading a graph");
  }
  void replay() override { check_cuda(cudaGraphLaunch(graph_, stream_), "starting a graph"); }

  std::string algorithm_of(const CollectiveCall& call) override {
    return comm_.device()->describe_way(call);
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_), "copying");
    check_cuda(cudaStreamSynchronize(stream_), "copying");
  }
  void forget_graph() noexcept {
    if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
    graph_ = nullptr;
  }

  Communicator& comm_;
  CurrentDevice current_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  std::vector<DeviceMemory> buffers_;
  std::vector<std::uint64_t> registered_;
};

}  // namespace

std::unique_ptr<MeasureSite> device_site(Communicator& comm) {
  if (comm.device() == nullptr) {
    throw Error(Errc::kInvalidUsage, "rank {} has no GPU: attach one first", comm.rank());
  }
  return std::make_unique<DeviceSite>(comm, comm.device()->device());
}

}  // namespace ropewalk::comm
