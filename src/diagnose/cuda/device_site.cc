// MeasureSite on the memory of a GPU.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "core/log.h"
#include "diagnose/measure_site.h"
#include "executor/cuda/captured_graph.h"
#include "executor/cuda/cuda_error.h"
#include "executor/cuda/owned.h"
#include "link/cuda/device_window.h"

namespace ropewalk::diagnose {
namespace {

class DeviceSite final : public MeasureSite {
 public:
  DeviceSite(comm::Communicator& comm, int device)
      : comm_(comm), device_(device), current_(device) {}
  ~DeviceSite() override {
    graph_.forget();  // while it captures, a stream cannot be waited for
    // What still runs uses the buffers that are freed next.
    cudaStreamSynchronize(stream_.get());
    for (const std::uint64_t number : registered_) {
      try {
        comm_.deregister_buffer(number);
      } catch (const Error& error) {
        log::warn("deregistering a measured buffer: {}", error.what());
      }
    }
  }
  DeviceSite(const DeviceSite&) = delete;
  DeviceSite& operator=(const DeviceSite&) = delete;

  std::byte* take(std::size_t bytes, std::size_t offset) override {
    const executor::CurrentDevice current(device_);
    buffers_.emplace_back(std::max<std::size_t>(offset + bytes, 1));
    executor::check_cuda(cudaMemset(buffers_.back().data(), 0x5a, offset + bytes), "cudaMemset");
    executor::check_cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    return buffers_.back().data() + offset;
  }
  std::byte* take_repeated(std::size_t /*bytes*/, std::size_t /*period*/) override {
    throw Error(Errc::kInvalidUsage, "period: memory of a GPU is not repeated");
  }
  void register_buffers() override {
    for (const link::DeviceMemory& buffer : buffers_) {
      // All ranks move through their buffers alike.
      registered_.push_back(comm_.register_buffer(buffer.data(), buffer.bytes(), {}, true));
    }
  }
  void write(std::byte* to, std::span<const std::byte> from) override {
    copy(to, from.data(), from.size());
  }
  void read(std::span<std::byte> to, const std::byte* from) override {
    copy(to.data(), from, to.size());
  }
  void repeat(std::byte* begin, std::size_t period, std::size_t bytes) override {
    for (std::size_t done = period; done > 0 && done < bytes; done *= 2) {
      copy(begin + done, begin, std::min(done, bytes - done));
    }
  }
  void run(const comm::CollectiveCall& call) override { comm_.enqueue(call, stream_.get()); }
  void add(const comm::CollectiveCall& call, comm::Group& group) override {
    group.add_on_stream(comm_, call, stream_.get());
  }

  bool finished() override {
    const cudaError_t state = cudaStreamQuery(stream_.get());
    if (state == cudaErrorNotReady) {
      cudaGetLastError();  // which holds this, too, though it is not an error
      return false;
    }
    executor::check_cuda(state, "cudaStreamQuery");
    look();
    return true;
  }
  void finish() override {
    // A kernel whose peer is lost is ended by the communicator's abort flag; then this returns.
    executor::check_cuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
    look();
  }

  void begin_capture() override {
    const executor::CurrentDevice current(device_);
    graph_.begin();
  }
  void end_capture() override {
    const executor::CurrentDevice current(device_);
    graph_.end();
  }
  void load_captured() override {
    const executor::CurrentDevice current(device_);
    graph_.load();
  }
  void replay() override {
    const executor::CurrentDevice current(device_);
    graph_.launch();
  }

  std::string algorithm_of(const comm::CollectiveCall& call) override {
    if (call.count == 0) return "nothing";
    const tune::Choice choice = comm_.explain(call).choice;
    return fmt::format("{} {} {}x{} chunk {}", choice.algorithm, executor::name(choice.protocol),
                       choice.channels, choice.threads, choice.chunk_bytes);
  }

 private:
  void copy(void* to, const void* from, std::size_t bytes) {
    if (bytes == 0) return;
    const executor::CurrentDevice current(device_);
    executor::check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_.get()),
                         "cudaMemcpyAsync");
    executor::check_cuda(cudaStreamSynchronize(stream_.get()), "cudaStreamSynchronize");
  }

  void look() {
    comm_.look_at_device();
    comm_.failure().check();
  }

  comm::Communicator& comm_;
  int device_;
  // While this lives, so that the calls of a thread with one site need not change it. Where there
  // are several, it is that of the last made.
  executor::CurrentDevice current_;
  executor::Stream stream_;
  executor::CapturedGraph graph_{stream_.get()};
  std::vector<link::DeviceMemory> buffers_;
  std::vector<std::uint64_t> registered_;
};

}  // namespace

std::unique_ptr<MeasureSite> device_site(comm::Communicator& comm) {
  if (comm.device() == nullptr) {
    throw Error(Errc::kInvalidUsage, "rank {} has no GPU: attach one first", comm.rank());
  }
  return std::make_unique<DeviceSite>(comm, comm.device()->device());
}

}  // namespace ropewalk::diagnose
