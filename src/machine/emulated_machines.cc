#include "machine/emulated_machines.h"

#include <filesystem>
#include <system_error>
#include <utility>

#include "core/digest.h"
#include "machine/emulation.h"
#include "topology/json.h"
#include "topology/named.h"

namespace ropewalk::machine {
namespace {

// Distinguishes versions of a file; empty for a description.
std::string version_of(const std::string& name) {
  std::error_code none;
  const auto written = std::filesystem::last_write_time(name, none);
  if (none) return {};
  return fmt::format("{} {}", written.time_since_epoch().count(),
                     std::filesystem::file_size(name, none));
}

std::shared_ptr<const Machine> make(const Config& config, int size) {
  const topology::Topology whole = topology::named(config.text(Setting::kEmulate));
  auto planned = std::make_shared<const topology::Topology>(
      whole.with_gpus(emulated_gpus(config, whole, size)));
  return std::make_shared<const Machine>(Machine{.topology = *planned,
                                                 .node_of_rank = planned->gpus(),
                                                 .planned = planned,
                                                 .origin = "setting EMULATE",
                                                 .described = true});
}

}  // namespace

EmulatedMachine EmulatedMachines::get(const Config& config, int size) {
  const std::string& name = config.text(Setting::kEmulate);
  const std::string key = fmt::format("{}\n{}\n{}\n{}", name, version_of(name),
                                      config.text(Setting::kEmulateGpus), size);
  const Lock lock(mutex_);
  if (const auto made = made_.find(key); made != made_.end()) {
    if (auto machine = made->second.machine.lock()) {
      return {std::move(machine), made->second.digest};
    }
  }
  std::erase_if(made_, [](const auto& entry) { return entry.second.machine.expired(); });
  EmulatedMachine made{make(config, size), 0};
  made.digest = digest(topology::write_json(*made.machine->planned));
  made_[key] = {made.machine, made.digest};
  return made;
}

}  // namespace ropewalk::machine
