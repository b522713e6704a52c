// Objects that the communicators of a process share: settings, checked schedules, the service
// thread, facts about the host.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "bootstrap/context.h"
#include "comm/status_endpoint.h"
#include "core/mutex.h"
#include "core/settings.h"
#include "link/host_segment.h"
#include "machine/emulated_machines.h"
#include "machine/known_rates.h"
#include "monitor/job_ports.h"
#include "schedule/checked.h"
#include "topology/kept_host.h"
#include "trace/profiler_feed.h"
#include "transport/window/device/driver_cuda.h"
#include "tune/kept_plans.h"
#include "tune/numa_nodes.h"

namespace ropewalk::comm {

/// Threads: any. Two may coexist; a process normally uses process().
class Runtime {
 public:
  Runtime();
  /// The one behind the C API. Never destroyed. A forked child gets one of its own, with the
  /// settings of its parent's.
  static Runtime& process();

  /// The settings as they are now; environment and file are read at the first call.
  /// @throws Error kInvalidArgument for a bad setting
  Config config();
  /// Overrides a setting for later communicators.
  void set(std::string_view name, std::string_view value, std::string_view source);

  [[nodiscard]] bootstrap::Context& context() noexcept { return context_; }
  [[nodiscard]] schedule::CheckedSchedules& schedules() noexcept { return schedules_; }
  [[nodiscard]] const std::shared_ptr<tune::KeptPlans>& plans() const noexcept { return plans_; }
  [[nodiscard]] topology::KeptHost& host() noexcept { return host_; }
  /// This machine's; read at the first call.
  tune::NumaNodes numa_nodes();
  /// Takes these nodes for the machine's, in later communicators. For tests.
  void set_numa_nodes(tune::NumaNodes nodes);
  [[nodiscard]] machine::KnownRates& nic_rates() noexcept { return nic_rates_; }
  /// Where `ropewalk status` asks.
  [[nodiscard]] StatusEndpoint& status() noexcept { return status_; }
  /// Profiler plugins of others (setting PROFILER_PLUGIN).
  [[nodiscard]] trace::ProfilerFeed& profiler() noexcept { return profiler_; }
  /// The ports for monitoring (settings RAS_PORT, METRICS_PORT).
  [[nodiscard]] monitor::JobPorts& job_ports() noexcept { return job_ports_; }
  [[nodiscard]] machine::EmulatedMachines& emulated_machines() noexcept {
    return emulated_machines_;
  }
  /// Random number of this process: equal in two ranks' records only if they share its memory.
  [[nodiscard]] std::uint64_t token() const noexcept { return token_; }

  /// CUDA's driver and its GPUs, for windows; loaded at the first call (setting CUDA_LIBRARY).
  /// @throws Error kCuda in words where there is none
  transport::window::Gpus& gpus();
  /// The same where this process has the driver already, as one that has GPU memory; else null.
  transport::window::Gpus* loaded_gpus();

  /// The segment called `name`, made by `make` when no communicator of this process has it open.
  template <typename Make>
  std::shared_ptr<link::HostSegment> segment(const std::string& name, Make&& make) {
    const Lock lock(segments_mutex_);
    if (std::shared_ptr<link::HostSegment> open = segments_[name].lock()) return open;
    std::shared_ptr<link::HostSegment> made = make();
    segments_[name] = made;
    return made;
  }

 private:
  static void lock_for_fork() noexcept;
  static void unlock_in_parent() noexcept;
  static void leave_behind_in_child() noexcept;
  Config& loaded() RW_REQUIRES(config_mutex_);

  Mutex config_mutex_;
  std::unique_ptr<Config> config_ RW_GUARDED_BY(config_mutex_);
  bootstrap::Context context_;
  schedule::CheckedSchedules schedules_;
  const std::shared_ptr<tune::KeptPlans> plans_ = std::make_shared<tune::KeptPlans>();
  topology::KeptHost host_;
  Mutex numa_mutex_;
  std::optional<tune::NumaNodes> numa_nodes_ RW_GUARDED_BY(numa_mutex_);
  machine::KnownRates nic_rates_;
  machine::EmulatedMachines emulated_machines_;
  StatusEndpoint status_{context_};
  monitor::JobPorts job_ports_{context_};
  trace::ProfilerFeed profiler_;
  std::uint64_t token_ = 0;
  Mutex cuda_mutex_;
  std::unique_ptr<transport::window::DriverCuda> cuda_ RW_GUARDED_BY(cuda_mutex_);
  Mutex segments_mutex_;  // also held while a rank opens a segment: one of a process does
  std::map<std::string, std::weak_ptr<link::HostSegment>> segments_ RW_GUARDED_BY(segments_mutex_);
};

}  // namespace ropewalk::comm
