// The links of one rank of a communicator: made when first asked for, by shared memory where the
// peer is on this host, over a transport where it is not.
//
// Asking never blocks: an end that is not connected yet is nullptr, and asking again goes on with
// connecting. Ask for all ends that a call needs, receive ends first (network_links.h).
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
#include <utility>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "executor/link_end.h"
#include "link/host_segment.h"
#include "link/network_links.h"
#include "link/route.h"
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
  /// Links to ranks of other hosts, with the given properties.
  [[nodiscard]] NetworkLinks& to_hosts() noexcept { return network_; }
  ~Links();
  Links(const Links&) = delete;
  Links& operator=(const Links&) = delete;

  /// The end of the link to (from) `peer` on `channel`, or nullptr while it connects.
  /// @throws Error kSystem if memory or sockets are exhausted, kPeerLost if the peer has died
  executor::SendEnd* send_end(int channel, int peer, const Route& route = {});
  executor::ReceiveEnd* receive_end(int channel, int peer, const Route& route = {});

  /// The transport that carries the network links; "" when every peer is local.
  [[nodiscard]] std::string network() const { return network_.network(); }

  /// Moves the network links.
  /// @return true when anything moved
  bool poll() { return network_.poll(); }
  /// As NetworkLinks::sleep. Memory links end no sleep.
  bool sleep(std::chrono::nanoseconds at_most) { return network_.sleep(at_most); }

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
  using Key = std::pair<int, int>;  // channel, peer

  bootstrap::Bootstrap& bootstrap_;
  std::vector<PeerReach> reach_;
  std::shared_ptr<HostSegment> segment_;
  executor::FifoShape shape_;
  std::map<Key, std::unique_ptr<executor::SendEnd>> memory_sends_;
  std::map<Key, std::unique_ptr<executor::ReceiveEnd>> memory_receives_;
  NetworkLinks network_;
};

}  // namespace ropewalk::link
