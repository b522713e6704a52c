// What the communicators of a process share: one service thread.
//
// The service thread owns every bootstrap socket of the process: the root services of unique ids,
// and for each joined rank its listener, its connections and its watch over the other ranks. It
// starts with the first of them and ends with the last. It never calls user code other than
// Observers.
//
// fork(): a forked child has no service thread, and gets a Context of its own; its copies of the
// parent's communicators are dead (core/fork.h). All sockets are close-on-exec, and a fork handler
// closes them in the child without notifying their other ends, so that a child which outlives its
// parent does not hide the parent's death from the other ranks.
#pragma once

#include <memory>

namespace ropewalk::bootstrap {

class Service;

/// Threads: may be used by several at once. Lifetime: must outlive the Bootstraps made with it.
class Context {
 public:
  Context();
  /// Ends root services that still wait; their ranks see a lost connection.
  ~Context();
  Context(const Context&) = delete;
  Context& operator=(const Context&) = delete;

  /// The one that a process normally uses. Never destroyed, so that ranks may leave at any time
  /// before the process ends.
  static Context& process();

  [[nodiscard]] const std::shared_ptr<Service>& service() const noexcept { return service_; }

 private:
  std::shared_ptr<Service> service_;
};

}  // namespace ropewalk::bootstrap
