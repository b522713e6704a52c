// The links of one rank of a communicator: made when first asked for, by shared memory where the
// peer is on this host, over a transport where it is not.
//
// Asking never blocks: an end that is not connected yet is nullptr, and asking again goes on with
// connecting. Ask for all ends that a call needs, receive ends first, so that no rank waits for a
// handle that its peer sends only after waiting itself.
//
// A network link whose NIC cannot be used when it is wanted (it listens or connects with an error,
// or does not connect within 4 s) takes the next rail, with a line in the log; where none is left,
// the error names ranks and NIC. The receiver leads: it says on which rail it listens, and goes on
// to the next one when it cannot, or when the sender says that it does not get there.
//
// Threads: one at a time.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "executor/fifo.h"
#include "link/host_segment.h"
#include "link/network_link.h"
#include "link/rails.h"
#include "link/route.h"
#include "link/sealed_connection.h"
#include "transport/transport.h"

namespace ropewalk::link {

/// How this rank reaches a peer.
struct PeerReach {
  int local_rank = -1;      ///< among the ranks that share memory with this one; -1: by network
  int process = 0;          ///< 0: this process, else the peer's pid
  bool by_address = false;  ///< one copy from the peer's memory works, in both directions
};

class Links {
 public:
  /// `transport` may be null when every peer is local. The references outlive this object.
  Links(bootstrap::Bootstrap& bootstrap, std::vector<PeerReach> reach,
        std::shared_ptr<HostSegment> segment, std::unique_ptr<transport::Transport> transport,
        const executor::FifoShape& shape);
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  /// Network links are paced from now on, and those of one pair on one channel differ by route.
  /// @pre no link was asked for; on all ranks or none
  void pace(Pacer pacer) { pacer_ = std::move(pacer); }

  /// Network links take these rails from now on: those that a route names, else channel c rail c
  /// modulo their number, and those from `channels` on, which carry no collectives, the first.
  /// @param nics_of_route  null where routes name none that are there. @pre as pace()
  void spread(Rails rails, int channels, NicsOfRoute nics_of_route = {}) {
    rails_ = std::move(rails);
    spread_channels_ = channels;
    nics_of_route_ = std::move(nics_of_route);
  }

  /// Network links are sealed from now on (sealed_connection.h). @pre as pace(); on all ranks or
  /// none
  void seal() { seals_ = true; }

  /// The end of the link to (from) `peer` on `channel`, or nullptr while it connects.
  /// @throws Error kSystem when memory or sockets are short, kPeerLost when the peer is gone
  executor::SendEnd* send_end(int channel, int peer, const Route& route = {});
  executor::ReceiveEnd* receive_end(int channel, int peer, const Route& route = {});

  /// The transport that carries the network links; "" when every peer is local.
  [[nodiscard]] std::string network() const { return transport_ ? transport_->name() : ""; }

  /// Moves the network links. @return true when anything moved
  bool poll();

  /// After an error: stops reading buffers of other ranks of this process, whatever was begun.
  void give_back_buffers() noexcept;
  /// After an error, before it is returned: until then other ranks of this process may read buffers
  /// of this one. Waits for those that read now, a chunk at most.
  /// @pre give_back_buffers() was called, also for the other ranks that this thread drives
  void take_back_buffers() noexcept;

  /// A chunk that arrived at this rank and was not taken: its peer and tag.
  struct Untaken {
    int peer = -1;
    executor::CallTag tag;
  };
  /// Of every link that this rank receives from; also of those from ranks of this host that it
  /// never asked for, where `unasked` says so (a system call for each).
  [[nodiscard]] std::vector<Untaken> untaken(bool unasked);

 private:
  using Key = std::pair<int, int>;                        // channel, peer
  using RoutedKey = std::tuple<int, int, std::uint32_t>;  // and number of the route

  // The devices that a route names, for a link to or from `peer`.
  [[nodiscard]] std::optional<Rails::Pair> named_by(const Route& route, int peer, bool sends) const;
  // Tells a network link from others between the same ranks on the same channel. Both ends compute
  // the same.
  [[nodiscard]] std::uint32_t number(const Route& route, int peer, bool sends) const;
  // The devices that a network link may take, the first wanted first. Both ends compute the same.
  [[nodiscard]] std::vector<Rails::Pair> devices(int channel, int peer, const Route& route,
                                                 bool sends) const;

  bootstrap::Bootstrap& bootstrap_;
  std::vector<PeerReach> reach_;
  std::shared_ptr<HostSegment> segment_;
  executor::FifoShape shape_;
  Pacer pacer_;
  Rails rails_;
  int spread_channels_ = 0;
  NicsOfRoute nics_of_route_;
  bool seals_ = false;
  std::unique_ptr<transport::Transport> transport_;  // outlives its listeners and connections
  std::map<Key, std::unique_ptr<executor::SendEnd>> memory_sends_;
  std::map<Key, std::unique_ptr<executor::ReceiveEnd>> memory_receives_;
  // A connection that may not have been verified yet.
  struct PendingSend {
    std::vector<Rails::Pair> devices;
    std::size_t attempt = 0;  // index into devices, as the receiver says
    std::chrono::steady_clock::time_point begun{};
    std::unique_ptr<transport::Connector> connector;
    std::unique_ptr<transport::SendConnection> connection;
    LinkKey key{};  // where links are sealed
  };
  struct PendingReceive {
    std::vector<Rails::Pair> devices;
    std::size_t attempt = 0;
    std::unique_ptr<transport::Listener> listener;
    LinkKey key{};
  };
  // Whether a connection is there, if not yet verified.
  bool connect(PendingSend& pending, const RoutedKey& key);
  void listen(PendingReceive& pending, const RoutedKey& key);
  [[nodiscard]] std::string device_name(const Rails::Pair& pair) const {
    return transport_->properties(pair.own).name;
  }

  std::map<RoutedKey, PendingSend> pending_sends_;
  std::map<RoutedKey, PendingReceive> pending_receives_;
  std::map<RoutedKey, std::unique_ptr<NetworkSender>> network_sends_;
  std::map<RoutedKey, std::unique_ptr<NetworkReceiver>> network_receives_;
  std::uint64_t turns_ = 0;  // of poll()
};

}  // namespace ropewalk::link
