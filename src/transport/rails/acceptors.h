// The listeners of an end: one for each device, kept open as long as a connection that came through
// them may have a rail to make again.
#pragma once

#include <deque>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "transport/rails/context.h"
#include "transport/rails/receiver.h"
#include "transport/rails/wire.h"
#include "transport/transport.h"

namespace ropewalk::transport::rails {

/// Threads: any.
class Acceptors final : public Tended {
 public:
  /// @throws Error kSystem when no device can listen
  explicit Acceptors(const Context& context);
  [[nodiscard]] const Handle& handle() const noexcept { return handle_; }
  /// A connection of which a first rail arrived; null: none.
  std::shared_ptr<ReceiverCore> take_new();
  /// Nobody takes new connections any more.
  void close();

  Tending tend(Clock::time_point now) override;
  void link_changed(const std::string& name, bool up) override;

 private:
  struct Acceptor {
    const Device* device = nullptr;
    std::unique_ptr<Listener> listener;
  };
  void poll(Clock::time_point now) RW_REQUIRES(mutex_);
  void welcome(std::unique_ptr<ArrivingRail> rail, const Hello& hello) RW_REQUIRES(mutex_);

  const Context& context_;
  Handle handle_{};
  std::vector<std::byte> devices_;  // encoded
  Mutex mutex_;
  std::vector<Acceptor> acceptors_ RW_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<ArrivingRail>> arriving_ RW_GUARDED_BY(mutex_);
  // Of all that ever came: one whose core is gone is not let in again.
  std::map<Identity, std::weak_ptr<ReceiverCore>> cores_ RW_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<ReceiverCore>> new_ RW_GUARDED_BY(mutex_);
  bool closed_ RW_GUARDED_BY(mutex_) = false;
};

}  // namespace ropewalk::transport::rails
