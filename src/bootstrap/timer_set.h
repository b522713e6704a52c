// The timers of one object, cancelled together.
#pragma once

#include <functional>
#include <memory>
#include <set>
#include <utility>

#include "bootstrap/service.h"

namespace ropewalk::bootstrap {

/// Service thread only. Lifetime: clear() before what the tasks use is destroyed.
class TimerSet {
 public:
  using Clock = Service::Clock;

  explicit TimerSet(Service& service) : service_(service) {}
  ~TimerSet() { clear(); }
  TimerSet(const TimerSet&) = delete;
  TimerSet& operator=(const TimerSet&) = delete;

  void at(Clock::time_point when, std::function<void()> task) {
    const auto key = std::make_shared<Service::TimerKey>();
    *key = service_.at(when, [this, key, task = std::move(task)] {
      keys_.erase(*key);
      task();
    });
    keys_.insert(*key);
  }
  void after(Clock::duration delay, std::function<void()> task) {
    at(Clock::now() + delay, std::move(task));
  }
  /// Cancels all timers that have not run.
  void clear() {
    for (const Service::TimerKey& key : keys_) service_.cancel(key);
    keys_.clear();
  }

 private:
  Service& service_;
  std::set<Service::TimerKey> keys_;
};

}  // namespace ropewalk::bootstrap
