#include "transport/rails/rails.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "transport/rails/acceptors.h"
#include "transport/rails/context.h"
#include "transport/rails/receiver.h"
#include "transport/rails/sender.h"
#include "transport/registry.h"

namespace ropewalk::transport::rails {
namespace {

class RailsListener final : public Listener {
 public:
  explicit RailsListener(std::shared_ptr<Acceptors> acceptors) : acceptors_(std::move(acceptors)) {}
  ~RailsListener() override { acceptors_->close(); }
  RailsListener(const RailsListener&) = delete;
  RailsListener& operator=(const RailsListener&) = delete;
  [[nodiscard]] const Handle& handle() const override { return acceptors_->handle(); }
  std::unique_ptr<ReceiveConnection> accept() override {
    std::shared_ptr<ReceiverCore> core = acceptors_->take_new();
    if (core == nullptr) return nullptr;
    return std::make_unique<RailsReceiver>(std::move(core), acceptors_);
  }

 private:
  std::shared_ptr<Acceptors> acceptors_;
};

class RailsConnector final : public Connector {
 public:
  explicit RailsConnector(std::unique_ptr<RailsSender> sender) : sender_(std::move(sender)) {}
  std::unique_ptr<SendConnection> poll() override {
    if (sender_ == nullptr) {
      throw Error(Errc::kInvalidUsage, "poll of a connector that has handed out its connection");
    }
    // Its rails are made later; until one is, send() returns nullptr.
    return std::move(sender_);
  }

 private:
  std::unique_ptr<RailsSender> sender_;
};

class Rails final : public Transport {
 public:
  Rails(std::vector<std::unique_ptr<Transport>> transports, std::vector<Device> devices,
        const Config& config)
      : transports_(std::move(transports)) {
    context_.devices = std::move(devices);
    context_.verifies = config.text(Setting::kVerify) != "off";
    context_.sums = config.text(Setting::kVerify) == "all";
    context_.loss_time = config.duration(Setting::kPeerLossTime);
    context_.keeper = &keeper_;
    if (context_.devices.size() > kMostDevices) {
      log::warn("rails: {} devices are left out: {} at most are used",
                context_.devices.size() - kMostDevices, kMostDevices);
      context_.devices.resize(kMostDevices);
    }
    for (const Device& device : context_.devices) {
      log::info(log::kInit, "rails: {}, {:.0f} Mbit/s", device.name(),
                device.properties.speed_mbps);
    }
  }

  [[nodiscard]] std::string name() const override { return "rails"; }
  [[nodiscard]] int num_devices() const override { return context_.devices.empty() ? 0 : 1; }
  [[nodiscard]] std::string why_no_devices() const override {
    return context_.devices.empty() ? "no transport that RAILS names has a device" : "";
  }

  [[nodiscard]] DeviceProperties properties(int device) const override {
    check(device);
    DeviceProperties all;
    for (const Device& each : context_.devices) {
      const DeviceProperties& of = each.properties;
      all.name += (all.name.empty() ? "rails:" : "+") + of.name;
      if (all.pci_path.empty()) all.pci_path = of.pci_path;
      all.guid = all.guid * 31 + of.guid;
      all.speed_mbps += of.speed_mbps;
      all.latency_us =
          all.latency_us == 0 ? of.latency_us : std::min(all.latency_us, of.latency_us);
    }
    all.max_message_bytes = kMaxMessageBytes;
    all.max_requests = static_cast<int>(kMaxRequests);
    all.max_grouped_receives = static_cast<int>(kMaxGroup);
    return all;
  }

  std::unique_ptr<Listener> listen(int device) override {
    check(device);
    auto acceptors = std::make_shared<Acceptors>(context_);
    keeper_.add(acceptors);
    return std::make_unique<RailsListener>(std::move(acceptors));
  }

  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    check(device);
    std::optional<std::vector<Offer>> offers = decode_offers(handle);
    if (!offers) {
      throw Error(Errc::kInvalidArgument, "rails: this is no handle of a listener of `rails`");
    }
    auto core = std::make_shared<SenderCore>(context_, std::move(*offers));
    keeper_.add(core);
    return std::make_unique<RailsConnector>(std::make_unique<RailsSender>(std::move(core)));
  }

  void settle() override {
    keeper_.settle();
    for (const std::unique_ptr<Transport>& each : transports_) each->settle();
  }

 private:
  void check(int device) const {
    if (device < 0 || device >= num_devices()) {
      throw Error(Errc::kInvalidArgument, "rails: device {} of {}", device, num_devices());
    }
  }

  std::vector<std::unique_ptr<Transport>> transports_;
  Context context_;
  Keeper keeper_;  // gone before what it looks after uses
};

Device device_of(Transport& transport, int number) {
  Device device;
  device.transport = &transport;
  device.number = number;
  device.properties = transport.properties(number);
  device.provider = provider_code(transport.name());
  return device;
}

std::string names_of(const Transport& transport) {
  std::string names;
  for (int i = 0; i < transport.num_devices(); ++i) {
    names += (i == 0 ? "" : ", ") + transport.properties(i).name;
  }
  return names.empty() ? "none" : names;
}

}  // namespace

std::unique_ptr<Transport> make_over(std::vector<std::unique_ptr<Transport>> transports,
                                     const Config& config) {
  std::vector<Device> devices;
  for (const std::unique_ptr<Transport>& each : transports) {
    for (int i = 0; i < each->num_devices(); ++i) devices.push_back(device_of(*each, i));
  }
  return std::make_unique<Rails>(std::move(transports), std::move(devices), config);
}

std::unique_ptr<Transport> make_transport(const Config& config) {
  const std::string& setting = config.text(Setting::kRails);
  std::vector<std::unique_ptr<Transport>> transports;
  std::map<std::string, Transport*, std::less<>> by_name;
  std::vector<Device> devices;
  for (std::string_view rest = setting; !rest.empty();) {
    const std::size_t comma = std::min(rest.find(','), rest.size());
    const std::string_view entry = rest.substr(0, comma);
    rest.remove_prefix(std::min(comma + 1, rest.size()));
    const std::size_t colon = std::min(entry.find(':'), entry.size());
    const std::string provider(entry.substr(0, colon));
    if (provider_code(provider) == 0) {
      throw Error(Errc::kInvalidArgument,
                  "RAILS: '{}': rails run over shm, cuda_ipc, sisci, ofi, psm2 and tcp", entry);
    }
    Transport*& transport = by_name[provider];
    if (transport == nullptr) {
      transports.push_back(transport::make_transport(provider, for_host_memory(config)));
      transport = transports.back().get();
    }
    const std::string_view wanted = entry.substr(std::min(colon + 1, entry.size()));
    const std::size_t before = devices.size();
    for (int i = 0; i < transport->num_devices(); ++i) {
      if (wanted.empty() || transport->properties(i).name == wanted) {
        devices.push_back(device_of(*transport, i));
      }
    }
    if (!wanted.empty() && devices.size() == before) {
      throw Error(Errc::kInvalidArgument, "RAILS: {} has no device {} (it has: {})", provider,
                  wanted, names_of(*transport));
    }
    if (wanted.empty() && devices.size() == before) {
      log::info(log::kInit, "rails: {} has no device: {}", provider, transport->why_no_devices());
    }
  }
  return std::make_unique<Rails>(std::move(transports), std::move(devices), config);
}

std::vector<RailReport> report(const SendConnection& connection) {
  const auto* const rails = dynamic_cast<const RailsSender*>(&connection);
  return rails == nullptr ? std::vector<RailReport>{} : rails->report();
}

std::vector<RailReport> report(const ReceiveConnection& connection) {
  const auto* const rails = dynamic_cast<const RailsReceiver*>(&connection);
  return rails == nullptr ? std::vector<RailReport>{} : rails->report();
}

std::string text_of(const std::vector<RailReport>& rails) {
  std::string text;
  for (const RailReport& rail : rails) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", rail.name,
                        rail.left_out ? "left out"
                        : rail.up     ? "up"
                                      : "not up");
    if (rail.rate > 0) text += fmt::format(", {:.4g} MB/s", rail.rate / 1e6);
    text += fmt::format(", {} bytes", rail.bytes);
    if (rail.again > 0) text += fmt::format(" ({} of them again)", rail.again);
    if (rail.losses > 0) text += fmt::format(", lost {} times", rail.losses);
    if (!rail.why.empty()) text += fmt::format(" ({})", rail.why);
  }
  return text;
}

}  // namespace ropewalk::transport::rails
