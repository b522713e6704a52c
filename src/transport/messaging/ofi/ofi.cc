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
#include "transport/messaging/meeting.h"
#include "transport/messaging/ofi/receiver.h"
#include "transport/messaging/ofi/sender.h"
#include "transport/messaging/tcp/handshake.h"

namespace ropewalk::transport::ofi {
namespace {

constexpr tcp::HandleMark kMark = {'R', 'W', 'o', '1'};

// The endpoints of one device.
class Endpoints {
 public:
  Endpoints(std::shared_ptr<const Library> library, Device device, bool shared)
      : library_(std::move(library)), device_(std::move(device)), shared_(shared) {}
  [[nodiscard]] const Device& device() const noexcept { return device_; }
  /// For one connection.
  std::shared_ptr<Endpoint> take() {
    if (!shared_) return Endpoint::make(library_, device_);
    const std::lock_guard lock(mutex_);
    if (current_ != nullptr) {
      const Lock state(current_->mutex);
      if (!current_->retired()) return current_;
    }
    // Those who use a closed one keep it.
    current_ = Endpoint::make(library_, device_);
    return current_;
  }

 private:
  std::shared_ptr<const Library> library_;
  const Device device_;
  const bool shared_;
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
      Listing listing = find_devices(
          *found.library, {config.text(Setting::kOfiProvider), config.text(Setting::kSocketIfname),
                           config.text(Setting::kOfiLarge)});
      summary_.why_none = std::move(listing.why_none);
      summary_.library = "libfabric " + found.library->version_text();
      const bool shared = config.text(Setting::kOfiEndpoints) == "shared";
      for (Device& device : listing.devices) {
        log::info(log::kInit, "ofi: {} on {} ({})", device.provider, device.name, summary_.library);
        summary_.provider = device.provider;
        summary_.large = ofi::name(device.large);
        summary_.rdma = device.rdma;
        devices_.push_back(std::make_unique<Endpoints>(found.library, std::move(device), shared));
      }
    }
    if (devices_.empty()) log::info(log::kInit, "ofi: no device: {}", summary_.why_none);
  }

  [[nodiscard]] std::string name() const override { return "ofi"; }
  [[nodiscard]] int num_devices() const override { return static_cast<int>(devices_.size()); }

  [[nodiscard]] DeviceProperties properties(int device) const override {
    const Device& chosen = endpoints(device).device();
    DeviceProperties properties;
    properties.name = chosen.name;
    properties.pci_path = chosen.pci_path;
    properties.guid = chosen.guid;
    properties.fabric = chosen.fabric;
    properties.speed_mbps = chosen.speed_mbps;
    properties.latency_us = chosen.latency_us;
    properties.max_message_bytes = kMaxMessageBytes;
    properties.max_requests = static_cast<int>(kMaxRequests);
    properties.max_grouped_receives = static_cast<int>(kMaxGroup);
    properties.registration_is_global = false;
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

  [[nodiscard]] const Summary& summary() const noexcept { return summary_; }

 private:
  [[nodiscard]] Endpoints& endpoints(int device) const {
    if (device < 0 || device >= num_devices()) {
      if (devices_.empty()) throw Error(Errc::kSystem, "ofi: no device: {}", summary_.why_none);
      throw Error(Errc::kInvalidArgument, "ofi: device {} of {}", device, num_devices());
    }
    return *devices_[static_cast<std::size_t>(device)];
  }

  const Verify verify_;
  Summary summary_;
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

const Summary& summary(const Transport& ofi) { return dynamic_cast<const Ofi&>(ofi).summary(); }

bool better_than_tcp(const Transport& ofi, const Config& config) {
  return summary(ofi).rdma || !config.text(Setting::kOfiProvider).empty();
}

}  // namespace ropewalk::transport::ofi
