// What the communicators of a process share: settings, checked schedules, the service thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "comm/bootstrap/context.h"
#include "comm/host_segment.h"
#include "core/settings.h"
#include "schedule/checked.h"

namespace ropewalk::comm {

/// Threads: any. Two may coexist; a process normally uses process().
class Runtime {
 public:
  Runtime();
  /// The one behind the C API. Never destroyed.
  static Runtime& process();

  /// The settings as they are now; environment and file are read at the first call.
  /// @throws Error kInvalidArgument for a bad setting
  Config config();
  /// Overrides a setting for later communicators.
  void set(std::string_view name, std::string_view value, std::string_view source);

  [[nodiscard]] Context& context() noexcept { return context_; }
  [[nodiscard]] schedule::CheckedSchedules& schedules() noexcept { return schedules_; }
  /// Random number of this process: equal in two ranks' records only if they share its memory.
  [[nodiscard]] std::uint64_t token() const noexcept { return token_; }

  /// The segment called `name`, made by `make` when no communicator of this process has it open.
  template <typename Make>
  std::shared_ptr<HostSegment> segment(const std::string& name, Make&& make) {
    const std::lock_guard lock(segments_mutex_);
    if (std::shared_ptr<HostSegment> open = segments_[name].lock()) return open;
    std::shared_ptr<HostSegment> made = make();
    segments_[name] = made;
    return made;
  }

 private:
  std::mutex config_mutex_;  // guards config_
  std::unique_ptr<Config> config_;
  Context context_;
  schedule::CheckedSchedules schedules_;
  std::uint64_t token_ = 0;
  std::mutex segments_mutex_;  // guards segments_, and lets one rank of a process open a segment
  std::map<std::string, std::weak_ptr<HostSegment>> segments_;
};

}  // namespace ropewalk::comm
