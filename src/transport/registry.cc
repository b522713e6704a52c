#include "transport/registry.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
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

constexpr std::array kProviders = {
    kAutoProvider,   window::kShmProvider, window::kCudaIpcProvider, window::kSisciProvider,
#ifdef RW_HAVE_OFI
    ofi::kProvider,
#endif
#ifdef RW_HAVE_PSM2
    psm2::kProvider,
#endif
    tcp::kProvider,  rails::kProvider,
};

const Provider* find(std::string_view name) noexcept {
  const auto* const found = std::ranges::find(kProviders, name, &Provider::name);
  return found == kProviders.end() ? nullptr : found;
}

const Provider& provider(std::string_view name) {
  if (const Provider* found = find(name)) return *found;
  throw Error(Errc::kInvalidArgument, "there is no transport '{}' in this build", name);
}

}  // namespace

std::vector<std::string_view> compiled_providers() {
  std::vector<std::string_view> names;
  for (const Provider& each : kProviders) names.push_back(each.name);
  return names;
}

const Provider& chosen_provider(const Config& config) {
  const std::string& name = config.text(Setting::kNet);
  if (const Provider* found = find(name)) return *found;
  throw Error(Errc::kInvalidArgument,
              "setting ROPEWALK_NET ({}): \"{}\" is not one of this build's transports: {}",
              config.source(Setting::kNet), name, fmt::join(compiled_providers(), ", "));
}

const Provider& process_provider() {
  return *std::ranges::find_if(kProviders, &Provider::joins_processes);
}

std::unique_ptr<Transport> make_plain_transport(std::string_view name, const Config& config) {
  return provider(name).make(config);
}

std::unique_ptr<Transport> make_transport(std::string_view name, const Config& config) {
  const Provider& chosen = provider(name);
  std::unique_ptr<Transport> made = chosen.make(config);
  const std::string& faults = config.text(Setting::kFaulty);
  if (faults.empty() || chosen.faults_below) return made;
  return make_faulty(std::move(made), parse_faults(faults));
}

std::vector<std::unique_ptr<window::Driver>> make_window_drivers(const Config& config) {
  std::vector<std::unique_ptr<window::Driver>> drivers;
  if (config.flag(Setting::kNetEncrypt) || !config.text(Setting::kFaulty).empty()) return drivers;
  const Provider& chosen = chosen_provider(config);
  for (const Provider& each : kProviders) {
    if (each.make_window_driver == nullptr) continue;
    if (chosen.chooses || chosen.name == each.name) {
      drivers.push_back(each.make_window_driver(config));
    }
  }
  return drivers;
}

Config for_host_memory(const Config& config) {
  Config host = config;
  host.set("OFI_GPU_MEMORY", "off", "host memory alone is used");
  return host;
}

}  // namespace ropewalk::transport
