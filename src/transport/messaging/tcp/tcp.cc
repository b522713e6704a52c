#include "transport/messaging/tcp/tcp.h"

#include <utility>
#include <vector>

#include "core/error.h"
#include "core/first_line.h"
#include "transport/messaging/tcp/handshake.h"

namespace ropewalk::transport::tcp {
namespace {

// One-way latency over a present-day network with plain sockets; used only to order the providers.
constexpr double kLatencyUs = 20;
class Tcp final : public Transport {
 public:
  explicit Tcp(const Config& config)
      : interfaces_(find_interfaces(config.text(Setting::kSocketIfname))),
        options_{static_cast<std::size_t>(config.integer(Setting::kTcpStreams)),
                 config.text(Setting::kVerify) == "all"} {}

  [[nodiscard]] std::string name() const override { return "tcp"; }
  [[nodiscard]] int num_devices() const override { return static_cast<int>(interfaces_.size()); }

  [[nodiscard]] DeviceProperties properties(int device) const override {
    const Interface& chosen = interface(device);
    DeviceProperties properties;
    properties.name = chosen.name;
    properties.pci_path = chosen.pci_path;
    properties.guid = chosen.guid;
    properties.fabric = chosen.subnet;
    properties.address = chosen.address.text();
    properties.speed_mbps = chosen.speed_mbps;
    properties.latency_us = kLatencyUs;
    properties.sharing_cost = sharing_cost_;
    properties.joined_bytes = kSocketJoinedBytes;
    properties.max_message_bytes = kMaxMessageBytes;
    properties.max_requests = static_cast<int>(kMaxRequests);
    properties.max_grouped_receives = static_cast<int>(kMaxGroup);
    return properties;
  }

  std::unique_ptr<Listener> listen(int device) override {
    linger_.poll();
    return std::make_unique<TcpListener>(interface(device), options_, linger_);
  }

  std::unique_ptr<Connector> connect(int device, const Handle& handle) override {
    linger_.poll();
    const std::optional<Target> target = decode_handle(handle);
    if (!target) throw Error(Errc::kInvalidArgument, "tcp: not a handle of a tcp listener");
    return std::make_unique<TcpConnector>(interface(device), *target, options_, linger_);
  }

  void settle() override { linger_.settle(); }

 private:
  [[nodiscard]] const Interface& interface(int device) const {
    if (device < 0 || device >= num_devices()) {
      throw Error(Errc::kInvalidArgument, "tcp: device {} of {}", device, num_devices());
    }
    return interfaces_[static_cast<std::size_t>(device)];
  }

  const std::vector<Interface> interfaces_;
  const double sharing_cost_ =
      sharing_cost(first_line("/proc/sys/net/ipv4/tcp_congestion_control"));
  const Options options_;
  Linger linger_;
};

}  // namespace

std::unique_ptr<Transport> make_transport(const Config& config) {
  return std::make_unique<Tcp>(config);
}

}  // namespace ropewalk::transport::tcp
