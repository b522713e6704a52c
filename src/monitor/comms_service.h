// What answers from outside for the communicators of this process: a server on the service thread
// (bootstrap/context.h), from the first communicator that it is given to the last.
#pragma once

#include <memory>
#include <set>
#include <utility>

#include "bootstrap/context.h"
#include "bootstrap/service.h"
#include "core/mutex.h"

namespace ropewalk::monitor {

/// What the service thread and the communicators share: the former may come later. `Comm` is a
/// communicator, or what of it is served.
template <typename Comm>
struct ServedComms {
  Mutex mutex;
  std::set<const Comm*> comms RW_GUARDED_BY(mutex);
};

/// `Server` has start() and stop(), which the service thread calls.
///
/// Threads: any. Lifetime: must outlive the communicators that it was given.
template <typename Comm, typename Server>
class CommsService {
 public:
  explicit CommsService(bootstrap::Context& context) : context_(context) {}

  /// Serves `comm` until remove().
  /// @param make  of a service and ServedComms: a server, or null for none. Called unless there is
  ///              one
  /// @throws what `make` does; `comm` is to be removed all the same
  template <typename Make>
  void add(const Comm& comm, Make&& make) {
    {
      const Lock lock(shared_->mutex);
      shared_->comms.insert(&comm);
    }
    const Lock lock(mutex_);
    if (server_ != nullptr) return;
    bootstrap::Service& service = *context_.service();
    std::shared_ptr<Server> server = make(service, shared_);
    if (server == nullptr) return;
    service.post([&service, server] {
      service.keep(server);
      server->start();
    });
    server_ = std::move(server);
  }

  /// Has the service thread call `act` with the server, if there is one.
  template <typename Act>
  void post(Act&& act) {
    const Lock lock(mutex_);
    if (server_ == nullptr) return;
    context_.service()->post([server = server_, act = std::forward<Act>(act)] { act(*server); });
  }

  /// When it returns nothing reads `comm` any more. Nothing happens if it was not added.
  void remove(const Comm& comm) {
    bool last = false;
    {
      const Lock lock(shared_->mutex);
      if (shared_->comms.erase(&comm) == 0) return;
      last = shared_->comms.empty();
    }
    if (!last) return;
    const Lock lock(mutex_);
    {
      const Lock again(shared_->mutex);
      if (!shared_->comms.empty()) return;  // another one came meanwhile
    }
    if (server_ == nullptr) return;
    bootstrap::Service& service = *context_.service();
    service.post([&service, server = std::move(server_)] {
      server->stop();
      service.drop(server.get());
    });
    server_ = nullptr;
  }

 private:
  bootstrap::Context& context_;
  const std::shared_ptr<ServedComms<Comm>> shared_ = std::make_shared<ServedComms<Comm>>();
  Mutex mutex_;  // held while a server begins or ends
  std::shared_ptr<Server> server_ RW_GUARDED_BY(mutex_);
};

}  // namespace ropewalk::monitor
