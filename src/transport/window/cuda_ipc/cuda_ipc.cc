#include "transport/window/cuda_ipc/cuda_ipc.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "transport/window/cuda_ipc/device_side.h"
#include "transport/window/engine.h"
#include "transport/window/shm/rendezvous.h"
#include "transport/window/shm/shm.h"

namespace ropewalk::transport::window {
namespace {

// What NVLink of a recent GPU gives, and a copy engine's start; they only order devices.
constexpr double kSpeedMbps = 2'400'000;
constexpr double kLatencyUs = 5;

// A handle is one of shared memory under another name, so that neither is taken for the other. It
// replaces the mark of shared memory.
constexpr std::array<char, kMarkBytes> kHandleMagic = {'R', 'W', 'c', '2'};

class CudaIpcPath final : public Path {
 public:
  CudaIpcPath(std::unique_ptr<Path> host, CudaShared* shared, WindowSizes sizes)
      : host_(std::move(host)) {
    if (shared != nullptr) device_.emplace(*shared, dynamic_cast<HostPath&>(*host_), sizes);
  }
  bool ready() override { return host_->ready(); }
  [[nodiscard]] const Capabilities& capabilities() const override { return host_->capabilities(); }
  [[nodiscard]] std::byte* window() const override { return host_->window(); }
  void put(std::size_t offset, const void* data, std::size_t bytes) override {
    host_->put(offset, data, bytes);
  }
  void put_word(std::size_t offset, std::uint64_t value) override {
    host_->put_word(offset, value);
  }
  [[nodiscard]] std::uint64_t read_word(std::size_t offset) const override {
    return host_->read_word(offset);
  }
  void order_puts_before_reads() override { host_->order_puts_before_reads(); }
  [[nodiscard]] std::uint64_t address_of(const void* data,
                                         Registration* registration) const override {
    return host_->address_of(data, registration);
  }
  void start_write(int queue, std::size_t offset, const void* source, std::size_t bytes) override {
    host_->start_write(queue, offset, source, bytes);
  }
  void start_pull(int queue, void* destination, std::uint64_t source, std::size_t bytes) override {
    host_->start_pull(queue, destination, source, bytes);
  }
  bool copy_done(int queue) override { return host_->copy_done(queue); }
  DeviceCopies* device_copies() override { return device_ ? &*device_ : nullptr; }
  std::optional<std::string> peer_lost() override {
    std::optional<std::string> lost = host_->peer_lost();
    if (device_ && !lost) device_->close_withdrawn();
    return lost;
  }
  void disconnect() noexcept override { host_->disconnect(); }

 private:
  std::unique_ptr<Path> host_;
  std::optional<DeviceSide> device_;
};

class CudaIpcAcceptor final : public Acceptor {
 public:
  CudaIpcAcceptor(std::unique_ptr<Acceptor> host, CudaShared* shared, WindowSizes sizes)
      : host_(std::move(host)), shared_(shared), sizes_(sizes), handle_(host_->handle()) {
    std::memcpy(handle_.data(), kHandleMagic.data(), kHandleMagic.size());
  }
  [[nodiscard]] const Handle& handle() const override { return handle_; }
  std::unique_ptr<Path> accept() override {
    std::unique_ptr<Path> path = host_->accept();
    if (!path) return nullptr;
    return std::make_unique<CudaIpcPath>(std::move(path), shared_, sizes_);
  }

 private:
  std::unique_ptr<Acceptor> host_;
  CudaShared* shared_;
  const WindowSizes sizes_;
  Handle handle_;
};

class CudaIpcDriver final : public Driver {
 public:
  explicit CudaIpcDriver(const Config& config) : host_(make_shm_driver(config)) {
    try {
      shared_ = std::make_unique<CudaShared>(config.text(Setting::kCudaLibrary),
                                             config.duration(Setting::kTimeout));
    } catch (const Error& error) {
      shared_.reset();
      why_no_cuda_ = error.what();
      log::info(log::kNet, "cuda_ipc: host memory only: {}", why_no_cuda_);
      return;
    }
    // A GPU that loads a kernel starts no copy until all kernels before it have ended, and NCCL's
    // wait for the copies.
    if (shared_->cuda.loads_lazily()) {
      shared_.reset();
      why_no_cuda_ = kWhyNotLazily;
      log::warn("cuda_ipc: host memory only: {}", why_no_cuda_);
    }
  }
  [[nodiscard]] std::string name() const override { return "cuda_ipc"; }
  // One for each GPU, so that callers that divide work among devices use all; any serves any GPU.
  [[nodiscard]] int num_devices() const override {
    return shared_ ? std::max(1, shared_->gpus.count()) : 1;
  }
  [[nodiscard]] DeviceProperties properties(int device) const override {
    DeviceProperties properties = host_->properties(0);
    properties.name = fmt::format("cuda_ipc{}", device);
    if (!shared_) return properties;
    const CuUuid& uuid = shared_->gpus.uuid(device);
    std::memcpy(&properties.guid, uuid.bytes.data(), sizeof properties.guid);
    properties.speed_mbps = kSpeedMbps;
    properties.latency_us = kLatencyUs;
    properties.memory_kinds |= static_cast<unsigned>(MemoryKind::kCuda);
    properties.gpu_memory_by_cuda = true;
    properties.gpu_memory_mapped_later = true;
    return properties;
  }
  std::unique_ptr<Registration> register_memory(int /*device*/, void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    if (kind != MemoryKind::kCuda) return host_->register_memory(0, data, bytes, kind);
    if (!shared_) throw Error(Errc::kInvalidArgument, "cuda_ipc: {}", why_no_cuda_);
    return std::make_unique<DeviceRegistration>(shared_->registrations, shared_->gpus, data, bytes);
  }
  std::unique_ptr<Acceptor> open_acceptor(int /*device*/, WindowSizes sizes) override {
    return std::make_unique<CudaIpcAcceptor>(host_->open_acceptor(0, sizes), shared_.get(), sizes);
  }
  std::unique_ptr<Path> connect(int /*device*/, const Handle& handle, WindowSizes sizes) override {
    if (std::memcmp(handle.data(), kHandleMagic.data(), kHandleMagic.size()) != 0) {
      throw Error(Errc::kInvalidArgument, "{}", "cuda_ipc: not a handle of a cuda_ipc listener");
    }
    Handle host = encode({});
    std::memcpy(host.data() + kHandleMagic.size(), handle.data() + kHandleMagic.size(),
                handle.size() - kHandleMagic.size());
    return std::make_unique<CudaIpcPath>(host_->connect(0, host, sizes), shared_.get(), sizes);
  }

 private:
  std::unique_ptr<Driver> host_;
  std::unique_ptr<CudaShared> shared_;  // null without CUDA
  std::string why_no_cuda_;
};

}  // namespace

std::unique_ptr<Driver> make_cuda_ipc_driver(const Config& config) {
  return std::make_unique<CudaIpcDriver>(config);
}

std::unique_ptr<Transport> make_cuda_ipc_transport(const Config& config) {
  return make_transport(make_cuda_ipc_driver(config), config);
}

}  // namespace ropewalk::transport::window
