#include "transport/messaging/psm2/devices.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "core/first_line.h"

namespace ropewalk::transport::psm2 {
namespace {

constexpr double kOmniPathMbps = 100'000;
constexpr double kLocalMbps = 10'000;  // not known; only must not be 0
// One-way latencies; used only to order the providers.
constexpr double kAdapterLatencyUs = 1.5;
constexpr double kLocalLatencyUs = 0.5;

const std::filesystem::path kAdapters = "/sys/class/infiniband";

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

bool is_active(const Library& library, std::uint32_t unit, std::uint32_t port) {
  std::uint32_t status = 0;
  std::array<abi::QueryArgument, 2> arguments{};
  arguments[0].unit = unit;
  arguments[1].port = port;
  const abi::Error error =
      library.query(abi::kQueryPortStatus, &status, arguments.size(), arguments.data());
  return error == abi::kOk && status != 0;
}

Device device_of(std::uint32_t unit, std::uint32_t port) {
  Device device;
  device.unit = static_cast<int>(unit);
  device.port = static_cast<int>(port);
  device.name = fmt::format("hfi1_{}", unit);
  const std::filesystem::path adapter = kAdapters / device.name;
  if (port > 1) device.name += fmt::format(":{}", port);
  std::error_code none;
  const std::filesystem::path pci = std::filesystem::canonical(adapter / "device", none);
  if (!none) device.pci_path = pci.string();
  device.guid = hexadecimal(first_line(adapter / "node_guid"));
  const std::filesystem::path folder = adapter / "ports" / std::to_string(port);
  device.fabric = first_line(folder / "gids" / "0").substr(0, 19);
  // "100 Gb/sec (4X EDR)"
  const double gigabits = std::strtod(first_line(folder / "rate").c_str(), nullptr);
  device.speed_mbps = gigabits > 0 ? gigabits * 1000 : kOmniPathMbps;
  device.latency_us = kAdapterLatencyUs;
  return device;
}

}  // namespace

Listing find_devices(const Library& library) {
  if (library.shared_memory()) {
    Device shared;
    shared.name = "psm2_shm";
    shared.speed_mbps = kLocalMbps;
    shared.latency_us = kLocalLatencyUs;
    return {{shared}, {}};
  }
  std::uint32_t units = 0;
  if (const abi::Error error = library.num_units(&units); error != abi::kOk || units == 0) {
    return {{}, fmt::format("psm2_ep_num_devunits: {} adapters ({})", units, library.words(error))};
  }
  std::uint32_t ports = 0;
  if (library.query(abi::kQueryPorts, &ports, 0, nullptr) != abi::kOk || ports == 0) ports = 1;
  std::vector<Device> devices;
  for (std::uint32_t unit = 0; unit < units; ++unit) {
    for (std::uint32_t port = 1; port <= ports; ++port) {
      if (is_active(library, unit, port)) devices.push_back(device_of(unit, port));
    }
  }
  if (!devices.empty()) return {std::move(devices), {}};
  return {{}, fmt::format("none of {} adapters has an active port", units)};
}

bool has_adapter() {
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(kAdapters, none)) {
    if (entry.path().filename().string().starts_with("hfi1_")) return true;
  }
  return false;
}

}  // namespace ropewalk::transport::psm2
