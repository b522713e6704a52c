#include "transport/window/sisci/adapter.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "core/log.h"

namespace ropewalk::transport::window::sisci {
namespace {

// Numbers may have gaps, so the search does not end at the first that is missing.
constexpr unsigned kMaxAdapters = 16;
constexpr unsigned kMaxLinks = 16;  // of one adapter

// The library does not report the PCI domain.
std::string sysfs_path(unsigned bdf) {
  const std::string path = "/sys/bus/pci/devices/" + pci_address(bdf);
  const std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr),
                                                         &std::free);
  return real ? real.get() : "";
}

}  // namespace

std::string pci_address(unsigned bdf) {
  return fmt::format("0000:{:02x}:{:02x}.{}", bdf >> 8 & 0xff, bdf >> 3 & 31, bdf & 7);
}

double lanes_mbps(unsigned lanes, unsigned generation) {
  const double lane = generation == 1   ? 2500.0 * 8 / 10
                      : generation == 2 ? 5000.0 * 8 / 10
                      : generation == 4 ? 16000.0 * 128 / 130
                      : generation == 5 ? 32000.0 * 128 / 130
                                        : 8000.0 * 128 / 130;
  return lane * (lanes == 0 ? 8 : lanes);
}

namespace {

// A chain is as fast as its slowest link. Links that are down carry nothing, so that they are no
// part of it; a library that does not number its links is asked for the first.
void ask_links(const Library& library, Adapter& adapter) {
  const unsigned links =
      std::clamp(library.ask_adapter(adapter.number, "NUMBER_OF_LINKS").value_or(1), 1U, kMaxLinks);
  adapter.link = false;
  for (unsigned port = 0; port < links; ++port) {
    const auto ask = [&](std::string_view what) {
      return library.ask_adapter(adapter.number, what, port);
    };
    // If the library cannot report it, a link is assumed.
    if (ask("LINK_OPERATIONAL").value_or(1) == 0) continue;
    const double mbps = lanes_mbps(ask("LINK_WIDTH").value_or(0), ask("LINK_SPEED").value_or(0));
    adapter.speed_mbps = adapter.link ? std::min(adapter.speed_mbps, mbps) : mbps;
    adapter.link = true;
  }
}

}  // namespace

std::vector<Adapter> find_adapters(const Library& library) {
  std::vector<Adapter> found;
  for (unsigned number = 0; number < kMaxAdapters; ++number) {
    Adapter adapter;
    adapter.number = number;
    Status status = Status::kUnset;
    library->GetLocalNodeId(number, &adapter.node, 0, &status);
    if (status == Status::kNoSuchAdapter || status == Status::kIllegalAdapter) continue;
    if (status != Status::kOk) {
      log::info(log::kNet, "sisci: adapter {}: {}", number, library.words(status));
      continue;
    }
    adapter.serial = library.ask_adapter(number, "SERIAL_NUMBER").value_or(0);
    if (const auto bdf = library.ask_adapter(number, "BDF")) adapter.pci_path = sysfs_path(*bdf);
    ask_links(library, adapter);
    found.push_back(adapter);
  }
  return found;
}

}  // namespace ropewalk::transport::window::sisci
