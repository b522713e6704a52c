// Tells a profiler plugin (setting PROFILER_PLUGIN) of the calls of communicators: from their
// records, which a thread of its own reads every millisecond, so that calls pay nothing. Events
// come that much late; the times of kernels are exact (CLOCK_REALTIME).
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "trace/call_records.h"
#include "trace/profiler_plugin.h"

namespace ropewalk::trace {

/// One communicator's records, told to one context. Threads: one at a time.
class ProfiledRecords {
 public:
  /// `records` outlives it. @throws Error as ProfilerPlugin::Context
  ProfiledRecords(const CallRecords& records, std::shared_ptr<ProfilerPlugin> plugin,
                  const ProfilerPlugin::Context::Communicator& communicator)
      : records_(records), context_(std::move(plugin), communicator) {}
  /// Ends the events of what is not over.
  ~ProfiledRecords();
  ProfiledRecords(const ProfiledRecords&) = delete;
  ProfiledRecords& operator=(const ProfiledRecords&) = delete;

  /// Tells what has happened since. Records that were overwritten meanwhile are not told of.
  void tell();

 private:
  struct Open {
    ProfilerPlugin::Context::Events events;
    bool started = false;
  };
  // Those from that one on that are kept, and perhaps earlier ones.
  [[nodiscard]] std::vector<CallRecords::Record> read_from(CallRecords::Id from) const;
  void go_on(const CallRecords::Record& record, Open& open) noexcept;

  const CallRecords& records_;
  ProfilerPlugin::Context context_;
  CallRecords::Id seen_ = 0;
  std::map<CallRecords::Id, Open> open_;
};

/// Threads: any. Lifetime: must outlive what it was given.
class ProfilerFeed {
 public:
  ProfilerFeed() = default;
  ~ProfilerFeed();
  ProfilerFeed(const ProfilerFeed&) = delete;
  ProfilerFeed& operator=(const ProfilerFeed&) = delete;

  /// Tells of `records` until remove(). The plugin is loaded with the first ones. What fails is
  /// logged.
  void add(const std::string& plugin, const CallRecords& records,
           const ProfilerPlugin::Context::Communicator& communicator) noexcept;
  /// Tells what is left. When it returns nothing reads `records` any more.
  void remove(const CallRecords& records) noexcept;

 private:
  void run();

  Mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::weak_ptr<ProfilerPlugin>> plugins_ RW_GUARDED_BY(mutex_);
  std::map<const CallRecords*, std::unique_ptr<ProfiledRecords>> all_ RW_GUARDED_BY(mutex_);
  bool stop_ RW_GUARDED_BY(mutex_) = false;
  std::thread thread_ RW_GUARDED_BY(mutex_);  // from the first ones on
};

}  // namespace ropewalk::trace
