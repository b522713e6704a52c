// Network interfaces of this host, and ports of RDMA adapters.
#include <ifaddrs.h>
#include <net/if.h>
#include <sched.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <vector>

#include "comm/probe/probe.h"
#include "core/error.h"
#include "core/settings.h"
#include "core/units.h"
#include "transport/registry.h"
#include "transport/transport.h"

namespace ropewalk::comm::probe {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLimit{10};
constexpr std::size_t kBytes = std::size_t{16} << 20;
constexpr int kLargeMessages = 8;
constexpr int kRoundTrips = 300;

std::string first_line(const fs::path& file) {
  std::ifstream stream(file);
  std::string line;
  std::getline(stream, line);
  return line;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

// The flags and whether there is an address that connections can use.
struct State {
  bool up = false;
  bool has_address = false;
};

State state_of(const std::string& interface_name) {
  State state;
  ifaddrs* first = nullptr;
  if (getifaddrs(&first) != 0) throw system_error(errno, "listing the network interfaces");
  for (const ifaddrs* each = first; each != nullptr; each = each->ifa_next) {
    if (interface_name != each->ifa_name) continue;
    state.up = (each->ifa_flags & IFF_UP) != 0 && (each->ifa_flags & IFF_RUNNING) != 0;
    const int family = each->ifa_addr == nullptr ? AF_UNSPEC : each->ifa_addr->sa_family;
    state.has_address = state.has_address || family == AF_INET || family == AF_INET6;
  }
  freeifaddrs(first);
  return state;
}

template <typename Ready>
void wait(const char* what, Ready&& ready) {
  const Clock::time_point begin = Clock::now();
  while (!ready()) {
    if (Clock::now() - begin > kLimit) throw Error(Errc::kTimeout, "{}: not in 10 s", what);
    sched_yield();
  }
}

// Both ends of a connection of this process with itself.
class SelfConnection {
 public:
  explicit SelfConnection(transport::Transport& over) {
    listener_ = over.listen(0);
    connector_ = over.connect(0, listener_->handle());
    wait("connecting", [&] {
      if (sender_ == nullptr) sender_ = connector_->poll();
      if (receiver_ == nullptr) receiver_ = listener_->accept();
      return sender_ != nullptr && receiver_ != nullptr;
    });
  }

  void move(std::vector<std::byte>& from, std::vector<std::byte>& to, std::size_t bytes) {
    std::unique_ptr<transport::Request> sent;
    std::unique_ptr<transport::Request> received;
    bool send_done = false;
    bool receive_done = false;
    const transport::ReceiveBuffer buffer{to.data(), bytes, 0, to_registration(to)};
    wait("a message", [&] {
      if (received == nullptr) received = receiver_->receive(std::span(&buffer, 1));
      if (sent == nullptr) sent = sender_->send(from.data(), bytes, 0, from_registration(from));
      if (sent != nullptr && !send_done) send_done = sent->test().has_value();
      if (received != nullptr && !receive_done) receive_done = received->test().has_value();
      return send_done && receive_done;
    });
  }

 private:
  transport::Registration* from_registration(std::vector<std::byte>& memory) {
    if (from_ == nullptr) {
      from_ = sender_->register_memory(memory.data(), memory.size(), transport::MemoryKind::kHost);
    }
    return from_.get();
  }
  transport::Registration* to_registration(std::vector<std::byte>& memory) {
    if (to_ == nullptr) {
      to_ = receiver_->register_memory(memory.data(), memory.size(), transport::MemoryKind::kHost);
    }
    return to_.get();
  }

  std::unique_ptr<transport::Listener> listener_;
  std::unique_ptr<transport::Connector> connector_;
  std::unique_ptr<transport::SendConnection> sender_;
  std::unique_ptr<transport::ReceiveConnection> receiver_;
  std::unique_ptr<transport::Registration> from_;
  std::unique_ptr<transport::Registration> to_;
};

Check messages(const std::string& interface_name) {
  Check check{.what = "messages"};
  try {
    Config config = Config::load();
    config.set("SOCKET_IFNAME", "=" + interface_name, "doctor");
    config.set("FAULTY", "", "doctor");
    const std::unique_ptr<transport::Transport> tcp = transport::make_transport("tcp", config);
    std::vector<std::byte> from(kBytes);
    std::vector<std::byte> to(kBytes);
    for (std::size_t i = 0; i < kBytes; ++i) from[i] = static_cast<std::byte>(i * 7 + (i >> 9));
    SelfConnection connection(*tcp);
    connection.move(from, to, kBytes);
    if (from != to) {
      check.outcome = Outcome::kFailed;
      check.found = fmt::format("a message of {} came with other bytes", format_bytes(kBytes));
      check.cause = "faulty memory or a faulty network driver";
      return check;
    }
    Clock::time_point begin = Clock::now();
    for (int i = 0; i < kLargeMessages; ++i) connection.move(from, to, kBytes);
    check.gbps = static_cast<double>(kBytes) * kLargeMessages / seconds_since(begin) / 1e9;
    begin = Clock::now();
    for (int i = 0; i < kRoundTrips; ++i) connection.move(from, to, 8);
    check.latency_us = seconds_since(begin) / kRoundTrips * 1e6;
    check.found = fmt::format("this host reaches {} by its own address", tcp->properties(0).name);
  } catch (const Error& error) {
    check.outcome = Outcome::kFailed;
    check.found = error.what();
    check.cause = error.code() == Errc::kTimeout
                      ? "packets are dropped: a firewall rule, or routing of the address"
                      : "a firewall rule, or an address that cannot be bound";
  }
  return check;
}

Check link(const std::string& interface_name) {
  const fs::path folder = fs::path("/sys/class/net") / interface_name;
  const std::string speed = first_line(folder / "speed");
  const std::string mtu = first_line(folder / "mtu");
  Check check{.what = "link"};
  const bool known = !speed.empty() && speed[0] != '-' && speed != "0";
  check.found =
      fmt::format("{}, MTU {}{}", known ? speed + " Mbit/s" : "the driver does not say its speed",
                  mtu, fs::exists(folder / "device") ? "" : ", no device behind it");
  if (first_line(folder / "duplex") == "half") {
    check.outcome = Outcome::kDegraded;
    check.cause = "half duplex: the cable, or the other end, does not negotiate";
  }
  return check;
}

}  // namespace

std::vector<std::string> interfaces() {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator("/sys/class/net", error)) {
    if (fs::exists(entry.path() / "ifindex")) names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end(), [](const std::string& a, const std::string& b) {
    return std::pair(a != "lo", a) < std::pair(b != "lo", b);
  });
  return names;
}

Checks interface(const std::string& interface_name) {
  const std::vector<std::string> known = interfaces();
  if (std::find(known.begin(), known.end(), interface_name) == known.end()) {
    throw Error(Errc::kInvalidArgument, "name: there is no network interface \"{}\"",
                interface_name);
  }
  const State state = state_of(interface_name);
  const bool loopback = interface_name == "lo";
  if (!state.up || !state.has_address) {
    const char* found = state.up ? "up, without an address" : "down, or no cable";
    // Ranks of one host may meet over loopback; the others need not be there.
    return {{.what = "messages",
             .outcome = loopback ? Outcome::kFailed : Outcome::kSkipped,
             .found = found,
             .cause = loopback ? "ip link set lo up; ip addr add 127.0.0.1/8 dev lo" : ""}};
  }
  Checks checks = {messages(interface_name)};
  if (!loopback) checks.push_back(link(interface_name));
  return checks;
}

Checks rdma() {
  Checks checks;
  std::error_code error;
  for (const fs::directory_entry& adapter :
       fs::directory_iterator("/sys/class/infiniband", error)) {
    std::error_code no_ports;
    for (const fs::directory_entry& port :
         fs::directory_iterator(adapter.path() / "ports", no_ports)) {
      const std::string state = first_line(port.path() / "state");
      Check check{.what = fmt::format("{} port {}", adapter.path().filename().string(),
                                      port.path().filename().string()),
                  .found = fmt::format("{}, {}, {}", state, first_line(port.path() / "rate"),
                                       first_line(port.path() / "link_layer"))};
      if (state.find("ACTIVE") == std::string::npos) {
        const bool cable =
            first_line(port.path() / "phys_state").find("LinkUp") != std::string::npos;
        check.outcome = Outcome::kDegraded;
        check.cause = cable ? "the link is up but not active: no subnet manager runs"
                            : "no cable, or the other end is off";
      }
      checks.push_back(std::move(check));
    }
  }
  if (checks.empty()) {
    checks.push_back({.what = "RDMA adapters", .outcome = Outcome::kSkipped, .found = "none"});
  }
  return checks;
}

}  // namespace ropewalk::comm::probe
