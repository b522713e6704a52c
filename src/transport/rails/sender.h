// The sending end of a connection: makes rails, gives them pieces, and judges them.
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/mutex.h"
#include "transport/rails/context.h"
#include "transport/rails/pairing.h"
#include "transport/rails/rails.h"
#include "transport/rails/wire.h"
#include "transport/transport.h"

namespace ropewalk::transport::rails {

/// A message under way.
struct Outbound {
  std::uint64_t number = 0;
  std::uint32_t tag = 0;
  const std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::size_t eager = 0;         // of them, before it is granted
  bool introduced_only = false;  // there were no credits for it
  bool introduced = false;       // then: that was sent
  bool granted = false;
  std::size_t next = 0;               // offset of the first byte that was given to no rail yet
  std::size_t pieces = 0;             // all of it
  std::size_t given = 0;              // pieces that were given to a rail, once
  std::size_t arrived = 0;            // pieces in the receiver's record
  int lent = 0;                       // requests of providers that read `data`
  std::unique_ptr<std::byte[]> copy;  // of a short one: its send has been finished at once
  [[nodiscard]] bool delivered() const noexcept { return arrived == pieces; }
};

/// All that outlives the connection's object, until what it sent has arrived.
///
/// Threads: any; each function but the constructor locks.
class SenderCore final : public Tended, public std::enable_shared_from_this<SenderCore> {
 public:
  SenderCore(const Context& context, std::vector<Offer> offers);
  ~SenderCore() override;

  [[nodiscard]] bool ready();
  /// @return null: not now
  std::shared_ptr<Outbound> start(const void* data, std::size_t bytes, std::uint32_t tag);
  /// @return whether the message's memory is free @throws Error when the connection broke
  bool finished(const Outbound& message);
  /// The request of a message that start() gave out is gone.
  void drop(const std::shared_ptr<Outbound>& message);
  /// The connection's object is gone.
  void close();
  [[nodiscard]] std::string describe();
  [[nodiscard]] std::vector<RailReport> report();

  Tending tend(Clock::time_point now) override;
  void link_changed(const std::string& name, bool up) override;

 private:
  // A message of a rail in flight: until the receiver has counted it and the provider is done.
  struct Flying {
    Kind kind = Kind::kProbe;
    std::shared_ptr<Outbound> message;  // of a piece or an introduction
    std::size_t offset = 0;
    std::size_t bytes = 0;
    std::uint64_t probe = 0;
    bool again = false;
    bool lends = false;  // the provider reads the message's memory
    bool counted = false;
    std::unique_ptr<std::byte[]> staged;
    std::unique_ptr<Request> request;
  };
  struct Piece {
    std::shared_ptr<Outbound> message;
    std::size_t offset = 0;
    std::size_t bytes = 0;
    bool intro = false;
    bool again = false;
  };
  enum class State : std::uint8_t { kWaiting, kConnecting, kGreeting, kVerifying, kUp };
  struct Rail {
    std::uint32_t number = 0;
    PairedDevices pair;
    std::string name;
    State state = State::kWaiting;
    std::uint32_t incarnation = 0;
    Clock::time_point since{};  // this state
    Clock::time_point retry_at{};
    Clock::duration backoff{};
    bool ever_up = false;
    bool unanswered = false;  // the last try ended so, which proves nothing
    std::string why;
    bool standby = false;
    // Destroyed bottom up: requests before the connections.
    std::unique_ptr<Listener> listener;
    std::unique_ptr<Connector> connector;
    std::unique_ptr<SendConnection> forth;
    std::unique_ptr<ReceiveConnection> back;
    std::vector<std::byte> back_memory;
    std::deque<std::pair<std::size_t, std::unique_ptr<Request>>> back_posted;
    std::deque<Flying> flying;
    bool greeted = false;
    std::uint64_t sent = 0;
    std::uint64_t counted = 0;
    std::size_t tested = 0;  // of flying, from the front: the provider is done with them
    std::uint64_t kept = 0;  // which message has arrived while its send is not finished; or 0
    Clock::time_point kept_since{};
    std::size_t outstanding = 0;  // bytes of pieces
    std::uint64_t answered = 0;   // the last probe
    Clock::time_point heard{};
    // Rate: bytes counted while something was outstanding.
    double rate = 0;
    int samples = 0;
    std::size_t span_bytes = 0;
    Clock::duration span_busy{};
    Clock::time_point busy_since{};
    bool was_full = false;
    Clock::time_point measure_at{};
    bool refused = false;        // takes no more in this turn
    bool probe_refused = false;  // the last probe could not be sent
    // Of all incarnations.
    std::uint64_t total_bytes = 0;
    std::uint64_t total_again = 0;
    std::uint64_t losses = 0;
  };

  void add_rails(std::span<const PairedDevices> pairs) RW_REQUIRES(mutex_);
  void progress(Clock::time_point now) RW_REQUIRES(mutex_);
  void step(Rail& rail, Clock::time_point now) RW_REQUIRES(mutex_);
  void begin(Rail& rail, Clock::time_point now) RW_REQUIRES(mutex_);
  void greet(Rail& rail, Clock::time_point now) RW_REQUIRES(mutex_);
  void read_back(Rail& rail, Clock::time_point now) RW_REQUIRES(mutex_);
  void take(Rail& rail, const Head& head, std::span<const std::byte> following,
            Clock::time_point now) RW_REQUIRES(mutex_);
  void count(Rail& rail, std::uint64_t until, Clock::time_point now) RW_REQUIRES(mutex_);
  void reap(Rail& rail, Clock::time_point now) RW_REQUIRES(mutex_);
  void measure(Rail& rail, std::size_t bytes, Clock::time_point now) RW_REQUIRES(mutex_);
  void judge_rates(Clock::time_point now) RW_REQUIRES(mutex_);
  void lose(Rail& rail, const Error& error, Clock::time_point now) RW_REQUIRES(mutex_);
  void come_up(Rail& rail, Clock::time_point now) RW_REQUIRES(mutex_);
  void transmit(Clock::time_point now) RW_REQUIRES(mutex_);
  bool give(const Piece& piece, Clock::time_point now) RW_REQUIRES(mutex_);
  Rail* choose(const Piece& piece) RW_REQUIRES(mutex_);
  std::optional<Piece> next_of(const std::shared_ptr<Outbound>& message) const RW_REQUIRES(mutex_);
  bool send(Rail& rail, Flying flying, Head head, const std::byte* following, std::size_t bytes,
            Clock::time_point now) RW_REQUIRES(mutex_);
  bool send_control(Rail& rail, Kind kind, std::span<const std::byte> following, Head head,
                    Clock::time_point now) RW_REQUIRES(mutex_);
  void probe(Clock::time_point now) RW_REQUIRES(mutex_);
  void watch(Clock::time_point now) RW_REQUIRES(mutex_);
  void make_one_again_if_all_are_silent(Clock::time_point now) RW_REQUIRES(mutex_);
  void fail(Errc code, const std::string& why) RW_REQUIRES(mutex_);
  void tell_all(Kind kind, std::span<const std::byte> following, Head head) RW_REQUIRES(mutex_);
  void throw_if_failed() const RW_REQUIRES(mutex_);
  [[nodiscard]] bool anything_outstanding() const RW_REQUIRES(mutex_);
  [[nodiscard]] std::string rails_text() const RW_REQUIRES(mutex_);
  [[nodiscard]] std::vector<RailReport> report_now() const RW_REQUIRES(mutex_);

  const Context& context_;
  Mutex mutex_;
  Identity identity_{};
  std::vector<DeviceFacts> peers_ RW_GUARDED_BY(mutex_);
  bool knows_peers_ RW_GUARDED_BY(mutex_) = false;  // all of them
  std::deque<Rail> rails_ RW_GUARDED_BY(mutex_);
  std::deque<Piece> again_ RW_GUARDED_BY(mutex_);
  std::deque<std::shared_ptr<Outbound>> pending_ RW_GUARDED_BY(mutex_);  // not wholly given out
  std::size_t queued_bytes_ RW_GUARDED_BY(mutex_) = 0;                   // of both
  std::deque<std::shared_ptr<Outbound>> undelivered_ RW_GUARDED_BY(mutex_);
  std::uint64_t number_ RW_GUARDED_BY(mutex_) = 0;
  std::uint64_t credits_used_ RW_GUARDED_BY(mutex_) = 0;
  std::uint64_t credits_returned_ RW_GUARDED_BY(mutex_) = 0;
  std::size_t active_ RW_GUARDED_BY(mutex_) = 0;
  std::uint64_t probes_ RW_GUARDED_BY(mutex_) = 0;
  Clock::time_point probed_at_ RW_GUARDED_BY(mutex_);
  const Clock::time_point begun_at_;
  Clock::time_point last_up_ RW_GUARDED_BY(mutex_);
  bool ever_up_ RW_GUARDED_BY(mutex_) = false;
  std::optional<Error> error_ RW_GUARDED_BY(mutex_);
  bool closing_ RW_GUARDED_BY(mutex_) = false;
  bool goodbye_said_ RW_GUARDED_BY(mutex_) = false;
  Clock::time_point close_by_ RW_GUARDED_BY(mutex_);
  std::atomic<Clock::rep> driven_at_ = 0;
};

class RailsSender final : public SendConnection {
 public:
  explicit RailsSender(std::shared_ptr<SenderCore> core) : core_(std::move(core)) {}
  ~RailsSender() override { core_->close(); }
  RailsSender(const RailsSender&) = delete;
  RailsSender& operator=(const RailsSender&) = delete;
  bool ready() override { return core_->ready(); }
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override;
  [[nodiscard]] std::string describe() const override { return core_->describe(); }
  [[nodiscard]] std::vector<RailReport> report() const { return core_->report(); }

 private:
  std::shared_ptr<SenderCore> core_;
};

}  // namespace ropewalk::transport::rails
