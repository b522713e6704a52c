// The thread that looks after the connections of a Transport while the program is elsewhere.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/file_descriptor.h"
#include "core/mutex.h"

namespace ropewalk::transport::rails {

using Clock = std::chrono::steady_clock;

/// What is looked after. Threads: any; it has a lock of its own.
class Tended {
 public:
  Tended() = default;
  virtual ~Tended() = default;
  Tended(const Tended&) = delete;
  Tended& operator=(const Tended&) = delete;

  enum class Tending : std::uint8_t {
    kIdle,     ///< look again when it suits
    kBusy,     ///< look again soon: something is being made
    kClosing,  ///< as kBusy, and nobody else looks any more
    kOver,     ///< look no more
  };
  /// Moves what can be moved. Never throws.
  virtual Tending tend(Clock::time_point now) = 0;
  /// The network interface `name` came up or went down.
  virtual void link_changed(const std::string& name, bool up) = 0;
};

/// Tells of network interfaces that come up or go down in this network namespace (netlink,
/// RTMGRP_LINK). Where the system refuses, it tells nothing.
class LinkEvents {
 public:
  LinkEvents();
  struct Event {
    std::string interface;
    bool up = false;
  };
  /// What has happened since.
  std::vector<Event> poll();
  [[nodiscard]] int fd() const noexcept { return socket_.get(); }

 private:
  FileDescriptor socket_;
};

class Keeper {
 public:
  Keeper() = default;
  ~Keeper();  ///< settles; then nothing is looked after
  Keeper(const Keeper&) = delete;
  Keeper& operator=(const Keeper&) = delete;

  /// The first call starts the thread. @throws Error kSystem when there is none to be had
  void add(std::shared_ptr<Tended> tended);
  /// Waits until no Tended is closing, for two seconds at most.
  void settle();
  /// Something is to be done soon.
  void wake();

 private:
  void run();

  Mutex mutex_;
  std::vector<std::shared_ptr<Tended>> all_ RW_GUARDED_BY(mutex_);
  std::thread thread_;
  FileDescriptor wake_;
  std::atomic<bool> stop_ = false;
  std::atomic<int> closing_ = 0;
  std::atomic<std::uint64_t> rounds_ = 0;
};

}  // namespace ropewalk::transport::rails
