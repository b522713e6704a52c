// Schedules that may run: the executors take a Checked and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "core/mutex.h"
#include "schedule/check.h"
#include "schedule/compile.h"
#include "schedule/schedule.h"

namespace ropewalk::schedule {

/// A schedule with the report that accepted it; not constructible without the check.
///
/// Threads: immutable.
class Checked {
 public:
  /// @throws Error kInvalidUsage listing the defects when check() refuses the schedule
  static Checked from(Schedule schedule, int slots = 2);

  [[nodiscard]] const Schedule& schedule() const noexcept { return schedule_; }
  [[nodiscard]] const CheckReport& report() const noexcept { return report_; }
  /// Chunks per link that the proof assumed. Every larger number is proven with it: a wider FIFO
  /// only lets a sender wait for less.
  [[nodiscard]] int slots() const noexcept { return slots_; }

 private:
  Checked(Schedule schedule, CheckReport report, int slots);
  Schedule schedule_;
  CheckReport report_;
  int slots_;
};

/// A cache of compiled and checked schedules. It keeps the most recently used ones; a user's
/// pointer stays valid beyond that.
///
/// Threads: any number at once. Those that ask for the same schedule at the same time wait for one
/// of them to make it; others do not wait.
class CheckedSchedules {
 public:
  explicit CheckedSchedules(std::size_t capacity = 64);

  /// @throws Error kInvalidArgument as compile(), kInvalidUsage as Checked::from()
  std::shared_ptr<const Checked> get(std::string_view algorithm, const Request& request,
                                     int slots = 2);

  /// Schedules held now.
  [[nodiscard]] std::size_t size() const;

 private:
  using Key =
      std::tuple<std::string, Collective, int, int, int, std::vector<int>, std::vector<int>, int>;
  struct Entry {
    Mutex making;  // held while the schedule is made
    std::shared_ptr<const Checked> checked RW_GUARDED_BY(making);
    std::uint64_t last_use = 0;  // guarded by mutex_ of the cache
  };
  void evict_oldest() RW_REQUIRES(mutex_);

  const std::size_t capacity_;
  mutable Mutex mutex_;
  std::map<Key, std::shared_ptr<Entry>> entries_ RW_GUARDED_BY(mutex_);
  std::uint64_t uses_ RW_GUARDED_BY(mutex_) = 0;
};

}  // namespace ropewalk::schedule
