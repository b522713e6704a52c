// Network interfaces of this host, and ports of RDMA adapters.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "comm/runtime.h"
#include "core/error.h"
#include "core/first_line.h"
#include "core/network_interfaces.h"
#include "core/settings.h"
#include "diagnose/probe/probe.h"
#include "diagnose/probe/self_messages.h"
#include "transport/registry.h"
#include "transport/transport.h"

namespace ropewalk::diagnose::probe {
namespace {

namespace fs = std::filesystem;

Check messages(const std::string& interface_name) {
  const std::string cause = "a firewall rule, or an address that cannot be bound";
  try {
    Config config = comm::Runtime::process().config();
    config.set("SOCKET_IFNAME", "=" + interface_name, "doctor");
    config.set("FAULTY", "", "doctor");
    const std::unique_ptr<transport::Transport> tcp = transport::make_transport("tcp", config);
    return self_messages(*tcp, 0,
                         fmt::format("this host reaches {} by its own address", interface_name),
                         cause, "packets are dropped: a firewall rule, or routing of the address");
  } catch (const Error& error) {
    return {.what = "messages", .outcome = Outcome::kFailed, .found = error.what(), .cause = cause};
  }
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
  const InterfaceState state = interface_state(interface_name);
  const bool loopback = interface_name == "lo";
  if (!state.running || !state.has_address) {
    const char* found = state.running ? "up, without an address" : "down, or no cable";
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

}  // namespace ropewalk::diagnose::probe
