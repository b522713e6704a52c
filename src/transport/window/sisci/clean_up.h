// Objects of the library that could not be released at once.
//
// The library says BUSY while something hangs on an object: a peer that is still connected, a
// transfer under way. The steps that are left are kept here and tried again at later calls of the
// driver; for a bounded time they are waited for when no later call may come, and at its end. A
// process that ends gives all back in any case.
#pragma once

#include <chrono>
#include <deque>
#include <functional>
#include <vector>

#include "core/mutex.h"

namespace ropewalk::transport::window::sisci {

/// A step gives one thing back.
/// @return false when it is busy, and to be tried again
using CleanUpStep = std::function<bool()>;

/// Threads: any.
class CleanUp {
 public:
  CleanUp() = default;
  CleanUp(const CleanUp&) = delete;
  CleanUp& operator=(const CleanUp&) = delete;
  ~CleanUp();

  /// Takes steps that are made in their order, and makes those that can be made now.
  void add(std::deque<CleanUpStep> steps);
  /// Tries the remaining steps.
  void sweep();
  /// The same until nothing is left, for a bounded time.
  void settle();

 private:
  Mutex mutex_;
  std::vector<std::deque<CleanUpStep>> left_ RW_GUARDED_BY(mutex_);
  bool ended_ RW_GUARDED_BY(mutex_) = false;  // objects from now on are freed when the process ends
};

}  // namespace ropewalk::transport::window::sisci
