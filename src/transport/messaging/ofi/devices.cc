#include "transport/messaging/ofi/devices.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <sys/socket.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <system_error>
#include <utility>

#include "core/first_line.h"
#include "transport/messaging/ofi/modes.h"

namespace ropewalk::transport::ofi {
namespace {

constexpr double kUnknownSpeedMbps = 10'000;
// One-way latency; used only to order the providers.
constexpr double kRdmaLatencyUs = 2;
constexpr double kLocalLatencyUs = 1;
constexpr double kSocketsLatencyUs = 25;

constexpr std::uint64_t kOrders = FI_ORDER_SAS | FI_ORDER_SAW;

std::string text_of(const char* text) { return text == nullptr ? "" : text; }

// The capabilities of one query; the largest set first.
struct Wish {
  std::uint64_t caps;
  std::uint64_t orders;
  bool gpu_memory = false;
};
constexpr std::array kWishes = {Wish{FI_TAGGED | FI_RMA, kOrders}, Wish{FI_TAGGED | FI_RMA, 0},
                                Wish{FI_TAGGED, 0}};
constexpr std::array kGpuWishes = {Wish{FI_TAGGED | FI_RMA | FI_HMEM, kOrders, true},
                                   Wish{FI_TAGGED | FI_RMA | FI_HMEM, 0, true}};

struct Answer {
  Library::Info list;
  int error = 0;
};

Answer ask(const Library& library, const Wish& wish, std::string_view provider,
           bool every_mode = false) {
  Library::Info hints = library.new_info();
  hints->caps = wish.caps;
  hints->mode = every_mode ? kEveryMode : kModes;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode =
      every_mode ? kEveryRegistrationMode : kRegistrationModes | (wish.gpu_memory ? FI_MR_HMEM : 0);
  // All calls to a domain's objects are made with one lock held.
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->data_progress = FI_PROGRESS_UNSPEC;
  hints->tx_attr->msg_order = wish.orders;
  hints->rx_attr->msg_order = wish.orders;
  if (!provider.empty()) {
    hints->fabric_attr->prov_name = strdup(std::string(provider).c_str());
  }
  Answer answer{library.new_info(), 0};
  fi_info* found = nullptr;
  answer.error = library.getinfo(library.api(), nullptr, nullptr, 0, hints.get(), &found);
  answer.list.reset(found);
  return answer;
}

bool is_interface(const std::string& name) {
  std::error_code none;
  return !name.empty() && std::filesystem::exists("/sys/class/net/" + name, none);
}

std::string pci_path_of(const fi_info& info) {
  if (info.nic == nullptr || info.nic->bus_attr == nullptr ||
      info.nic->bus_attr->bus_type != FI_BUS_PCI) {
    return {};
  }
  const fi_pci_attr& pci = info.nic->bus_attr->attr.pci;
  const std::string link = fmt::format("/sys/bus/pci/devices/{:04x}:{:02x}:{:02x}.{:x}",
                                       pci.domain_id, pci.bus_id, pci.device_id, pci.function_id);
  std::error_code none;
  const std::filesystem::path device = std::filesystem::canonical(link, none);
  return none ? std::string() : device.string();
}

// The hexadecimal digits of "0c:42:a1:..", "fe80::c42:.." or a GUID; their last 16 count.
std::uint64_t hexadecimal(std::string_view text) {
  std::uint64_t value = 0;
  for (const char letter : text) {
    unsigned digit = 0;
    if (std::from_chars(&letter, &letter + 1, digit, 16).ec == std::errc()) {
      value = value << 4 | digit;
    }
  }
  return value;
}

std::uint64_t guid_of(const fi_info& info, const std::string& name) {
  if (const std::string node = first_line("/sys/class/infiniband/" + name + "/node_guid");
      !node.empty()) {
    return hexadecimal(node);
  }
  if (info.nic == nullptr || info.nic->link_attr == nullptr) return 0;
  return hexadecimal(text_of(info.nic->link_attr->address));
}

// The key of a NIC: its own name if there is one. Providers list a domain for each kind of endpoint
// and address of it.
std::string nic_name(const fi_info& info) {
  if (info.nic != nullptr && info.nic->device_attr != nullptr &&
      info.nic->device_attr->name != nullptr) {
    return info.nic->device_attr->name;
  }
  return text_of(info.domain_attr->name);
}

bool has_address(const fi_info& info, const SocketAddress& address) {
  if (info.src_addr == nullptr) return false;
  if (info.addr_format == FI_SOCKADDR_IN && address.family() == AF_INET) {
    sockaddr_in own{};
    std::memcpy(&own, info.src_addr, std::min(sizeof own, info.src_addrlen));
    return std::memcmp(&own.sin_addr, address.host_bytes().data(), sizeof own.sin_addr) == 0;
  }
  if (info.addr_format == FI_SOCKADDR_IN6 && address.family() == AF_INET6) {
    sockaddr_in6 own{};
    std::memcpy(&own, info.src_addr, std::min(sizeof own, info.src_addrlen));
    return std::memcmp(&own.sin6_addr, address.host_bytes().data(), sizeof own.sin6_addr) == 0;
  }
  return false;
}

LargePath path_of(const fi_info& info, std::string_view wanted) {
  if (wanted == "tagged" || (info.caps & FI_RMA) == 0) return LargePath::kTagged;
  const bool in_order = (info.tx_attr->msg_order & FI_ORDER_SAW) != 0 &&
                        (info.rx_attr->msg_order & FI_ORDER_SAW) != 0;
  return in_order ? LargePath::kWriteInOrder : LargePath::kWriteConfirmed;
}

// Why a NIC cannot be used; empty if it can.
std::string why_unfit(const fi_info& info, bool gpu_memory) {
  if (const std::string modes = unmet_modes(info, gpu_memory); !modes.empty()) {
    return fmt::format("{} demands {}, which this transport does not offer",
                       text_of(info.fabric_attr->prov_name), modes);
  }
  if (info.nic != nullptr && info.nic->link_attr != nullptr &&
      info.nic->link_attr->state == FI_LINK_DOWN) {
    return fmt::format("the link of {} is down", nic_name(info));
  }
  return {};
}

// The providers that would fit but for the modes that they demand, and these; empty if there are
// none. For a provider that lists nothing to who does not offer them.
std::string demands(const Library& library, std::string_view provider) {
  std::string all;
  std::set<std::string> seen;
  const Answer answer = ask(library, kWishes.back(), provider, true);
  for (const fi_info* info = answer.list.get(); answer.error == 0 && info != nullptr;
       info = info->next) {
    const std::string words = why_unfit(*info, false);
    if (!words.empty() && seen.insert(words).second) all += (all.empty() ? "" : "; ") + words;
  }
  return all;
}

// @return nothing for an interface that is not chosen
std::optional<Device> device_of(const Library& library, const fi_info& info,
                                const std::vector<tcp::Interface>& interfaces,
                                std::string_view large) {
  Device device;
  const std::string domain = text_of(info.domain_attr->name);
  device.name = nic_name(info);
  device.provider = text_of(info.fabric_attr->prov_name);
  device.pci_path = pci_path_of(info);
  device.guid = guid_of(info, device.name);
  device.fabric = text_of(info.fabric_attr->name);
  device.large = path_of(info, large);
  device.meeting = interfaces.front();
  constexpr std::size_t kWordBytes = 8;
  const bool sockets = is_interface(domain) &&
                       (info.addr_format == FI_SOCKADDR_IN || info.addr_format == FI_SOCKADDR_IN6);
  device.sockets = sockets;
  // Provider net of 1.17.0 loses such a word now and then.
  const bool keeps_words = device.provider != "net";
  device.writes_tell = sockets && keeps_words && device.large != LargePath::kTagged &&
                       info.domain_attr->cq_data_size >= kWordBytes;
  device.rdma = info.nic != nullptr && !device.pci_path.empty() && !is_interface(domain);
  if (sockets) {
    const auto own =
        std::find_if(interfaces.begin(), interfaces.end(), [&](const tcp::Interface& interface) {
          return interface.name == domain && has_address(info, interface.address);
        });
    if (own == interfaces.end()) return std::nullopt;
    device.meeting = *own;
    device.pci_path = own->pci_path;
    device.guid = own->guid;
    device.fabric = own->subnet;
    device.speed_mbps = own->speed_mbps;
  }
  if (info.nic != nullptr && info.nic->link_attr != nullptr && info.nic->link_attr->speed > 0) {
    device.speed_mbps = static_cast<double>(info.nic->link_attr->speed) / 1e6;
  }
  const bool local = !sockets && !device.rdma && info.addr_format == FI_ADDR_STR;
  device.latency_us = device.rdma ? kRdmaLatencyUs : local ? kLocalLatencyUs : kSocketsLatencyUs;
  if (device.speed_mbps <= 0) device.speed_mbps = kUnknownSpeedMbps;
  device.info = std::shared_ptr<const fi_info>(library.copy(info));
  return device;
}

// The devices that each wish has and none before it had.
struct Gathered {
  std::vector<Device> devices;
  std::string why_not;  // the last reason
};
Gathered gather(const Library& library, const Selection& selection, std::span<const Wish> wishes,
                const std::vector<tcp::Interface>& interfaces) {
  Gathered all{{}, "fi_getinfo lists no provider"};
  std::set<std::pair<std::string, std::string>> seen;  // provider, NIC
  for (const Wish& wish : wishes) {
    const Answer answer = ask(library, wish, selection.provider);
    if (answer.error != 0) {
      all.why_not = fmt::format("fi_getinfo: {}", library.words(answer.error));
      continue;
    }
    for (const fi_info* info = answer.list.get(); info != nullptr; info = info->next) {
      if (const std::string why = why_unfit(*info, wish.gpu_memory); !why.empty()) {
        all.why_not = why;
        continue;
      }
      std::optional<Device> device = device_of(library, *info, interfaces, selection.large);
      if (!device) {
        all.why_not = "SOCKET_IFNAME excludes its interfaces";
        continue;
      }
      device->gpu_memory = wish.gpu_memory;
      if (seen.emplace(device->provider, device->name).second) {
        all.devices.push_back(std::move(*device));
      }
    }
  }
  return all;
}

}  // namespace

std::string_view name(LargePath path) noexcept {
  switch (path) {
    case LargePath::kWriteInOrder: return "RMA writes in order";
    case LargePath::kWriteConfirmed: return "confirmed RMA writes";
    case LargePath::kTagged: return "tagged messages";
  }
  return "?";
}

Listing find_devices(const Library& library, const Selection& selection) {
  const std::vector<tcp::Interface> interfaces = tcp::find_interfaces(selection.interfaces);
  if (interfaces.empty()) {
    return {{}, "no network interface is up to make connections over"};
  }
  auto [all, why] = gather(library, selection, kWishes, interfaces);
  if (all.empty()) {
    if (const std::string modes = demands(library, selection.provider); !modes.empty()) {
      why += why == modes ? "" : fmt::format(" ({})", modes);
    }
    return {
        {},
        selection.provider.empty() ? why : fmt::format("provider {}: {}", selection.provider, why)};
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Device& a, const Device& b) { return a.rdma && !b.rdma; });
  const std::string chosen = all.front().provider;
  std::erase_if(all, [&](const Device& device) { return device.provider != chosen; });
  return {std::move(all), {}};
}

Listing find_gpu_devices(const Library& library, const Selection& selection) {
  auto [all, why] =
      gather(library, selection, kGpuWishes, tcp::find_interfaces(selection.interfaces));
  const std::size_t offered = all.size();
  std::erase_if(all, [&](const Device& device) {
    constexpr std::uint64_t kReads = FI_READ | FI_REMOTE_READ;
    return device.provider != selection.provider || (device.info->caps & kReads) != kReads;
  });
  if (!all.empty()) return {std::move(all), {}};
  return {{},
          offered > 0 ? "it offers GPU memory (FI_HMEM) without RMA reads"
                      : fmt::format("it does not offer GPU memory (FI_HMEM): {}", why)};
}

}  // namespace ropewalk::transport::ofi
