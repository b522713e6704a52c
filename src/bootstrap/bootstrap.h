// How a rank joins a communicator, and its out-of-band messages.
//
// Every rank connects to the root service named by the unique id (unique_id.h), proves that it
// holds the secret and gets the same proof back (handshake.h), and sends the address of a listener
// of its own. When all are there the root sends the table of all addresses to each. Each rank then
// connects to the next one (a ring, as NCCL's bootstrap makes) and says so; when all have, the root
// releases all, or sends all the reason why not. Joining is all or nothing, and every failure names
// the rank and the field. Further connections between ranks are made when first needed, from the
// table.
//
// Collectives use a binomial tree rooted at rank 0: gather up, broadcast down. See bootstrap.cc for
// what that was measured against.
//
// Messages are encrypted and authenticated. Ranks of one communicator trust each other.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/context.h"
#include "bootstrap/monitor.h"
#include "bootstrap/unique_id.h"
#include "core/deadline.h"
#include "core/settings.h"

namespace ropewalk::bootstrap {

class BootstrapRank;

/// One rank of one communicator.
///
/// Threads: send and recv may be called by several threads at once; the collectives by one at a
/// time; abort() at any time by any thread: it ends the calls that block. Several ranks of one
/// communicator, and many communicators, may live in one process.
///
/// Errors of every call that waits: kPeerLost naming the rank and why (it died, left or aborted),
/// kTimeout naming the ranks that did not answer, kAborted after abort() here.
class Bootstrap {
 public:
  /// Joins. All ranks pass the same id and size, and different ranks.
  ///
  /// @throws Error kInvalidArgument for bad id, rank or size; the other ranks get the same error
  /// @throws Error kInvalidUsage for an id that was used before, or two ranks with one number
  /// @throws Error kTimeout naming the ranks that did not join; kPeerLost naming one that died
  static std::unique_ptr<Bootstrap> join(const UniqueId& id, int rank, int size,
                                         const Config& config, Deadline deadline);
  static std::unique_ptr<Bootstrap> join(const UniqueId& id, int rank, int size,
                                         const Config& config, Deadline deadline, Context& context);

  /// abort("destroyed without leaving") unless leave() or abort() was called.
  ~Bootstrap();
  Bootstrap(const Bootstrap&) = delete;
  Bootstrap& operator=(const Bootstrap&) = delete;

  [[nodiscard]] int rank() const noexcept;
  [[nodiscard]] int size() const noexcept;
  /// Where `peer` listens: an address of its host that this rank can reach. For transports that
  /// need one. The port is the bootstrap's.
  [[nodiscard]] const SocketAddress& address(int peer) const;

  // ---- collectives: all ranks call, in the same order -----------------------------------

  /// `all` holds size() blocks of `bytes_each`, block rank() filled in; on return all are.
  void all_gather(std::span<std::byte> all, std::size_t bytes_each, Deadline deadline);
  /// `data` of `root` to all; equal length everywhere.
  void broadcast(std::span<std::byte> data, int root, Deadline deadline);
  void barrier(Deadline deadline);

  // ---- messages -------------------------------------------------------------------------

  /// Copies and queues `data` for `peer` (may be this rank); returns without waiting for it.
  /// Messages of one sender with one tag arrive in order.
  void send(int peer, std::uint32_t tag, std::span<const std::byte> data);
  /// Waits for the next message of `peer` with `tag`.
  std::vector<std::byte> recv(int peer, std::uint32_t tag, Deadline deadline);
  /// The same into `data`.
  /// @throws Error kInternal when the lengths differ
  void recv(int peer, std::uint32_t tag, std::span<std::byte> data, Deadline deadline);

  /// The next message of `peer` with `tag` if it is there.
  /// @throws as recv, except kTimeout
  [[nodiscard]] std::optional<std::vector<std::byte>> try_recv(int peer, std::uint32_t tag);

  /// From now on messages with `tag`, also those that have arrived, go to `handler` and not to
  /// recv(). The service thread calls it, one message at a time (for those that have arrived: this
  /// thread, before this returns). It returns soon, throws nothing, and may send to other ranks. An
  /// empty one ends it: when that returns, no call is in progress. Neither from within a handler.
  using MessageHandler = std::function<void(int peer, std::span<const std::byte> message)>;
  void on_message(std::uint32_t tag, MessageHandler handler);

  static constexpr std::size_t kMaxMessageBytes = std::size_t{64} << 20;

  // ---- state of the other ranks ---------------------------------------------------------

  /// Calls `observer` from the service thread from now on; what has happened since joining is
  /// reported first, before this returns, by this thread. nullptr ends it: when watch returns, no
  /// call is in progress (do not call it from within the observer).
  void watch(Observer* observer);

  /// Leaves in order: notifies the others and returns when the neighbours have acknowledged (at
  /// most PEER_LOSS_TIME later). Queued messages are delivered first. The others see on_left, not
  /// on_lost. Only destruction is valid afterwards.
  void leave();

  /// Aborts: calls that block here end with kAborted, the others see on_abort. Does not wait. A
  /// second call, or one after leave(), does nothing.
  void abort(std::string_view reason);

 private:
  explicit Bootstrap(std::shared_ptr<BootstrapRank> its_rank, std::shared_ptr<Service> service);
  void exchange_up(std::span<std::byte> all, std::size_t bytes_each, std::uint32_t tag,
                   Deadline deadline);
  std::vector<std::byte> receive_down(int root, std::uint32_t tag, Deadline deadline);
  void send_down(std::span<const std::byte> data, int root, std::uint32_t tag);

  std::shared_ptr<Service> service_;
  std::shared_ptr<BootstrapRank> rank_;
  std::uint32_t next_collective_ = 0;
};

}  // namespace ropewalk::bootstrap
