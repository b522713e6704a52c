#include "transport/registry.h"

#include <array>
#include <cstddef>
#include <utility>

#include "core/error.h"
#include "transport/auto/auto.h"
#include "transport/faulty.h"
#ifdef RW_HAVE_OFI
#include "transport/messaging/ofi/ofi.h"
#endif
#ifdef RW_HAVE_PSM2
#include "transport/messaging/psm2/psm2.h"
#endif
#include "transport/messaging/tcp/tcp.h"
#include "transport/rails/rails.h"
#include "transport/window/cuda_ipc/cuda_ipc.h"
#include "transport/window/shm/shm.h"
#include "transport/window/sisci/sisci.h"

namespace ropewalk::transport {
namespace {

struct Provider {
  std::string_view name;
  std::unique_ptr<Transport> (*make)(const Config&);
  std::size_t piece_bytes = 0;
};

constexpr std::array kProviders = {
    Provider{"auto", make_auto_transport},
    Provider{"shm", window::make_shm_transport},
    Provider{"cuda_ipc", window::make_cuda_ipc_transport},
    Provider{"sisci", window::make_sisci_transport},
#ifdef RW_HAVE_OFI
    // libfabric's tcp;ofi_rxm moves messages of 64 and 256 KiB at a quarter of the rate of 1 MiB.
    // (All-reduces of 256 KiB and more take 0.70 to 0.94 of the time that pieces of 128 KiB took.)
    Provider{"ofi", ofi::make_transport, std::size_t{512} << 10U},
#endif
#ifdef RW_HAVE_PSM2
    Provider{"psm2", psm2::make_transport},
#endif
    Provider{"tcp", tcp::make_transport},
    Provider{"rails", rails::make_transport},
};

}  // namespace

std::vector<std::string_view> compiled_providers() {
  std::vector<std::string_view> names;
  for (const Provider& provider : kProviders) names.push_back(provider.name);
  return names;
}

std::size_t piece_bytes(std::string_view name) {
  for (const Provider& provider : kProviders) {
    if (provider.name == name) return provider.piece_bytes;
  }
  return 0;
}

std::unique_ptr<Transport> make_plain_transport(std::string_view name, const Config& config) {
  for (const Provider& provider : kProviders) {
    if (provider.name == name) return provider.make(config);
  }
  throw Error(Errc::kInvalidArgument, "there is no transport '{}' in this build", name);
}

std::unique_ptr<Transport> make_transport(std::string_view name, const Config& config) {
  std::unique_ptr<Transport> made = make_plain_transport(name, config);
  const std::string& faults = config.text(Setting::kFaulty);
  // What rails are there to survive is made below them.
  if (name == "rails") return made;
  return faults.empty() ? std::move(made) : make_faulty(std::move(made), parse_faults(faults));
}

std::vector<std::unique_ptr<window::Driver>> make_window_drivers(const Config& config) {
  std::vector<std::unique_ptr<window::Driver>> drivers;
  if (config.flag(Setting::kNetEncrypt) || !config.text(Setting::kFaulty).empty()) return drivers;
  const std::string& net = config.text(Setting::kNet);
  if (net == "auto" || net == "shm") drivers.push_back(window::make_shm_driver(config));
  if (net == "auto" || net == "sisci") drivers.push_back(window::make_sisci_driver(config));
  return drivers;
}

Config for_host_memory(const Config& config) {
  Config host = config;
  host.set("OFI_GPU_MEMORY", "off", "host memory alone is used");
  return host;
}

}  // namespace ropewalk::transport
