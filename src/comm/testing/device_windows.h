// Windows in the memory of the GPUs of software that stands in for CUDA's driver
// (tests/stand_ins/cuda.cc): its streams are threads that do everything late and in order.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/testing/networks.h"
#include "comm/testing/ranks.h"
#include "comm/testing/windows.h"
#include "message/messenger.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::comm::testing {

/// What is between the ranks.
struct DeviceKind {
  std::string name;
  bool registers = false;
  bool one_gpu = false;
  std::string net = {};  ///< of networks(); "": peer access
  bool kernels = false;
  bool in_host = false;  ///< the windows are in the host's memory, pinned by who registers it
};

inline void PrintTo(const DeviceKind& kind, std::ostream* out) { *out << kind.name; }

inline std::vector<DeviceKind> device_kinds() {
  std::vector<DeviceKind> all = {{"allocated"},
                                 {"registered", true},
                                 {"on_one_gpu", false, true},
                                 {"by_kernels", false, false, "", true}};
  for (const Network& network : networks()) {
    const std::string name(network.name);
    all.push_back({"over_" + name, false, false, name});
    if (name == "shm") all.push_back({"registered_over_shm", true, false, name});
  }
  all.push_back({"in_the_host", false, false, "", false, true});
  all.push_back({"registered_in_the_host", true, false, "", false, true});
  for (const char* network : {"shm", "tcp"}) {
    all.push_back({std::string("in_the_host_over_") + network, false, false, network, false, true});
  }
  return all;
}

/// The settings of a test's ranks.
inline void use(Runtime& runtime, const DeviceKind& kind, const char* cuda_library) {
  quiet(runtime);
  runtime.set("CUDA_LIBRARY", cuda_library, "test");
  if (kind.kernels) runtime.set("STREAM_KERNELS", "1", "test");
  if (!kind.net.empty()) use_network(runtime, kind.net);
}

/// A stream of the stand-in.
class TestStream {
 public:
  explicit TestStream(transport::window::Gpu& gpu) : gpu_(gpu) {
    const transport::window::CurrentContext current(gpu.cuda(), gpu.context());
    gpu.cuda().check(gpu.cuda().stream_create(&stream_, transport::window::kCuStreamNonBlocking, 0),
                     "cuStreamCreate");
  }
  ~TestStream() { gpu_.cuda().warn(gpu_.cuda().stream_destroy(stream_), "cuStreamDestroy"); }
  TestStream(const TestStream&) = delete;
  TestStream& operator=(const TestStream&) = delete;
  [[nodiscard]] transport::window::CuStream get() const noexcept { return stream_; }
  [[nodiscard]] bool idle() const {
    return gpu_.cuda().stream_query(stream_) == transport::window::kCuSuccess;
  }
  // @return whether it was idle in time
  bool wait(std::chrono::milliseconds limit = std::chrono::seconds(60)) const {
    const auto end = std::chrono::steady_clock::now() + limit;
    while (!idle()) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return true;
  }

 private:
  transport::window::Gpu& gpu_;
  transport::window::CuStream stream_ = nullptr;
};

/// One rank's end of a window on a GPU.
class DeviceEnd {
 public:
  DeviceEnd(Communicator& comm, const DeviceKind& kind, std::size_t bytes, int slots = 1)
      : comm_(comm),
        gpu_(comm.runtime().gpus().at(kind.one_gpu ? 0 : comm.rank() % 2)),
        in_host_(kind.in_host),
        stream_(gpu_) {
    message::WindowSpec spec;
    spec.registers = kind.registers;
    spec.bytes = bytes;
    spec.slots = slots;
    if (kind.registers && kind.in_host) {
      pinned_ =
          std::make_unique<transport::window::PinnedBuffer>(gpu_, std::max<std::size_t>(bytes, 1));
      std::fill_n(pinned_->data(), bytes, std::byte{0});
      spec.memory = pinned_->data();
    } else if (kind.registers) {
      memory_ = std::make_unique<transport::window::DeviceBuffer>(
          gpu_, std::max<std::size_t>(bytes, 1), transport::window::DeviceBuffer::From::kAllocator);
      spec.memory = memory_->pointer();
    }
    const bool of_gpu = !kind.registers && !kind.in_host;
    window_ = &comm.create_window(spec, of_gpu ? gpu_.ordinal() : Communicator::kHostMemory);
    // From the first use by a stream on, the host's calls take memory of the GPU, too.
    if (!in_host_) return;
    enqueue(flush(comm.rank()));
    EXPECT_TRUE(stream_.wait());  // or the window could not be freed
  }

  [[nodiscard]] message::OperationSpec put(int peer, std::size_t offset, const void* source,
                                           std::size_t bytes) const {
    message::OperationSpec spec = of(message::OperationKind::kPut, peer);
    spec.offset = offset;
    spec.bytes = bytes;
    spec.source = static_cast<const std::byte*>(source);
    return spec;
  }
  [[nodiscard]] message::OperationSpec get(int peer, std::size_t offset, void* to,
                                           std::size_t bytes) const {
    message::OperationSpec spec = of(message::OperationKind::kGet, peer);
    spec.offset = offset;
    spec.bytes = bytes;
    spec.destination = static_cast<std::byte*>(to);
    return spec;
  }
  [[nodiscard]] message::OperationSpec signal(int peer, int slot = 0,
                                              std::uint64_t count = 1) const {
    message::OperationSpec spec = of(message::OperationKind::kSignal, peer);
    spec.slot = slot;
    spec.count = count;
    return spec;
  }
  [[nodiscard]] message::OperationSpec wait(int peer, int slot = 0, std::uint64_t count = 1) const {
    message::OperationSpec spec = signal(peer, slot, count);
    spec.kind = message::OperationKind::kWaitSignal;
    return spec;
  }
  [[nodiscard]] message::OperationSpec flush(int peer) const {
    return of(message::OperationKind::kFlush, peer);
  }

  void run(const message::OperationSpec& spec) { comm_.run(spec); }
  void enqueue(const message::OperationSpec& spec) { comm_.enqueue({&spec, 1}, stream_.get()); }
  void enqueue(message::Batch& batch) { comm_.enqueue(batch, stream_.get()); }

  // What lies in this rank's part.
  [[nodiscard]] std::vector<std::byte> read(std::size_t offset, std::size_t bytes) const {
    std::vector<std::byte> out(bytes);
    if (in_host_) {
      std::copy_n(window_->own().data + offset, bytes, out.data());
      return out;
    }
    gpu_.fetch(out.data(),
               reinterpret_cast<transport::window::CuPointer>(window_->own().data) + offset, bytes);
    return out;
  }
  void fill(const std::vector<std::byte>& with) const {
    if (in_host_) {
      std::copy(with.begin(), with.end(), window_->own().data);
      return;
    }
    gpu_.fill(reinterpret_cast<transport::window::CuPointer>(window_->own().data), with.data(),
              with.size());
  }
  [[nodiscard]] transport::window::Gpu& gpu() const noexcept { return gpu_; }
  [[nodiscard]] const TestStream& stream() const noexcept { return stream_; }
  [[nodiscard]] message::Window& window() const { return *window_; }
  void free() { comm_.free_window(*window_); }

 private:
  [[nodiscard]] message::OperationSpec of(message::OperationKind kind, int peer) const {
    message::OperationSpec spec;
    spec.kind = kind;
    spec.window = window_;
    spec.peer = peer;
    return spec;
  }

  Communicator& comm_;
  transport::window::Gpu& gpu_;
  const bool in_host_;
  std::unique_ptr<transport::window::DeviceBuffer> memory_;
  std::unique_ptr<transport::window::PinnedBuffer> pinned_;
  TestStream stream_;
  message::Window* window_;
};

/// GPU memory of a test, with its contents.
class Buffer {
 public:
  Buffer(transport::window::Gpu& gpu, const std::vector<std::byte>& bytes)
      : gpu_(gpu),
        size_(bytes.size()),
        memory_(gpu, std::max<std::size_t>(1, size_),
                transport::window::DeviceBuffer::From::kAllocator) {
    gpu.fill(memory_.data(), bytes.data(), size_);
  }
  [[nodiscard]] void* data() const { return memory_.pointer(); }
  [[nodiscard]] std::vector<std::byte> read() const {
    std::vector<std::byte> out(size_);
    gpu_.fetch(out.data(), memory_.data(), size_);
    return out;
  }

 private:
  transport::window::Gpu& gpu_;
  std::size_t size_;
  transport::window::DeviceBuffer memory_;
};

}  // namespace ropewalk::comm::testing
