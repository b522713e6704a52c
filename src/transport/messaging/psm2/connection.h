// The common parts of both ends of a connection over libpsm2, and the protocol of messages.
//
// A message is one message of libpsm2, matched by libpsm2: receives of equal tags are met in the
// order in which they were posted, by messages in the order in which they were sent (in-order
// requests). Of a tag's 96 bits
//
//   word 0   the message's tag
//   word 1   who receives it: its number, which its endpoint counts, and 16 random bits
//   word 2   32 more random bits of the receiving end's, exclusive-or the message's length, or with
//            VERIFY=all 32 bits of its checksum
//
// a receive matches words 0 and 1, from any source, and checks word 2 when the message has come,
// since libpsm2 does not report the length of a message that is too long. (The public plugin for
// NCCL over PSM2 matches a counter of the receiving process from any source, 64 bits: a stray
// sender that has the same value is taken for the peer.) Nothing is sent for a receive, so a
// message takes as long as libpsm2 takes. With VERIFY=all receives are posted only when their
// message has come.
//
// Flow control: endpoint.h says why. Small messages count as under way until a probe that was sent
// behind them, an empty synchronous message, has been met; long ones, which wait in the sender for
// their receive (libpsm2's rendezvous), until they have ended.
//
// A side channel beside each connection (side_channel.h) carries ids and reasons. When it closes,
// the peer has died, which libpsm2 does not report.
//
// Giving up: an end that is destroyed with messages under way waits until its memory is not used:
// a receive is withdrawn from libpsm2; a long send, which libpsm2 cannot withdraw, waits for the
// peer to say that it takes no more messages, or to end. If nothing comes within kPatience,
// the endpoint is no longer used, and all of its connections end.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/error.h"
#include "transport/messaging/psm2/endpoint.h"
#include "transport/messaging/psm2/gpus.h"
#include "transport/messaging/side_channel.h"
#include "transport/messaging/tcp/connection.h"
#include "transport/messaging/verification.h"
#include "transport/transport.h"

namespace ropewalk::transport::psm2 {

using messaging::Note;
using messaging::SideChannel;
using messaging::Verify;

inline constexpr std::size_t kMaxRequests = 64;
inline constexpr std::size_t kMaxGroup = 8;
/// libpsm2 counts bytes in 32 bits.
inline constexpr std::size_t kMaxMessageBytes = 0xffffffff;
/// Up to here messages are sent at once, and copied by libpsm2: below its own limits (16,000 bytes
/// over shared memory, 64,000 over an adapter), and one packet of an adapter.
inline constexpr std::size_t kEagerBytes = 8 << 10;
/// Word 1 of messages is below; it is added to that of probes.
inline constexpr std::uint32_t kProbe = 0x80000000;
/// All bits of a word are matched.
inline constexpr std::uint32_t kWhole = 0xffffffff;

/// Threads: those of the connection, and those that drive the endpoint. All functions but the
/// constructor are called with its mutex held.
class Connection : public Member {
 public:
  Connection(Lease lease, SideChannel side, std::string peer, Verify verify, Gpus& gpus,
             tcp::Linger& linger, bool receives);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  void on_retired(const std::string& reason) final RW_NO_THREAD_ANALYSIS;
  void on_wait() final RW_NO_THREAD_ANALYSIS { look_at_side(); }

 protected:
  using Clock = std::chrono::steady_clock;
  /// The longest that giving up waits for a peer that is there, and for one that is not.
  static constexpr auto kPatience = std::chrono::seconds(1);
  static constexpr auto kLittlePatience = std::chrono::milliseconds(20);

  /// The end of each constructor: from here on the endpoint calls it.
  void join();
  /// The end of each destructor: not any more.
  void leave() RW_REQUIRES(port_.mutex);
  /// Progress, of the endpoint and of this end.
  void drive() RW_REQUIRES(port_.mutex);
  /// Drives until `done`, at most for kPatience (less once the peer has ended).
  /// @return whether it was done
  template <typename Done>
  bool drive_until(Done done) RW_REQUIRES(port_.mutex);
  /// Breaks the connection and notifies the peer; the first reason is kept.
  void fail(Errc code, const std::string& reason) RW_REQUIRES(port_.mutex);
  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  void throw_if_failed() const;
  /// The Error that every call throws from now on.
  [[nodiscard]] Error named(Errc code, const std::string& reason) const;
  /// libpsm2's text for a result.
  void check(abi::Error error, const char* call) RW_REQUIRES(port_.mutex);
  [[nodiscard]] bool peer_gone() const noexcept { return side_.ended(); }
  /// The peer was closed, and this endpoint has been polled long enough since to have got all that
  /// it had sent.
  [[nodiscard]] bool drained() const RW_REQUIRES(port_.mutex);
  /// Of a small window each message is asked for (kFlagSync), since no probe fits in.
  [[nodiscard]] bool asks_for_each() const noexcept { return kPieceUnits > window_ / 2; }
  /// The connection is made; the helper thread is not needed for it any more.
  void end_setup() RW_REQUIRES(port_.mutex);

  virtual void on_greeted() = 0;
  virtual void on_note(const SideChannel::Received& note) = 0;
  /// What this end has to do in each drive().
  virtual void attend() = 0;
  /// It has just failed.
  virtual void on_failed() = 0;

  Lease lease_;
  Endpoint& port_;
  SideChannel side_;
  const std::string peer_name_;
  const Verify verify_;
  Gpus& gpus_;
  std::uint64_t seed_ = 0;  // of the pattern
  bool greeted_ = false;
  bool verifies_ = false;             // both ends want it
  bool sums_ = false;                 // and of every message
  std::atomic<bool> closed_ = false;  // the peer was closed, or its process has ended
  // The receiving end's.
  std::uint32_t identity_ = 0;  // word 1
  std::uint32_t nonce_ = 0;     // word 2
  unsigned window_ = 0;
  abi::EndpointId peer_id_ = 0;

 private:
  void greet() RW_REQUIRES(port_.mutex);
  void take_hello(const SideChannel::Received& note) RW_REQUIRES(port_.mutex);
  void look_at_side() RW_REQUIRES(port_.mutex);

  tcp::Linger& linger_;
  const bool receives_;
  bool in_setup_ = true;
  bool shares_memory_ = false;
  std::atomic<bool> failed_ = false;
  std::optional<Error> error_;
  unsigned drives_ = 0;
  unsigned idle_since_closed_ = 0;
  Clock::time_point looked_{};
  Clock::time_point closed_at_{};
  Clock::time_point last_progress_{};
};

template <typename Done>
bool Connection::drive_until(Done done) {
  const Clock::time_point since = Clock::now();
  while (!done()) {
    if (port_.retired()) return false;
    port_.poll_all();
    if (Clock::now() - since > (peer_gone() ? Clock::duration(kLittlePatience) : kPatience)) {
      return done();
    }
  }
  return true;
}

/// One message of the pattern for each path that a message can take.
inline constexpr std::array<std::size_t, 3> kPatternBytes = {8, kEagerBytes, 65'543};

}  // namespace ropewalk::transport::psm2
