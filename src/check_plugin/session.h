// One child of the checker while it checks one rule: the plugin, the other child, and waiting.
#pragma once

#include <fmt/format.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "check_plugin/page.h"
#include "check_plugin/plugin.h"

namespace ropewalk::check_plugin {

using Clock = std::chrono::steady_clock;

/// What the user asked for.
struct Options {
  std::string file;
  std::optional<int> version;                 ///< instead of the newest that is exported
  int device = 0;                             ///< of the plugin
  std::chrono::milliseconds timeout{10'000};  ///< of one wait
  int connections = 1000;                     ///< that rule `leaks` opens and closes
  bool large = false;                         ///< messages of more than 2 GiB too
  bool log = false;                           ///< the plugin's log goes to standard error
  bool connects = false;                      ///< the rule that this one prefers has passed
};

/// A rule does not hold.
struct Failed {
  std::string expected;
  std::string came;
};
/// A rule cannot be checked here.
struct Skipped {
  std::string missing;
};
/// The other child has failed.
struct Stopped {};

/// The plugin as one process of a job has it.
///
/// Threads: the plugin's rules; start() and the meetings by the child's first thread only.
class Session {
 public:
  /// `process` is 0 for the one that sends, 1 for the one that receives; a rule of one process has
  /// only 0.
  Session(const Options& options, Page& page, int process);

  [[nodiscard]] const Options& options() const noexcept { return options_; }
  [[nodiscard]] bool sender() const noexcept { return process_ == 0; }
  [[nodiscard]] bool receiver() const noexcept { return process_ == 1; }
  [[nodiscard]] ProcessPage& own() noexcept {
    return page_.processes[static_cast<std::size_t>(process_)];
  }
  [[nodiscard]] ProcessPage& other() noexcept {
    return page_.processes[static_cast<std::size_t>(1 - process_)];
  }

  /// Loads the plugin.
  /// @throws Failed
  void load();
  /// load(), init, devices, properties. What the plugin logs meanwhile is forgotten unless
  /// `keeps_log`: it says nothing about the rule.
  /// @throws Failed
  void start(bool keeps_log = false);
  [[nodiscard]] Plugin& plugin() noexcept { return *plugin_; }
  [[nodiscard]] void* context() const noexcept { return context_; }
  [[nodiscard]] int device() const noexcept { return options_.device; }
  [[nodiscard]] int device_count() const noexcept { return device_count_; }
  [[nodiscard]] const Properties& properties() const noexcept { return properties_; }
  /// One call of init, whose result is the caller's to judge.
  abi::Result init(void** context);
  /// Another context of this process, for versions that have them; else the first.
  void* new_context();
  void end_context(void* context);
  /// Poison what the plugin must write, and put guards behind it.
  void be_strict() noexcept { strict_ = true; }
  [[nodiscard]] bool strict() const noexcept { return strict_; }

  /// Lets this child end when its part is done, without waiting for the other.
  void end_alone() noexcept { own().ends_alone.store(true); }
  /// Whether the other child has ended and has been reaped.
  [[nodiscard]] bool other_gone();

  /// @throws Failed unless `result` is success
  void expect(abi::Result result, Call call) const;

  /// Calls `ready` until it returns true, yielding in between.
  ///
  /// @throws Failed{expected, "..."} when the time is over; Stopped when the other child failed
  template <typename Ready>
  void wait(std::string_view expected, Ready&& ready) {
    const Clock::time_point begin = Clock::now();
    while (!ready()) yield_or_fail(expected, begin);
  }
  /// As wait(), with a limit of its own.
  /// @return false when the time is over
  template <typename Ready>
  bool within(std::chrono::milliseconds limit, Ready&& ready) {
    const Clock::time_point deadline = Clock::now() + limit;
    while (!ready()) {
      if (Clock::now() > deadline) return false;
      check_stopped();
      sched_yield();
    }
    return true;
  }

  /// Waits until the other child is at the same meeting. Nothing of the plugin runs meanwhile.
  void meet();
  /// The last meeting: neither process ends before both have done their part, as in a job of
  /// NCCL's.
  void meet_at_end();
  /// Puts bytes where the other child sees them after the next meeting.
  void tell(std::span<const std::byte> bytes);
  /// The other child's message before the last meeting.
  [[nodiscard]] std::span<const std::byte> heard(std::size_t bytes);

  /// Runs `body` in a thread of its own, as NCCL moves data by another thread than it connects, and
  /// passes on what it throws.
  void in_thread(const std::function<void()>& body);
  /// All at the same time. When one throws, the others need not wait for it: the first error is
  /// passed on.
  void in_threads(const std::vector<std::function<void()>>& bodies);

 private:
  void check_stopped() const;
  /// One turn of a wait that began at `begin`.
  void yield_or_fail(std::string_view expected, Clock::time_point begin) const;

  const Options& options_;
  Page& page_;
  int process_;
  bool strict_ = false;
  std::atomic<bool> thread_failed_{false};
  std::atomic<std::uint64_t> contexts_{0};
  std::unique_ptr<Plugin> plugin_;
  void* context_ = nullptr;
  int device_count_ = 0;
  Properties properties_;
};

}  // namespace ropewalk::check_plugin
