// The two ends of a connection of `auto`, and the acceptors that a listener keeps open for it.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/mutex.h"
#include "transport/auto/offers.h"
#include "transport/transport.h"

namespace ropewalk::transport::choosing {

/// No provider groups more receives.
inline constexpr std::size_t kMostGrouped = 8;

/// A provider, and its device that serves a device of `auto`.
struct Provider {
  PathKind kind;
  Transport* transport;
  int device;
};

/// Registrations of one end, which follow it to another path while none is decided on.
class Registrations {
 public:
  using Register = std::unique_ptr<Registration> (*)(void* connection, void* data,
                                                     std::size_t bytes, MemoryKind kind);

  /// Registers with the path of now, or later when there is none.
  std::unique_ptr<Registration> add(void* data, std::size_t bytes, MemoryKind kind);

  /// The current path; `name` is for messages. nullptr: none, registrations wait.
  /// @throws Error if the new path cannot take an earlier registration
  void move_to(void* connection, Register how, std::string_view name);

  /// What the path knows `registration` by.
  static Registration* of_path(Registration* registration) noexcept;

 private:
  class Entry;
  void register_one(Entry& entry) RW_REQUIRES(mutex_);
  void forget(Entry* entry);
  Mutex mutex_;
  std::vector<Entry*> entries_ RW_GUARDED_BY(mutex_);
  void* connection_ RW_GUARDED_BY(mutex_) = nullptr;
  Register how_ RW_GUARDED_BY(mutex_) = nullptr;
  std::string name_ RW_GUARDED_BY(mutex_);
};

/// A listener's acceptors, one for each provider. They stay open as long as a connection may still
/// need another path.
class Acceptors {
 public:
  explicit Acceptors(const std::vector<Provider>& providers, int device);
  [[nodiscard]] const Handle& handle() const noexcept { return handle_; }

  /// A connection that an acceptor took.
  struct Arrival {
    PathKind kind{};
    std::unique_ptr<ReceiveConnection> connection;
    // To the TCP acceptor: the first message says whether this connection replaces a failed one.
    std::unique_ptr<std::array<std::byte, 8>> message;
    std::unique_ptr<Request> request;
    bool greeted = false;
    bool replaces = false;

    /// Reads the first message as far as it came.
    /// @return greeted
    /// @throws Error when the connection broke
    bool read_greeting();
  };
  /// @return one that replaces no other, for the listener's owner
  std::optional<Arrival> take_new();
  /// @return a connection that replaces a failed one
  std::optional<Arrival> take_replacement();

  /// A connection that was handed out may (cannot any more) lose its path and want another.
  void count_undecided(int change);

 private:
  struct Acceptor {
    PathKind kind;
    std::unique_ptr<Listener> listener;
  };
  void poll() RW_REQUIRES(mutex_);

  Mutex mutex_;
  std::vector<Acceptor> acceptors_ RW_GUARDED_BY(mutex_);
  std::vector<Arrival> over_tcp_ RW_GUARDED_BY(mutex_);
  int undecided_ RW_GUARDED_BY(mutex_) = 0;
  Handle handle_{};
};

class AutoSender final : public SendConnection {
 public:
  /// @throws Error when no offer can be used
  AutoSender(const std::vector<Provider>& providers, std::vector<Offer> offers);
  ~AutoSender() override;
  AutoSender(const AutoSender&) = delete;
  AutoSender& operator=(const AutoSender&) = delete;

  /// Whether it may be handed out: a path stands, if not yet verified.
  [[nodiscard]] bool joined();

  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  bool ready() override;
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override;
  void more_follow(bool follow) override {
    if (decided_) connection_->more_follow(follow);
  }
  [[nodiscard]] bool splits_messages() const override {
    return decided_ && connection_->splits_messages();
  }
  std::unique_ptr<Request> send_split(std::span<const std::byte> head, const void* data,
                                      std::size_t bytes, std::uint32_t tag) override;
  [[nodiscard]] bool add_descriptors(std::vector<pollfd>& to) const override {
    return decided_ && connection_ && connection_->add_descriptors(to);
  }
  [[nodiscard]] std::string describe() const override {
    return decided_ && connection_ ? connection_->describe() : "a path is being chosen";
  }

 private:
  void advance();
  void next_path();
  void lost_path(const Error& error);
  void greet();

  const std::vector<Provider> providers_;
  std::deque<Offer> offers_;  // not yet tried
  Registrations registrations_;
  PathKind kind_{};
  std::unique_ptr<Connector> connector_;
  std::unique_ptr<SendConnection> connection_;
  std::array<std::byte, 8> message_{};  // the first over TCP
  std::unique_ptr<Request> greeting_;
  bool greeted_ = false;
  bool replaces_ = false;  // the listener has seen an earlier path
  bool decided_ = false;
  std::string failures_;
};

class AutoReceiver final : public ReceiveConnection {
 public:
  AutoReceiver(std::shared_ptr<Acceptors> acceptors, Acceptors::Arrival arrival,
               std::chrono::nanoseconds peer_loss_time);
  ~AutoReceiver() override;
  AutoReceiver(const AutoReceiver&) = delete;
  AutoReceiver& operator=(const AutoReceiver&) = delete;

  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override;
  bool ready() override;
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override;
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) override;
  [[nodiscard]] bool add_descriptors(std::vector<pollfd>& to) const override {
    return decided_ && path_.connection && path_.connection->add_descriptors(to);
  }
  [[nodiscard]] std::string describe() const override {
    return decided_ && path_.connection ? path_.connection->describe() : "a path is being chosen";
  }

 private:
  void take(Acceptors::Arrival arrival);
  void lost_path(const Error& error);

  std::shared_ptr<Acceptors> acceptors_;  // none once decided
  const std::chrono::nanoseconds peer_loss_time_;
  Registrations registrations_;
  Acceptors::Arrival path_;
  bool decided_ = false;
  std::optional<Error> failure_;
  std::chrono::steady_clock::time_point give_up_at_;
};

}  // namespace ropewalk::transport::choosing
