#include "transport/window/sisci/sisci.h"

#include <string>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "transport/window/device/driver_cuda.h"
#include "transport/window/engine.h"
#include "transport/window/sisci/acceptor.h"
#include "transport/window/sisci/adapter.h"
#include "transport/window/sisci/path.h"

namespace ropewalk::transport::window {
namespace {

using namespace sisci;  // NOLINT(google-build-using-namespace): the driver's own parts

// A bridge's store and a load through it; it only orders devices.
constexpr double kAdapterLatencyUs = 1.0;

class SisciDriver final : public Driver {
 public:
  explicit SisciDriver(const Config& config) {
    context_.loss_time = config.duration(Setting::kPeerLossTime);
    Library::Found found = Library::open(config.text(Setting::kSisciLibrary));
    if (!found.library) {
      why_no_devices_ = found.why_not;
      log::info(log::kNet, "sisci: no devices: {}", why_no_devices_);
      return;
    }
    context_.library = std::move(found.library);
    std::vector<Adapter> adapters = find_adapters(*context_.library);
    if (adapters.empty()) {
      why_no_devices_ = "the library reports no adapter";
      log::info(log::kNet, "sisci: no devices: {}", why_no_devices_);
    } else {
      why_no_devices_ = "no adapter has a link";
    }
    std::erase_if(adapters, [](const Adapter& adapter) {
      if (adapter.link) return false;
      log::warn("sisci: adapter {} (node {}) has no link: it is not used", adapter.number,
                adapter.node);
      return true;
    });
    if (adapters.empty()) return;
    why_no_devices_.clear();
    open_cuda(config);
    for (Adapter& adapter : adapters) {
      devices_.push_back(
          std::make_unique<Device>(context_, std::move(adapter), cuda_.get(), config));
    }
  }

  [[nodiscard]] std::string name() const override { return "sisci"; }
  [[nodiscard]] int num_devices() const override { return static_cast<int>(devices_.size()); }
  [[nodiscard]] std::string why_no_devices() const override { return why_no_devices_; }

  [[nodiscard]] DeviceProperties properties(int device) const override {
    const Adapter& adapter = at(device).adapter;
    DeviceProperties properties;
    properties.name = fmt::format("sisci{}", adapter.number);
    properties.pci_path = adapter.pci_path;
    properties.guid = std::uint64_t{adapter.serial} << 32 | adapter.node;
    properties.speed_mbps = adapter.speed_mbps;
    properties.latency_us = kAdapterLatencyUs;
    if (cuda_) properties.memory_kinds |= static_cast<unsigned>(MemoryKind::kCuda);
    properties.gpu_memory_by_cuda = cuda_ != nullptr;  // where it is staged
    return properties;
  }

  std::unique_ptr<Registration> register_memory(int device, void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    if (kind == MemoryKind::kCuda && !cuda_) {
      throw Error(Errc::kInvalidArgument, "sisci: {}", why_no_cuda_);
    }
    return at(device).memory.regions.add(data, bytes, kind);
  }

  std::unique_ptr<Acceptor> open_acceptor(int device, WindowSizes sizes) override {
    context_.clean_up.sweep();
    return std::make_unique<SisciAcceptor>(context_, at(device).memory, at(device).options, sizes);
  }

  std::unique_ptr<Path> connect(int device, const Handle& handle, WindowSizes sizes) override {
    const std::optional<sisci::ListenerAddress> address = sisci::decode_listener_address(handle);
    if (!address) throw Error(Errc::kInvalidArgument, "sisci: not a handle of a sisci listener");
    context_.clean_up.sweep();
    return std::make_unique<SisciPath>(context_, at(device).memory, at(device).options, *address,
                                       sizes);
  }

  void settle() override { context_.clean_up.settle(); }

 private:
  struct Device {
    Device(Context& context, Adapter found, DriverCuda* cuda, const Config& config)
        : adapter(std::move(found)), memory(context, adapter.number, cuda) {
      options.adapter = adapter.number;
      options.node = adapter.node;
      options.queues = static_cast<std::size_t>(config.integer(Setting::kSisciQueues));
      options.pio_bytes = config.bytes(Setting::kSisciPioBytes);
      options.alignment = context.library->dma_alignment(adapter.number);
      options.verify = config.text(Setting::kVerify) != "off";
    }
    Adapter adapter;
    Memory memory;
    PathOptions options;
  };
  // What messages from and to GPU memory need in any case: any of them may have to be staged, which
  // is known of each connection when it is there, and NCCL asks before. So GPU memory is taken
  // where staging may be, though DMA would do without: a GPU that loads a kernel starts no copy
  // until all kernels before it have ended, and NCCL's wait for the copies.
  void open_cuda(const Config& config) {
    try {
      cuda_ = std::make_unique<DriverCuda>(config.text(Setting::kCudaLibrary),
                                           config.duration(Setting::kTimeout));
      if (!cuda_->cuda.loads_lazily()) return;
      cuda_.reset();
      why_no_cuda_ = kWhyNotLazily;
    } catch (const Error& error) {
      why_no_cuda_ = error.what();
    }
    log::info(log::kNet, "sisci: host memory only: {}", why_no_cuda_);
  }
  [[nodiscard]] Device& at(int device) const {
    return *devices_.at(static_cast<std::size_t>(device));
  }

  Context context_;
  std::unique_ptr<DriverCuda> cuda_;  // null where GPU memory is not taken
  std::string why_no_cuda_;
  std::string why_no_devices_;
  std::vector<std::unique_ptr<Device>> devices_;
};

}  // namespace

std::unique_ptr<Driver> make_sisci_driver(const Config& config) {
  return std::make_unique<SisciDriver>(config);
}

std::unique_ptr<Transport> make_sisci_transport(const Config& config) {
  return make_transport(make_sisci_driver(config), config);
}

}  // namespace ropewalk::transport::window
