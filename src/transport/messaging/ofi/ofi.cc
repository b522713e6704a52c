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

struct Parts {
  Endpoints& endpoints;
  tcp::Linger& linger;
  Verify verify;
};

class OfiListener final : public Listener {
 public:
  explicit OfiListener(const Parts& parts)
      : parts_(parts),
        acceptor_(parts.endpoints.device().meeting),
        handle_(tcp::encode(acceptor_.target(), kMark)) {}
  [[nodiscard]] const Handle& handle() const override { return handle_; }
  std::unique_ptr<ReceiveConnection> accept() override {
    parts_.linger.poll();
    std::optional<tcp::Acceptor::Accepted> accepted = acceptor_.accept();
    if (!accepted) return nullptr;
    if (accepted->sockets.size() != 1) {
      log::warn("ofi: {} connected with {} sockets; dropped", accepted->peer,
                accepted->sockets.size());
      return nullptr;
    }
    return std::make_unique<Receiver>(
        parts_.endpoints.take(),
        SideChannel::accepting(std::move(accepted->sockets.front()), acceptor_.target().reply),
        std::move(accepted->peer), parts_.verify, parts_.linger);
  }

 private:
  Parts parts_;
  tcp::Acceptor acceptor_;
  Handle handle_;
};

class OfiConnector final : public Connector {
 public:
  OfiConnector(const Parts& parts, const tcp::Target& target)
      : parts_(parts), dialer_(parts.endpoints.device().meeting, target, 1) {}
  std::unique_ptr<SendConnection> poll() override {
    parts_.linger.poll();
    std::optional<std::vector<FileDescriptor>> sockets = dialer_.poll();
    if (!sockets) return nullptr;
    const tcp::Target& target = dialer_.target();
    return std::make_unique<Sender>(
        parts_.endpoints.take(),
        SideChannel::connecting(std::move(sockets->front()), target.proof, target.reply),
        target.address.text(), parts_.verify, parts_.linger);
  }

 private:
  Parts parts_;
  tcp::Dialer dialer_;
};

Verify verify_of(const std::string& setting) {
  if (setting == "off") return Verify::kOff;
  return setting == "all" ? Verify::kAll : Verify::kConnect;
}

class Ofi final : public Transport {
 public:
  explicit Ofi(const Config& config) : verify_(verify_of(config.text(Setting::kVerify))) {
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
    return std::make_unique<OfiListener>(parts(device));
  }

  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    const Parts own = parts(device);
    const std::optional<tcp::Target> target = tcp::decode_handle(handle, kMark);
    if (!target) throw Error(Errc::kInvalidArgument, "ofi: this is no handle of an ofi listener");
    return std::make_unique<OfiConnector>(own, *target);
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
  Parts parts(int device) {
    linger_.poll();
    return {endpoints(device), linger_, verify_};
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
