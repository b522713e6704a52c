// PCIe bridges through libsisci.
#include <memory>
#include <string>

#include "comm/runtime.h"
#include "core/error.h"
#include "core/settings.h"
#include "diagnose/probe/probe.h"
#include "diagnose/probe/self_messages.h"
#include "transport/registry.h"
#include "transport/transport.h"
#include "transport/window/sisci/adapter.h"
#include "transport/window/sisci/api.h"

namespace ropewalk::diagnose::probe {
namespace {

namespace sisci = transport::window::sisci;

// Share of a link's rate. A host's messages to itself may use the link twice, and the CPU may have
// to copy.
constexpr double kLeastOfLink = 0.25;

// The transport's device for an adapter: those without a link have none.
int device_of(const transport::Transport& over, unsigned adapter) {
  const std::string name = fmt::format("sisci{}", adapter);
  for (int device = 0; device < over.num_devices(); ++device) {
    if (over.properties(device).name == name) return device;
  }
  return -1;
}

}  // namespace

Checks sisci_adapters() {
  Config config = comm::Runtime::process().config();
  config.set("FAULTY", "", "doctor");
  const sisci::Library::Found found = sisci::Library::open(config.text(Setting::kSisciLibrary));
  if (!found.library) {
    // Most machines have none; one that is there and does not work is another matter.
    const auto says = [&](std::string_view words) {
      return found.why_not.find(words) != std::string::npos;
    };
    const bool absent = says("cannot open shared object file");
    const bool foreign = says("ELF") || says("file too short") || says("undefined symbol");
    std::string cause =
        "the driver of the adapters is not loaded, or does not fit the library: modprobe dis_irm "
        "dis_sisci";
    if (foreign) cause = "that file is no libsisci for this machine: look at SISCI_LIBRARY";
    return {{.what = "library and driver",
             .outcome = absent ? Outcome::kSkipped : Outcome::kFailed,
             .found = found.why_not,
             .cause = absent ? "" : cause}};
  }
  Checks checks = {{.what = "library and driver", .found = "loaded"}};
  const std::vector<sisci::Adapter> adapters = sisci::find_adapters(*found.library);
  if (adapters.empty()) {
    checks.push_back({.what = "adapters",
                      .outcome = Outcome::kFailed,
                      .found = "the library knows none",
                      .cause =
                          "the adapter is not seated, not configured or its driver has refused "
                          "it: lspci, dmesg"});
  }
  const std::unique_ptr<transport::Transport> over = transport::make_transport("sisci", config);
  for (const sisci::Adapter& adapter : adapters) {
    const std::string what = fmt::format("adapter {} (node {})", adapter.number, adapter.node);
    const int device = device_of(*over, adapter.number);
    if (!adapter.link || device < 0) {
      checks.push_back({.what = what,
                        .outcome = Outcome::kFailed,
                        .found = "its link is down",
                        .cause = "no cable, the other host is off, or its adapter is not "
                                 "configured"});
      continue;
    }
    Check check = self_messages(
        *over, device,
        fmt::format("link up, {:.0f} Gbit/s; this host reaches itself", adapter.speed_mbps / 1000),
        "the IOMMU, access control services, or no room for segments; the log with DEBUG=INFO and "
        "DEBUG_SUBSYS=NET tells what was tried",
        "the adapter does not answer: its link or its driver");
    check.what = what;
    const double gives = adapter.speed_mbps / 8000;
    if (check.outcome == Outcome::kPassed && *check.gbps < kLeastOfLink * gives) {
      check.outcome = Outcome::kDegraded;
      check.found +=
          fmt::format(", but at {:.0f}% of what the link gives", *check.gbps / gives * 100);
      check.cause =
          "the link runs with fewer lanes or an older generation than it could (lspci -vv), or "
          "something else uses it";
    }
    checks.push_back(std::move(check));
  }
  return checks;
}

}  // namespace ropewalk::diagnose::probe
