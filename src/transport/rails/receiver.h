// The receiving end of a connection: takes what comes over the rails, each piece once.
#pragma once

#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/mutex.h"
#include "transport/rails/context.h"
#include "transport/rails/rails.h"
#include "transport/rails/wire.h"
#include "transport/transport.h"

namespace ropewalk::transport::rails {

/// A rail at the receiving end. It begins as a connection that has not said whose it is.
///
/// Threads: one at a time.
class ArrivingRail {
 public:
  ArrivingRail(const Device& device, std::unique_ptr<ReceiveConnection> forth);

  /// The next message that came, if any; valid until release(). @throws Error when the rail broke
  struct Came {
    Head head;
    std::span<const std::byte> following;
  };
  std::optional<Came> next();
  /// The message of next() has been dealt with.
  void release();
  /// Connects back to the sender. @return whether that connection stands
  bool answer(const Handle& back);
  /// Messages that leave by the connection back, in order; at most kMostControlBytes follow a head.
  void say(Kind kind, Head head, std::span<const std::byte> following);
  /// Hands what was said to the provider. @return true when it has done with all of it
  bool flush();
  [[nodiscard]] std::size_t unsaid() const noexcept { return said_.size(); }
  [[nodiscard]] const Device& device() const noexcept { return device_; }

  std::uint32_t number = 0;
  std::uint32_t incarnation = 0;
  std::uint64_t count = 0;  ///< messages dealt with
  bool welcomed = false;
  bool owes = false;       ///< a snapshot, at once
  std::uint64_t told = 0;  ///< count, in the last snapshot that went over it
  Clock::time_point since = Clock::now();
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t again = 0;

 private:
  struct Slot {
    std::size_t index = 0;
    std::unique_ptr<Request> request;
  };
  struct Said {
    std::vector<std::byte> message;
    std::unique_ptr<Request> request;
  };
  void post();

  struct Unmap {
    void operator()(std::byte* memory) const noexcept;
  };

  const Device& device_;
  // Destroyed bottom up: requests before the connections.
  std::unique_ptr<std::byte[], Unmap> memory_;
  std::unique_ptr<ReceiveConnection> forth_;
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<SendConnection> back_;
  std::deque<Slot> slots_;
  std::deque<Said> said_;
};

/// One receive of a request.
struct Posted {
  ReceiveBuffer buffer;
  std::size_t bytes = 0;
  bool matched = false;
  bool finished = false;
};

/// All that outlives the connection's object, until its last words have left.
///
/// Threads: any; each function locks.
class ReceiverCore final : public Tended {
 public:
  explicit ReceiverCore(const Context& context, std::vector<std::byte> devices);
  ~ReceiverCore() override;
  ReceiverCore(const ReceiverCore&) = delete;
  ReceiverCore& operator=(const ReceiverCore&) = delete;

  /// A rail of this connection arrived, with the hello given.
  void adopt(std::unique_ptr<ArrivingRail> rail, const Hello& hello);

  [[nodiscard]] bool ready();
  /// @return whether they may be posted now @throws Error when no message can come for them
  bool post(std::span<Posted> posted);
  /// @return whether all are finished @throws Error when they never will be
  bool finished(std::span<Posted> posted);
  /// The request of these is gone.
  void drop(std::span<Posted> posted);
  void close();
  [[nodiscard]] std::string describe();
  [[nodiscard]] std::vector<RailReport> report();

  Tending tend(Clock::time_point now) override;
  void link_changed(const std::string& name, bool up) override;

 private:
  struct Inbound {
    std::uint32_t tag = 0;
    std::uint64_t bytes = 0;
    std::uint64_t eager = 0;
    bool asks = false;  // the rest, or all of it, waits for a grant
    std::uint64_t pieces = 0;
    std::uint64_t arrived = 0;
    std::vector<std::uint64_t> have;    // a bit for each piece
    std::unique_ptr<std::byte[]> held;  // what came before the receive
    Posted* posted = nullptr;
    [[nodiscard]] bool whole() const noexcept { return arrived == pieces; }
  };
  // Of rail `number`, over all its incarnations.
  struct History {
    std::string name;
    std::string why;
    std::uint64_t bytes = 0;
    std::uint64_t again = 0;
    std::uint64_t losses = 0;
  };

  void progress(Clock::time_point now) RW_REQUIRES(mutex_);
  void step(ArrivingRail& rail, Clock::time_point now) RW_REQUIRES(mutex_);
  void take(ArrivingRail& rail, const Head& head, std::span<const std::byte> following)
      RW_REQUIRES(mutex_);
  void take_message(ArrivingRail& rail, const Head& head, std::span<const std::byte> following)
      RW_REQUIRES(mutex_);
  void introduce() RW_REQUIRES(mutex_);
  void match(std::uint64_t number, Inbound& message, Posted& posted) RW_REQUIRES(mutex_);
  void finish(std::uint64_t number, Inbound& message) RW_REQUIRES(mutex_);
  void lose(std::uint32_t number, const std::string& why, Clock::time_point now)
      RW_REQUIRES(mutex_);
  void say_snapshots() RW_REQUIRES(mutex_);
  [[nodiscard]] std::vector<std::byte> snapshot() const RW_REQUIRES(mutex_);
  void ask_soon() RW_REQUIRES(mutex_);
  void fail(Errc code, const std::string& why) RW_REQUIRES(mutex_);
  void tell_all(Kind kind, Head head, std::span<const std::byte> following) RW_REQUIRES(mutex_);
  [[nodiscard]] bool over() const RW_REQUIRES(mutex_);
  [[noreturn]] void throw_over() const RW_REQUIRES(mutex_);
  [[nodiscard]] bool held_for(std::span<const Posted> posted) const RW_REQUIRES(mutex_);
  [[nodiscard]] std::vector<RailReport> report_now() const RW_REQUIRES(mutex_);

  const Context& context_;
  const std::vector<std::byte> devices_;
  Mutex mutex_;
  std::map<std::uint32_t, std::unique_ptr<ArrivingRail>> rails_ RW_GUARDED_BY(mutex_);
  std::map<std::uint32_t, Handle> backs_ RW_GUARDED_BY(mutex_);
  std::map<std::uint32_t, History> history_ RW_GUARDED_BY(mutex_);
  std::map<std::uint64_t, Inbound> messages_ RW_GUARDED_BY(mutex_);  // not finished, by number
  std::uint64_t next_ RW_GUARDED_BY(mutex_) = 0;  // the first that was not introduced in its turn
  std::vector<Posted*> posted_ RW_GUARDED_BY(mutex_);  // not matched, in order
  std::uint64_t credits_ RW_GUARDED_BY(mutex_) = 0;    // returned
  std::uint64_t credits_told_ RW_GUARDED_BY(mutex_) = 0;
  std::size_t active_ RW_GUARDED_BY(mutex_) = 0;
  std::size_t waiting_ RW_GUARDED_BY(mutex_) = 0;
  std::optional<Error> error_ RW_GUARDED_BY(mutex_);
  std::optional<std::uint64_t> end_ RW_GUARDED_BY(mutex_);  // the sender closed after so many
  bool ever_up_ RW_GUARDED_BY(mutex_) = false;
  Clock::time_point last_up_ RW_GUARDED_BY(mutex_) = Clock::now();
  bool closing_ RW_GUARDED_BY(mutex_) = false;
  Clock::time_point close_by_ RW_GUARDED_BY(mutex_);
  std::atomic<Clock::rep> driven_at_ = 0;
};

class RailsReceiver final : public ReceiveConnection {
 public:
  /// `keeps` lives as long as this: what makes lost rails arrive again.
  RailsReceiver(std::shared_ptr<ReceiverCore> core, std::shared_ptr<void> keeps)
      : core_(std::move(core)), keeps_(std::move(keeps)) {}
  ~RailsReceiver() override { core_->close(); }
  RailsReceiver(const RailsReceiver&) = delete;
  RailsReceiver& operator=(const RailsReceiver&) = delete;
  bool ready() override { return core_->ready(); }
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override;
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) override;
  [[nodiscard]] std::string describe() const override { return core_->describe(); }
  [[nodiscard]] std::vector<RailReport> report() const { return core_->report(); }

 private:
  std::shared_ptr<ReceiverCore> core_;
  std::shared_ptr<void> keeps_;
};

}  // namespace ropewalk::transport::rails
