// A listening socket that hands on connections which have proven the secret.
//
// Strangers cost little: at most kMaxPending connections of a listener are between accept and
// proof, the oldest goes when another comes, each has kProofTime, and each holds a socket and less
// than a kilobyte. A rank that was pushed out by a flood connects again (clients of the root and of
// ranks retry), and needs to get through only once.
#pragma once

#include <chrono>
#include <functional>
#include <list>
#include <memory>
#include <optional>

#include "bootstrap/connection.h"

namespace ropewalk::bootstrap {

/// Service thread only.
class Listener {
 public:
  using Accepted = std::function<void(std::unique_ptr<Connection>)>;
  using Starved = std::function<void(const std::string& reason)>;

  /// `accepted` gets connections that are established; it must set their owner. `starved` is called
  /// when none can be taken, for want of descriptors or memory that no stranger holds, or for
  /// kStarvedTime on end; it is tried again nevertheless.
  Listener(Service& service, FileDescriptor socket, const Secret& secret, const ServiceId& id,
           Accepted accepted, Starved starved = {});
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// Ends the connections that are not established, and takes no more: `accepted` is not called
  /// again, even for connections that epoll has already reported. May be called from `accepted`.
  void stop();

  static constexpr std::size_t kMaxPending = 512;
  static constexpr std::chrono::seconds kProofTime{5};
  static constexpr std::chrono::milliseconds kStarvedTime{500};
  /// For want of descriptors a connection goes only when it is older: a rank has proven itself long
  /// before, and one that is ended while it does so may take itself for connected.
  static constexpr std::chrono::milliseconds kHandshakeTime{200};

 private:
  void on_ready();
  void admit(FileDescriptor socket);
  void pause();

  Service& service_;
  FileDescriptor socket_;
  Secret secret_;
  ServiceId id_;
  Accepted accepted_;
  Starved starved_;
  std::uint64_t key_ = 0;
  struct Pending {
    std::unique_ptr<Connection> connection;
    Service::Clock::time_point since;
  };
  std::list<Pending> pending_;  // oldest first
  bool paused_ = false;
  std::optional<Service::Clock::time_point> starved_since_;  // none was established since
  Service::TimerKey resume_{};
};

}  // namespace ropewalk::bootstrap
