#include "transport/messaging/psm2/psm2.h"

#include <fmt/format.h>

#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "transport/messaging/gpus.h"
#include "transport/messaging/meeting.h"
#include "transport/messaging/psm2/gpus.h"
#include "transport/messaging/psm2/receiver.h"
#include "transport/messaging/psm2/sender.h"
#include "transport/messaging/psm2/setup_threads.h"
#include "transport/messaging/tcp/handshake.h"

namespace ropewalk::transport::psm2 {
namespace {

constexpr tcp::HandleMark kMark = {'R', 'W', 'p', '1'};

class Psm2 final : public Transport {
 public:
  explicit Psm2(const Config& config)
      : verify_(messaging::verify_of(config.text(Setting::kVerify))),
        shared_(config.text(Setting::kPsm2Endpoints) == "shared") {
    summary_.shared_memory = config.text(Setting::kPsm2Device) == "shm";
    summary_.adapter = has_adapter();
    std::vector<Device> devices = find(config);
    if (devices.empty()) log::info(log::kInit, "psm2: no device: {}", summary_.why_none);
    messaging::FoundCuda cuda;
    if (!devices.empty()) cuda = find_cuda(config);
    for (Device& device : devices) add(std::move(device), cuda);
  }

  [[nodiscard]] std::string name() const override { return "psm2"; }
  [[nodiscard]] int num_devices() const override { return static_cast<int>(ports_.size()); }
  [[nodiscard]] std::string why_no_devices() const override { return summary_.why_none; }

  [[nodiscard]] DeviceProperties properties(int device) const override {
    const Device& chosen = at(device).device;
    DeviceProperties properties;
    properties.name = chosen.name;
    properties.pci_path = chosen.pci_path;
    properties.guid = chosen.guid;
    properties.fabric = chosen.fabric;
    properties.speed_mbps = chosen.speed_mbps;
    properties.latency_us = chosen.latency_us;
    properties.port = chosen.port;
    properties.max_message_bytes = kMaxMessageBytes;
    properties.max_requests = static_cast<int>(kMaxRequests);
    properties.max_grouped_receives = static_cast<int>(kMaxGroup);
    if (at(device).gpus->taken()) {
      properties.memory_kinds |= static_cast<unsigned>(MemoryKind::kCuda);
      properties.gpu_memory_by_cuda = verify_ == Verify::kAll;  // for the checksums
    }
    properties.registration_is_global = false;
    return properties;
  }

  std::unique_ptr<Listener> listen(int device) override {
    const Port& own = at(device);
    linger_.poll();
    return std::make_unique<messaging::MeetingListener>(
        "psm2", *meeting_, kMark, linger_, [this, &own](SideChannel side, std::string peer) {
          return std::make_unique<Receiver>(Lease(library_, own.device, shared_), std::move(side),
                                            std::move(peer), verify_, *own.gpus, linger_);
        });
  }

  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    const Port& own = at(device);
    linger_.poll();
    const std::optional<tcp::Target> target = tcp::decode_handle(handle, kMark);
    if (!target) throw Error(Errc::kInvalidArgument, "psm2: not a handle of a psm2 listener");
    return std::make_unique<messaging::MeetingConnector>(
        *meeting_, *target, linger_, [this, &own](SideChannel side, std::string peer) {
          return std::make_unique<Sender>(Lease(library_, own.device, shared_), std::move(side),
                                          std::move(peer), verify_, *own.gpus, linger_);
        });
  }

  void settle() override { linger_.settle(); }

  [[nodiscard]] messaging::GpuTrials try_gpu_memory(int device) {
    const Port& own = at(device);
    if (!own.gpus->taken()) return {false, true, own.gpus->why_not()};
    return messaging::try_each_gpu(own.gpus->cuda(), [&](window::Gpu& gpu) {
      const Lease lease(library_, own.device, shared_);
      own.gpus->check(*lease, gpu);
      return std::string(verify_ == Verify::kOff ? "not tried" : "by GDRCopy");
    });
  }

  [[nodiscard]] const Summary& summary() const noexcept { return summary_; }

 private:
  struct Port {
    Device device;
    std::unique_ptr<Gpus> gpus;
  };

  // None: summary_ says why.
  std::vector<Device> find(const Config& config) {
    if (!summary_.shared_memory && !summary_.adapter) {
      summary_.why_none = "there is no Omni-Path adapter (/sys/class/infiniband/hfi1_*)";
      return {};
    }
    std::vector<tcp::Interface> interfaces =
        tcp::find_interfaces(config.text(Setting::kSocketIfname));
    if (interfaces.empty()) {
      summary_.why_none = "no network interface is up to make connections over";
      return {};
    }
    meeting_ = std::move(interfaces.front());
    Library::Found found =
        Library::open(config.text(Setting::kPsm2Library), summary_.shared_memory);
    if (!found.library) {
      summary_.why_none = std::move(found.why_not);
      return {};
    }
    library_ = std::move(found.library);
    summary_.library = "libpsm2 " + library_->version_text();
    if (!shared_ && !library_->several_endpoints()) {
      summary_.why_none = "this libpsm2 opens one endpoint a process: PSM2_ENDPOINTS=shared";
      return {};
    }
    Listing listing = find_devices(*library_);
    summary_.why_none = std::move(listing.why_none);
    return std::move(listing.devices);
  }

  [[nodiscard]] messaging::FoundCuda find_cuda(const Config& config) const {
    const std::string& why_not = library_->why_no_gpu_memory();
    return why_not.empty() ? messaging::find_cuda(config) : messaging::FoundCuda{nullptr, why_not};
  }

  // The device, with GPU memory if libpsm2 proves that it moves it right.
  void add(Device device, const messaging::FoundCuda& found) {
    const std::string named = fmt::format("psm2: {} ({})", device.name, summary_.library);
    std::string why_not = found.why_not;
    if (found.cuda != nullptr) {
      try {
        auto gpus = std::make_unique<Gpus>(device.name, found.cuda, verify_ != Verify::kOff);
        for (const int ordinal : found.cuda->gpus.in_use()) {
          const Lease lease(library_, device, shared_);
          gpus->check(*lease, found.cuda->gpus.at(ordinal));
        }
        log::info(log::kInit, "{}: GPU memory is taken", named);
        summary_.gpu_memory.emplace_back("taken");
        ports_.push_back({std::move(device), std::move(gpus)});
        return;
      } catch (const Error& error) {
        why_not = error.what();
      }
    }
    // What has been asked for and does not work is worth a warning.
    const std::string words = fmt::format("{}: host memory only: {}", named, why_not);
    if (found.cuda != nullptr) {
      log::warn("{}", words);
    } else {
      log::info(log::kInit, "{}", words);
    }
    summary_.gpu_memory.push_back(why_not);
    auto none = std::make_unique<Gpus>(device.name, std::move(why_not));
    ports_.push_back({std::move(device), std::move(none)});
  }

  [[nodiscard]] const Port& at(int device) const {
    if (device < 0 || device >= num_devices()) {
      if (ports_.empty()) throw Error(Errc::kSystem, "psm2: no device: {}", summary_.why_none);
      throw Error(Errc::kInvalidArgument, "psm2: device {} of {}", device, num_devices());
    }
    return ports_[static_cast<std::size_t>(device)];
  }

  const std::shared_ptr<SetupThreads> threads_ = setup_threads();
  const Verify verify_;
  const bool shared_;
  Summary summary_;
  std::shared_ptr<const Library> library_;
  std::optional<tcp::Interface> meeting_;
  std::vector<Port> ports_;  // which do not move
  tcp::Linger linger_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(const Config& config) {
  return std::make_unique<Psm2>(config);
}

messaging::GpuTrials try_gpu_memory(Transport& psm2, int device) {
  return dynamic_cast<Psm2&>(psm2).try_gpu_memory(device);
}

const Summary& summary(const Transport& psm2) { return dynamic_cast<const Psm2&>(psm2).summary(); }

bool worth_a_look(const Config& config) {
  return config.text(Setting::kPsm2Device) != "shm" && has_adapter();
}

}  // namespace ropewalk::transport::psm2
