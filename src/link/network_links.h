// The network links of one rank of a communicator: made when first asked for, and moved by poll().
//
// A link whose NIC cannot be used when it is wanted (it listens or connects with an error, or does
// not connect within 4 s) takes the next rail, with a line in the log; where none is left, the
// error names ranks and NIC. The receiver leads: it says on which rail it listens, and goes on to
// the next one when it cannot, or when the sender says that it does not get there.
//
// Nothing here blocks: an end's memory is there at once, and poll() goes on with connecting until
// data can move. Who polls decides how links progress: the thread that waits for a call
// (comm/task.h), or a thread of its own where nobody on the host waits (progress_thread.h).
//
// Threads: one at a time.
#pragma once

#include <poll.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "executor/link_end.h"
#include "executor/traffic.h"
#include "link/flagged_network_link.h"
#include "link/gpu_slots.h"
#include "link/network_link.h"
#include "link/rails.h"
#include "link/route.h"
#include "link/sealed_connection.h"
#include "transport/transport.h"

namespace ropewalk::link {

class NetworkLinks {
 public:
  /// Properties of the links; equal on all ranks.
  struct Options {
    executor::FifoShape shape;  ///< of host memory's links
    /// Links with different ones may exist beside each other between two ranks.
    std::uint32_t tag = 0;
    FifoMaker make_memory = host_fifo;
    /// The walkers are blocks of a GPU, which count in the links' memory alone.
    bool by_blocks = false;
    /// Blocks' links of protocol ll, whose shape is their own.
    bool flagged = false;
    FlaggedTags tags = {};  ///< where `flagged`
    /// Blocks' links of protocol simple: where their slots are (gpu_slot_link.h); null: in pinned
    /// memory. On all ranks or none.
    GpuSlots* gpu_slots = nullptr;
  };

  /// `bootstrap` outlives this. `transport` may be null when no link is asked for.
  NetworkLinks(bootstrap::Bootstrap& bootstrap, std::unique_ptr<transport::Transport> transport,
               Options options);
  ~NetworkLinks();
  NetworkLinks(const NetworkLinks&) = delete;
  NetworkLinks& operator=(const NetworkLinks&) = delete;

  /// Links are paced from now on, and those of one pair on one channel differ by route.
  /// @pre no link was asked for; on all ranks or none
  void pace(Pacer pacer) { pacer_ = std::move(pacer); }
  /// Links take these rails from now on: those that a route names, else channel c rail c modulo
  /// their number, and those from `channels` on, which carry no collectives, the first.
  /// @param nics_of_route  null where routes name none that are there.
  /// @pre as pace()
  void spread(Rails rails, int channels, NicsOfRoute nics_of_route = {}) {
    rails_ = std::move(rails);
    spread_channels_ = channels;
    nics_of_route_ = std::move(nics_of_route);
  }
  /// Links are sealed from now on (sealed_connection.h).
  /// @pre as pace(); on all ranks or none
  void seal() { seals_ = true; }
  [[nodiscard]] const Rails& rails() const noexcept { return rails_; }
  /// This rank's NIC for links to `peer` on a channel that no route names.
  [[nodiscard]] std::string nic(int channel, int peer) const;
  /// The bytes that links send are counted there, by peer, transport and NIC.
  /// @pre no link was asked for; `traffic` outlives this
  void count_in(executor::Traffic& traffic) noexcept { traffic_ = &traffic; }

  /// The link to (from) `peer` on `channel`. Ask for all that a call needs, receive links first, so
  /// that no rank waits for a handle that its peer sends only after waiting itself.
  /// @throws Error kSystem if memory or sockets are exhausted, kPeerLost if the peer has died
  NetworkSender& sender(int channel, int peer, const Route& route = {});
  NetworkReceiver& receiver(int channel, int peer, const Route& route = {});

  /// Goes on with connecting, and moves data.
  /// @return true when anything moved
  /// @throws Error kPeerLost naming the peer; as sender()
  bool poll();

  /// Sleeps until poll() may move something, or `at_most` has passed.
  /// @return false, at once, if a link must be polled (it connects, or its transport has nothing to
  ///         sleep on)
  bool sleep(std::chrono::nanoseconds at_most);

  /// Every link that was asked for is.
  [[nodiscard]] bool connected() const;

  /// All that was published is with the transport, which is done with it.
  [[nodiscard]] bool drained();

  /// Closes the links to all peers; what was published on them should be drained().
  void close_senders();

  /// Closes the links to and from `peer`, which has left, whatever is on them.
  void forget(int peer);

  /// Of every link that was asked for.
  template <typename Function>
  void for_each_receiver(Function&& function) {
    for (auto& [key, link] : receives_) function(*link.receiver);
  }

  /// The transport that carries the links; "" without one.
  [[nodiscard]] std::string network() const { return transport_ ? transport_->name() : ""; }

 private:
  using Key = std::tuple<int, int, std::uint32_t>;  // channel, peer, number of the route
  // How long a link has moved nothing, where nobody says which one is waited for: with blocks of a
  // GPU.
  struct Rest {
    unsigned turns = 0;
    void count(bool moved) noexcept { turns = moved ? 0 : turns + 1; }
  };
  [[nodiscard]] std::unique_ptr<NetworkSender> make_sender(int peer) const;
  [[nodiscard]] std::unique_ptr<NetworkReceiver> make_receiver(int peer) const;
  struct SendLink {
    Rest rest;
    std::vector<Rails::Pair> devices;
    std::size_t attempt = 0;  // index into devices, as the receiver says
    std::chrono::steady_clock::time_point begun{};
    std::unique_ptr<transport::Connector> connector;
    std::unique_ptr<transport::SendConnection> connection;  // perhaps not verified yet
    std::unique_ptr<NetworkSender> sender;
    Route route;
    LinkKey key{};  // where links are sealed
  };
  struct ReceiveLink {
    Rest rest;
    std::vector<Rails::Pair> devices;
    std::size_t attempt = 0;
    std::unique_ptr<transport::Listener> listener;
    std::unique_ptr<NetworkReceiver> receiver;
    LinkKey key{};
  };

  // Whether this turn polls the link: one that has rested long only now and then, since a look at
  // it may be a system call and each turn's length is latency for the others.
  [[nodiscard]] bool is_due(const Rest& rest) const noexcept;
  // Of a link that is sealed: its longest message, and how many may be in flight.
  [[nodiscard]] std::size_t message_bytes() const noexcept;
  [[nodiscard]] std::uint32_t messages() const noexcept;
  // Goes on with making a link.
  void connect(const Key& key, SendLink& link);
  void accept(const Key& key, ReceiveLink& link);
  // Whether a connection is there, if not yet verified.
  bool dial(const Key& key, SendLink& link);
  void listen(const Key& key, ReceiveLink& link);
  // The devices that a route names, for a link to or from `peer`.
  [[nodiscard]] std::optional<Rails::Pair> named_by(const Route& route, int peer, bool sends) const;
  // Distinguishes a link from others between the same ranks on the same channel. Both ends compute
  // the same value.
  [[nodiscard]] std::uint32_t number(const Route& route, int peer, bool sends) const;
  // The devices that a link may take, the first wanted first. Both ends compute the same.
  [[nodiscard]] std::vector<Rails::Pair> devices(int channel, int peer, const Route& route,
                                                 bool sends) const;
  [[nodiscard]] std::string device_name(const Rails::Pair& pair) const;
  [[nodiscard]] std::uint32_t tag_of(std::uint32_t kind, const Key& key) const noexcept;

  bootstrap::Bootstrap& bootstrap_;
  Options options_;
  Pacer pacer_;
  Rails rails_;
  int spread_channels_ = 0;
  NicsOfRoute nics_of_route_;
  bool seals_ = false;
  executor::Traffic* traffic_ = nullptr;
  std::unique_ptr<transport::Transport> transport_;  // outlives its listeners and connections
  std::map<Key, SendLink> sends_;
  std::map<Key, ReceiveLink> receives_;
  std::uint64_t turns_ = 0;  // of poll()
  std::vector<pollfd> descriptors_;
};

}  // namespace ropewalk::link
