#include "transport/messaging/ofi/ofi.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <mutex>
#include <system_error>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "transport/messaging/gpus.h"
#include "transport/messaging/meeting.h"
#include "transport/messaging/ofi/abi.h"
#include "transport/messaging/ofi/receiver.h"
#include "transport/messaging/ofi/sender.h"
#include "transport/messaging/tcp/handshake.h"

namespace ropewalk::transport::ofi {
namespace {

// libfabric's tcp polls before it receives, and signals each completion to itself by a pipe.
// (Of 1, 2, 4 and 8 times the cost of a message over TCP the last one gave the longest chunks, with
// which broadcasts and all-reduces of 64 KiB to 1 MiB took 0.5 to 0.9 of the time.)
constexpr double kSocketsMessageWeight = 8;
constexpr tcp::HandleMark kMark = {'R', 'W', 'o', '1'};

// libfabric 2.5's shm ends a process in which two of its endpoints send to each other, by a
// segmentation fault inside fi_cq_read.
bool needs_one_endpoint(const Library& library, const Device& device) {
  return device.provider == "shm" && FI_VERSION_GE(library.version(), FI_VERSION(2, 0));
}

// The endpoints of one device.
class Endpoints {
 public:
  /// @param gpus without CUDA where none of their memory is taken
  Endpoints(std::shared_ptr<const Library> library, Device device, bool shared, Endpoint::Gpus gpus,
            std::shared_ptr<Endpoint> first)
      : library_(std::move(library)),
        device_(std::move(device)),
        shared_(shared),
        one_in_process_(needs_one_endpoint(*library_, device_)),
        gpus_(std::move(gpus)),
        current_(std::move(first)) {}
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  [[nodiscard]] bool takes_gpu_memory() const noexcept { return gpus_.cuda != nullptr; }
  /// For one connection.
  std::shared_ptr<Endpoint> take() {
    if (one_in_process_) return Endpoint::of_whole_process(library_, device_);
    if (!shared_) return Endpoint::make(library_, device_, gpus_);
    const std::lock_guard lock(mutex_);
    if (current_ != nullptr) {
      const Lock state(current_->mutex);
      if (!current_->retired()) return current_;
    }
    // Those who use a closed one keep it.
    current_ = Endpoint::make(library_, device_, gpus_);
    return current_;
  }

 private:
  std::shared_ptr<const Library> library_;
  const Device device_;
  const bool shared_;
  const bool one_in_process_;
  const Endpoint::Gpus gpus_;
  std::mutex mutex_;
  std::shared_ptr<Endpoint> current_;
};

class Ofi final : public Transport {
 public:
  explicit Ofi(const Config& config)
      : verify_(messaging::verify_of(config.text(Setting::kVerify))) {
    const Library::Found found = Library::open(config.text(Setting::kOfiLibrary));
    if (!found.library) {
      summary_.why_none = found.why_not;
    } else {
      const Selection selection = {config.text(Setting::kOfiProvider),
                                   config.text(Setting::kSocketIfname),
                                   config.text(Setting::kOfiLarge)};
      Listing listing = find_devices(*found.library, selection);
      summary_.why_none = std::move(listing.why_none);
      summary_.library = "libfabric " + found.library->version_text();
      Listing gpu_listing;
      if (!listing.devices.empty()) {
        gpu_listing = gpu_devices(config, *found.library, selection, listing.devices);
      }
      const bool shared = config.text(Setting::kOfiEndpoints) == "shared";
      for (Device& device : listing.devices) {
        log::info(log::kInit, "ofi: {} on {} ({}){}", device.provider, device.name,
                  summary_.library,
                  needs_one_endpoint(*found.library, device) ? ", one endpoint in a process" : "");
        summary_.provider = device.provider;
        summary_.large = ofi::name(device.large);
        summary_.rdma = device.rdma;
        add(found.library, std::move(device), gpu_listing, shared);
      }
    }
    if (devices_.empty()) log::info(log::kInit, "ofi: no device: {}", summary_.why_none);
  }

  [[nodiscard]] std::string name() const override { return "ofi"; }
  [[nodiscard]] int num_devices() const override { return static_cast<int>(devices_.size()); }
  [[nodiscard]] std::string why_no_devices() const override { return summary_.why_none; }

  [[nodiscard]] DeviceProperties properties(int device) const override {
    const Device& chosen = endpoints(device).device();
    DeviceProperties properties;
    properties.name = chosen.name;
    properties.pci_path = chosen.pci_path;
    properties.guid = chosen.guid;
    properties.fabric = chosen.fabric;
    properties.speed_mbps = chosen.speed_mbps;
    properties.latency_us = chosen.latency_us;
    if (chosen.sockets) properties.message_weight = kSocketsMessageWeight;
    properties.joined_bytes = kJoinedBytes;
    properties.max_message_bytes = kMaxMessageBytes;
    properties.max_requests = static_cast<int>(kMaxRequests);
    properties.max_grouped_receives = static_cast<int>(kMaxGroup);
    properties.registration_is_global = false;
    if (endpoints(device).takes_gpu_memory()) {
      properties.memory_kinds |= static_cast<unsigned>(MemoryKind::kCuda);
      if (dma_buf_) properties.memory_kinds |= static_cast<unsigned>(MemoryKind::kDmaBuf);
    }
    return properties;
  }

  std::unique_ptr<Listener> listen(int device) override {
    Endpoints& own = endpoints(device);
    linger_.poll();
    return std::make_unique<messaging::MeetingListener>(
        "ofi", own.device().meeting, kMark, linger_,
        [this, &own](SideChannel side, std::string peer) {
          return std::make_unique<Receiver>(own.take(), std::move(side), std::move(peer), verify_,
                                            linger_);
        });
  }

  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    Endpoints& own = endpoints(device);
    linger_.poll();
    const std::optional<tcp::Target> target = tcp::decode_handle(handle, kMark);
    if (!target) throw Error(Errc::kInvalidArgument, "ofi: not a handle of an ofi listener");
    return std::make_unique<messaging::MeetingConnector>(
        own.device().meeting, *target, linger_, [this, &own](SideChannel side, std::string peer) {
          return std::make_unique<Sender>(own.take(), std::move(side), std::move(peer), verify_,
                                          linger_);
        });
  }

  void settle() override { linger_.settle(); }

  [[nodiscard]] messaging::GpuTrials try_gpu_memory(int device) {
    Endpoints& own = endpoints(device);
    if (!own.takes_gpu_memory()) return {false, true, own.device().why_no_gpu_memory};
    const std::shared_ptr<Endpoint> endpoint = own.take();
    return messaging::try_each_gpu(*cuda_, [&](window::Gpu& gpu) {
      const Lock lock(endpoint->mutex);
      endpoint->check_gpu(gpu);
      const std::optional<Means> means = endpoint->means_of(gpu);
      return std::string(means ? ofi::name(*means) : "not tried");
    });
  }

  [[nodiscard]] const Summary& summary() const noexcept { return summary_; }

 private:
  [[nodiscard]] Endpoints& endpoints(int device) const {
    if (device < 0 || device >= num_devices()) {
      if (devices_.empty()) throw Error(Errc::kSystem, "ofi: no device: {}", summary_.why_none);
      throw Error(Errc::kInvalidArgument, "ofi: device {} of {}", device, num_devices());
    }
    return *devices_[static_cast<std::size_t>(device)];
  }

  // The devices that offer GPU memory, or why there are none.
  Listing gpu_devices(const Config& config, const Library& library, Selection selection,
                      const std::vector<Device>& host) {
    if (config.text(Setting::kOfiGpuMemory) == "off") return {{}, "OFI_GPU_MEMORY=off"};
    messaging::FoundCuda found = messaging::find_cuda(config);
    if (found.cuda == nullptr) return {{}, std::move(found.why_not)};
    cuda_ = std::move(found.cuda);
    dma_buf_ = FI_VERSION_GE(library.api(), kDmaBufSince);
    selection.provider = host.front().provider;
    return find_gpu_devices(library, selection);
  }

  // The device, with GPU memory if it proves it.
  void add(const std::shared_ptr<const Library>& library, Device device, const Listing& gpu_listing,
           bool shared) {
    device.why_no_gpu_memory = gpu_listing.why_none;
    const auto offered = std::find_if(gpu_listing.devices.begin(), gpu_listing.devices.end(),
                                      [&](const Device& each) { return each.name == device.name; });
    std::shared_ptr<Endpoint> first;
    if (offered != gpu_listing.devices.end()) {
      try {
        const Endpoint::Gpus gpus{cuda_, verify_ != Verify::kOff};
        first = Endpoint::make(library, *offered, gpus);
        for (const int ordinal : cuda_->gpus.in_use()) {
          window::Gpu& gpu = cuda_->gpus.at(ordinal);
          const Lock lock(first->mutex);
          first->check_gpu(gpu);
        }
        log::info(log::kInit, "ofi: {} on {}: GPU memory is taken", device.provider, device.name);
        summary_.gpu_memory.emplace_back("taken");
        summary_.large = ofi::name(offered->large);
        if (!shared) first.reset();
        devices_.push_back(
            std::make_unique<Endpoints>(library, *offered, shared, gpus, std::move(first)));
        return;
      } catch (const Error& error) {
        device.why_no_gpu_memory = error.what();
      }
    } else if (device.why_no_gpu_memory.empty()) {
      device.why_no_gpu_memory = "it does not offer GPU memory (FI_HMEM) on this NIC";
    }
    // What has been offered and does not work is worth a warning.
    const std::string words = fmt::format("ofi: {} on {}: host memory only: {}", device.provider,
                                          device.name, device.why_no_gpu_memory);
    if (offered != gpu_listing.devices.end()) {
      log::warn("{}", words);
    } else {
      log::info(log::kInit, "{}", words);
    }
    summary_.gpu_memory.push_back(device.why_no_gpu_memory);
    devices_.push_back(
        std::make_unique<Endpoints>(library, std::move(device), shared, Endpoint::Gpus{}, nullptr));
  }

  const Verify verify_;
  Summary summary_;
  bool dma_buf_ = false;
  std::shared_ptr<window::DriverCuda> cuda_;  // null where no GPU memory was asked for
  std::vector<std::unique_ptr<Endpoints>> devices_;
  tcp::Linger linger_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(const Config& config) {
  return std::make_unique<Ofi>(config);
}

bool worth_a_look(const Config& config) {
  if (!config.text(Setting::kOfiProvider).empty()) return true;
  // InfiniBand, RoCE, EFA and Omni-Path; Slingshot.
  constexpr std::array kClasses = {"/sys/class/infiniband", "/sys/class/cxi"};
  return std::any_of(kClasses.begin(), kClasses.end(), [](const char* folder) {
    std::error_code none;
    const std::filesystem::directory_iterator adapters(folder, none);
    return !none && adapters != std::filesystem::directory_iterator();
  });
}

messaging::GpuTrials try_gpu_memory(Transport& ofi, int device) {
  return dynamic_cast<Ofi&>(ofi).try_gpu_memory(device);
}

const Summary& summary(const Transport& ofi) { return dynamic_cast<const Ofi&>(ofi).summary(); }

bool better_than_tcp(const Transport& ofi, const Config& config) {
  return summary(ofi).rdma || !config.text(Setting::kOfiProvider).empty();
}

}  // namespace ropewalk::transport::ofi
