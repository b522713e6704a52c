// The common parts of both ends of a connection over a fabric, and the protocol of messages.
//
// Message k of a tag meets receive k of that tag; each end counts, so that nothing depends on the
// order in which the fabric delivers. Small messages (up to kEagerBytes) are sent at once, as many
// as kEagerCredits permit before their receives are posted; the receiver holds those that came
// early. A longer message waits in the sender for its receive, so that nothing long is ever held by
// a provider, and none meets a receive that is too short, which some providers do not survive:
//
//   providers with RMA                              providers without
//   receiver  posts a receive -> kAnnounce(address) sender    -> kRequest(bytes)
//   sender    writes it there, then -> kDone        receiver  posts a tagged receive -> kGrant(tag)
//                                                   sender    sends it with that tag
//
// While the sender knows enough receives, further ones are announced several at once. Over sockets,
// where a message takes several system calls, a write carries a word for the receiver instead of a
// separate kDone (wire.h).
//
// Small messages that follow each other at once leave as one, a kJoined (more_follow()).
//
// A sender of a long message without an announced receive sends kRequest in both cases, so that a
// receive that is too short is noticed. In a steady state receives are posted before the
// messages come, so the announcement has crossed already. Writing also leaves out the provider's
// own rendezvous, which takes a further round trip.
//
// Messages from registered GPU memory are never copied by the CPU: small ones, too, wait for their
// receives and are sent as long ones are. If a message from host memory arrives for a receive into
// GPU memory, the NIC reads it from the buffer in which it arrived.
//
// When an end is given up with a message under way, its memory must not be touched later: it waits
// for the provider, up to kPatience, and the receiving end for the sender to say that it has
// stopped. If neither comes, the endpoint is closed, and with it all of its connections.
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/mutex.h"
#include "transport/messaging/ofi/endpoint.h"
#include "transport/messaging/side_channel.h"
#include "transport/messaging/tcp/connection.h"
#include "transport/messaging/verification.h"
#include "transport/transport.h"

namespace ropewalk::transport::ofi {

inline constexpr std::size_t kMaxRequests = 32;
inline constexpr std::size_t kMaxGroup = 8;

using messaging::Note;
using messaging::SideChannel;
using messaging::Verify;

/// Message `index` of `tag` as a key.
constexpr std::uint64_t key_of(std::uint32_t tag, std::uint32_t index) {
  return std::uint64_t{tag} << 32 | index;
}

/// Memory that was registered with an end.
class FabricRegistration final : public Registration {
 public:
  FabricRegistration(std::shared_ptr<Endpoint> endpoint, Region region);
  [[nodiscard]] MemoryKind kind() const noexcept override { return kind_; }
  /// For GPU memory, since the CPU does not see what is beyond it.
  /// @throws Error kInvalidArgument when not all of `bytes` at `data` is in it
  void check_holds(const void* data, std::size_t bytes) const;
  ~FabricRegistration() override;
  FabricRegistration(const FabricRegistration&) = delete;
  FabricRegistration& operator=(const FabricRegistration&) = delete;
  Region region;  // with the endpoint's mutex held

 private:
  std::shared_ptr<Endpoint> endpoint_;
  // As in `region`, which ends early when a receive is given up.
  const MemoryKind kind_;
  const std::uint64_t base_;
  const std::uint64_t bytes_;
};

/// Threads: those of the connection, and those that drive the endpoint. All functions but the
/// constructor are called with its mutex held.
class Connection : public Member {
 public:
  Connection(std::shared_ptr<Endpoint> endpoint, SideChannel side, std::string peer, Verify verify,
             tcp::Linger& linger);
  ~Connection() override;
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;
  [[nodiscard]] std::uint32_t proof() const noexcept final { return proof_; }
  void on_retired(const std::string& reason) final RW_NO_THREAD_ANALYSIS;
  void on_wait() final RW_NO_THREAD_ANALYSIS { look_at_side(); }
  void on_written(std::uint32_t /*ticket*/, std::uint64_t /*bytes*/) override {}
  void on_message(const Header& header,
                  std::span<const std::byte> payload) final RW_NO_THREAD_ANALYSIS;

 protected:
  using Clock = std::chrono::steady_clock;
  /// The longest that giving up waits for a peer that is there, and for one that is not.
  static constexpr auto kPatience = std::chrono::seconds(1);
  static constexpr auto kLittlePatience = std::chrono::milliseconds(100);

  /// A small message that the provider has not taken yet.
  struct Control {
    Header header;
    Operation* told = nullptr;  // finished when the provider has taken it
    std::array<std::uint64_t, kMostAnnounced - 1> more_addresses{};  // of a kAnnounce
    std::size_t announced = 1;                                       // receives
  };

  /// From here on messages may come, also by other threads: the last that a constructor does.
  void enter();
  /// From here on none come: the last that a destructor does.
  void leave() RW_REQUIRES(fabric_.mutex) { fabric_.remove(number_); }

  /// Memory of that kind; host memory needs to be registered if `host` says so.
  /// @throws Error kInvalidArgument, kSystem
  std::unique_ptr<Registration> register_kind(void* data, std::size_t bytes, MemoryKind kind,
                                              bool host, std::uint64_t access);
  std::unique_ptr<Registration> register_gpu(void* data, std::size_t bytes, std::uint64_t access,
                                             const DmaBuf* given);
  /// Null for host memory. Costs host memory nothing where no GPU memory is taken.
  [[nodiscard]] FabricRegistration* on_gpu(Registration* registration) const {
    if (!fabric_.takes_gpu_memory() || registration == nullptr ||
        registration->kind() != MemoryKind::kCuda) {
      return nullptr;
    }
    return dynamic_cast<FabricRegistration*>(registration);
  }

  /// Progress, of the endpoint and of this end.
  void drive() RW_REQUIRES(fabric_.mutex);
  /// Does what this end has to do, without progress.
  void attend_now() RW_REQUIRES(fabric_.mutex);
  void control(Header header, Operation* told = nullptr) RW_REQUIRES(fabric_.mutex);
  /// As control(); `addresses` of all receives of a kAnnounce, whose header has the first one's.
  void control_announcement(Header header, std::span<const std::uint64_t> addresses)
      RW_REQUIRES(fabric_.mutex);
  void flush_controls() RW_REQUIRES(fabric_.mutex);
  /// Takes the notes that have come.
  void look_at_side() RW_REQUIRES(fabric_.mutex);
  /// Drives until `done`, at most for kPatience (less once the peer has ended).
  /// @return whether it was done
  template <typename Done>
  bool drive_until(Done done) RW_REQUIRES(fabric_.mutex);
  /// Breaks the connection and notifies the peer; the first reason is kept.
  void fail(Errc code, const std::string& reason) RW_REQUIRES(fabric_.mutex);
  [[nodiscard]] bool failed() const noexcept { return failed_.load(std::memory_order_acquire); }
  void throw_if_failed() const;
  /// The Error that every call throws from now on.
  [[nodiscard]] Error named(Errc code, const std::string& reason) const;
  [[nodiscard]] bool greeted() const noexcept { return greeted_; }
  [[nodiscard]] bool peer_gone() const noexcept { return side_.ended(); }

  virtual void on_greeted() = 0;
  /// A message came, after the peer's hello.
  virtual void handle(const Header& header, std::span<const std::byte> payload) = 0;
  virtual void on_note(const SideChannel::Received& note) = 0;
  /// What this end has to do in each drive(), such as operations that were refused.
  virtual void attend() = 0;
  /// It has just failed.
  virtual void on_failed() = 0;

  const std::shared_ptr<Endpoint> kept_;
  Endpoint& fabric_;
  std::shared_ptr<Endpoint> peer_kept_;  // the peer's, if it is of this process
  SideChannel side_;
  const std::string peer_name_;
  const Verify verify_;
  std::uint64_t seed_ = 0;  // of the pattern: the sender's
  fi_addr_t peer_ = FI_ADDR_UNSPEC;
  std::uint32_t peer_number_ = 0;
  std::uint32_t peer_proof_ = 0;
  bool writes_ = false;               // both ends can do RMA writes
  bool verifies_ = false;             // both ends want it
  std::atomic<bool> closed_ = false;  // the peer was closed, or its process has ended
  Clock::time_point closed_at_{};
  std::uint32_t number_ = 0;

 private:
  void greet();
  void take_hello(const SideChannel::Received& note) RW_REQUIRES(fabric_.mutex);

  tcp::Linger& linger_;
  std::uint32_t proof_ = 0;
  bool greeted_ = false;
  // Messages that came before the hello, which travels by another connection.
  struct Ahead {
    Header header;
    std::vector<std::byte> payload;
  };
  std::vector<Ahead> ahead_;
  std::atomic<bool> failed_ = false;
  std::optional<Error> error_;
  std::deque<Control> controls_;
  unsigned drives_ = 0;
  Clock::time_point looked_{};
};

template <typename Done>
bool Connection::drive_until(Done done) {
  const Clock::time_point since = Clock::now();
  while (!done()) {
    if (fabric_.retired()) return false;
    fabric_.progress_all();
    if (Clock::now() - since > (peer_gone() ? Clock::duration(kLittlePatience) : kPatience)) {
      return done();
    }
  }
  return true;
}

/// One message of the pattern for each path that a message can take.
inline constexpr std::array<std::size_t, 3> kPatternBytes = {8, kEagerBytes, 65'543};

}  // namespace ropewalk::transport::ofi
