// Operations on windows whose memory this rank cannot address: carried over network links, one each
// way for each pair of ranks, and served at the other end by whoever polls there.
//
// A put is cut into chunks that say where they belong (frame.h). A get is a request, which the
// owner of the memory answers with chunks of its own; a flush is a request that is answered once
// all before it was done. Long chunks are sent from the source where the transport can; then it may
// be reused when the chunk is consumed, else when it was copied to a slot.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "executor/link_end.h"
#include "link/network_links.h"
#include "message/frame.h"
#include "message/gpu_inbox.h"
#include "message/operation.h"
#include "message/window.h"

namespace ropewalk::message {

class Carrier {
 public:
  /// Of the links that it uses, beside those of collectives.
  static link::NetworkLinks::Options link_options();

  explicit Carrier(std::unique_ptr<link::NetworkLinks> links) : links_(std::move(links)) {}

  /// From now on the link to and from `peer` exists, and connects as it is polled.
  /// @throws Error kSystem, kPeerLost
  void connect(int peer);
  /// Chunks for `window` may come from now on, until it is removed.
  /// @throws Error kCuda
  void add(Window& window);
  /// What has come for it is there. @throws as add(); kTimeout
  void remove(const Window& window);

  /// Starts one of kPut, kGet, kSignal or kFlush; ends it in poll(). It must live until then.
  /// @pre connect() was called for its peer
  void start(Operation& operation);
  /// Sends a frame for queues with a copy of `data`, less than what is lent from where it lies.
  void post(int peer, const Frame& frame, std::span<const std::byte> data);
  /// Moves the links, serves what has come, hands on what was started.
  /// @return true when anything moved
  /// @throws Error kPeerLost naming the peer; kSystem
  bool poll();

  /// `peer` is gone in order: ends its operations with `error`, which leaves the communicator
  /// whole.
  void drop(int peer, const Error& error);
  /// All that this rank has to send, answers included, is with the transport, which is done with
  /// it.
  [[nodiscard]] bool drained();
  /// This rank leaves in order. Its ends that send are closed while the peers' ends that receive
  /// are there: a connection whose sender was closed so needs no peer to end a receive of it.
  void leave();
  /// Ends all operations.
  void fail_all(const Error& error);
  /// Whether `window` has operations that have not ended.
  [[nodiscard]] bool busy(const Window& window) const;

 private:
  // Something to be written to a link: of an operation, or an answer.
  struct Item {
    Frame frame;
    Operation* operation = nullptr;
    const std::byte* data = nullptr;
    std::uint64_t bytes = 0;
    std::uint64_t moved = 0;
    const Window* window = nullptr;  // which copies data that is in memory of a GPU; else null
    bool lent = false;               // a chunk was sent from where it lies
    std::vector<std::byte> copied;   // of post(), which is its data
    GetRequest request;              // of kGet, which is its data
  };
  // Handed on, and to be ended when the link's chunk `last` is consumed.
  struct Lent {
    Operation* operation = nullptr;
    std::uint64_t last = 0;
  };
  struct Peer {
    link::NetworkSender* sender = nullptr;
    link::NetworkReceiver* receiver = nullptr;
    std::deque<Item> items;
    std::deque<Lent> lent;
    std::map<std::uint32_t, Operation*> asked;  // by number, those that wait for an answer
    std::uint32_t last_number = 0;
  };

  bool hand_on(Peer& peer);
  static bool write(Peer& peer, Item& item);
  static bool end_lent(Peer& peer);
  bool serve(int rank, Peer& peer);
  void handle(int rank, Peer& peer, const Frame& frame, const executor::SlotHeader& header,
              const std::byte* data);
  Window& window_of(const Frame& frame) const;
  KernelQueues& queues_of(const Frame& frame) const;
  // Null where the memory is the host's.
  GpuInbox* inbox_of(const Window& window) const;
  void settle();
  template <typename Function>
  static void for_each_operation(const Peer& peer, Function&& function);

  std::unique_ptr<link::NetworkLinks> links_;
  std::map<int, Peer> peers_;
  std::map<std::uint32_t, Window*> windows_;
  std::map<transport::window::Gpu*, std::unique_ptr<GpuInbox>> inboxes_;
  bool left_ = false;
};

}  // namespace ropewalk::message
