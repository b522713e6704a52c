#include "bootstrap/observer_log.h"

namespace ropewalk::bootstrap {

void ObserverLog::report_to(Observer& observer, const Event& event) {
  switch (event.kind) {
    case Notice::Kind::kLost: observer.on_lost(event.rank, event.reason); break;
    case Notice::Kind::kLeft: observer.on_left(event.rank); break;
    case Notice::Kind::kAborted: observer.on_abort(event.rank, event.reason); break;
    case Notice::Kind::kSuspected: observer.on_suspect(event.rank, true); break;
    case Notice::Kind::kCleared: observer.on_suspect(event.rank, false); break;
  }
}

void ObserverLog::watch(Observer* observer) {
  const Lock lock(mutex_);
  observer_ = observer;
  if (observer == nullptr) return;
  for (const Event& event : events_) report_to(*observer, event);
}

void ObserverLog::add(Notice::Kind kind, int rank, const std::string& reason, bool report) {
  const Lock lock(mutex_);
  events_.push_back({kind, rank, reason});
  if (observer_ != nullptr && report) report_to(*observer_, events_.back());
}

}  // namespace ropewalk::bootstrap
