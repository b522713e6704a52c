// One rank of a communicator: its parts, and the calls between them.
//
//   rank_status.h      what other threads see: phase, states of the ranks, messages
//   joining.h          from the root service's address to the ring
//   peer_links.h       connections to other ranks
//   ring.h             the link to the next living rank
//   gossip.h           notices about ranks, flooded and acknowledged
//   failure_detector.h heartbeats and silence
//   unreachable_peers.h, reachability.h    peers that cannot be connected to
//   departure.h        leaving and aborting
//   observer_log.h     what is reported to the communicator
//
// But for rank_status.h and observer_log.h all of it belongs to the service thread.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "bootstrap/departure.h"
#include "bootstrap/failure_detector.h"
#include "bootstrap/gossip.h"
#include "bootstrap/joining.h"
#include "bootstrap/observer_log.h"
#include "bootstrap/peer_links.h"
#include "bootstrap/rank_context.h"
#include "bootstrap/reachability.h"
#include "bootstrap/ring.h"
#include "bootstrap/unreachable_peers.h"

namespace ropewalk::bootstrap {

/// Threads: the public functions by any. Lifetime: held by the Service from join() until closed.
class BootstrapRank final : public std::enable_shared_from_this<BootstrapRank>,
                            private PeerLinks::Owner,
                            private Gossip::Owner,
                            private Joining::Owner {
 public:
  BootstrapRank(Service& service, RankOptions options);
  ~BootstrapRank() override = default;
  BootstrapRank(const BootstrapRank&) = delete;
  BootstrapRank& operator=(const BootstrapRank&) = delete;

  /// Starts to join, waits, throws why it failed.
  void join();
  /// Queues a copy of `data` for `peer`.
  void send(int peer, MessageChannel channel, std::uint32_t tag, std::span<const std::byte> data);
  /// As RankStatus'.
  std::vector<std::byte> receive(int peer, MessageChannel channel, std::uint32_t tag,
                                 Deadline deadline, std::string_view what);
  std::optional<std::vector<std::byte>> try_receive(int peer, MessageChannel channel,
                                                    std::uint32_t tag, std::string_view what) {
    return context_.status.try_receive(peer, channel, tag, what);
  }
  /// As RankStatus::handle().
  void on_message(std::uint32_t tag, RankStatus::MessageHandler handler) {
    context_.status.handle(tag, std::move(handler));
  }
  void watch(Observer* observer) { observers_.watch(observer); }
  /// Both start; wait_closed() waits until the others have acknowledged, PEER_LOSS_TIME at most.
  void leave();
  void abort(std::string_view reason);
  void wait_closed() { context_.status.wait_closed(); }

  [[nodiscard]] int rank() const noexcept { return context_.options.rank; }
  [[nodiscard]] int size() const noexcept { return context_.options.size; }
  /// After join().
  [[nodiscard]] const SocketAddress& address(int peer) const {
    return context_.record(peer).address;
  }

 private:
  // PeerLinks::Owner
  void on_established(PeerLink& link) override;
  void on_message(PeerLink& link, std::vector<std::byte>& message) override;
  void on_ended(int peer, const Closing& closing) override;
  void on_cannot_connect(int peer, const Closing& closing) override;
  void on_no_resources(const std::string& reason) override;
  // Gossip::Owner
  void on_final_notice(const Notice& notice) override;
  void on_suspicion(int rank, bool suspected) override;
  void on_flushed() override { departure_.proceed(); }
  // Joining::Owner
  void on_table() override { detector_.reset(); }
  void on_joined(const std::map<int, Closing>& losses) override;
  void on_join_failed(const Error& error) override;

  [[nodiscard]] bool joining() const noexcept { return context_.phase() == RankPhase::kJoining; }
  void adapt_soon();
  void close();

  ObserverLog observers_;
  RankContext context_;
  Reachability reachability_;
  PeerLinks links_;
  Ring ring_;
  Gossip gossip_;
  FailureDetector detector_;
  UnreachablePeers unreachable_;
  Departure departure_;
  Joining joining_;
  bool adapting_ = false;  // adapt_soon() was called
};

}  // namespace ropewalk::bootstrap
