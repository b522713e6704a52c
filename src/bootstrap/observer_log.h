// What happened to the other ranks since joining, reported to the Observer of a communicator.
#pragma once

#include <string>
#include <vector>

#include "bootstrap/monitor.h"
#include "core/mutex.h"

namespace ropewalk::bootstrap {

/// Threads: any.
class ObserverLog {
 public:
  /// As Bootstrap::watch: reports the past first, from the calling thread. nullptr ends it.
  void watch(Observer* observer);
  /// Notes what happened; `report` says whether the observer is called as well.
  void add(Notice::Kind kind, int rank, const std::string& reason, bool report);

 private:
  struct Event {
    Notice::Kind kind;
    int rank;
    std::string reason;
  };
  static void report_to(Observer& observer, const Event& event);

  Mutex mutex_;  // held while the observer is called
  Observer* observer_ RW_GUARDED_BY(mutex_) = nullptr;
  std::vector<Event> events_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::bootstrap
