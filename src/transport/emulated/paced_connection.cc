#include "transport/emulated/paced_connection.h"

#include <array>
#include <chrono>
#include <cstring>
#include <deque>
#include <utility>

#include "core/error.h"

namespace ropewalk::transport::emulated {
namespace {

// As many as a window of slots has, so that the queue of a link never runs dry for want of one.
constexpr std::size_t kMaxHeld = 64;

void raise_to(std::atomic<Instant>& clock, Instant at) noexcept {
  Instant seen = clock.load(std::memory_order_relaxed);
  while (seen < at && !clock.compare_exchange_weak(seen, at, std::memory_order_relaxed)) {
  }
}

// A message under way. Owned by its request; the connection's queue points to it until the inner
// connection has it.
struct Message {
  const void* data = nullptr;
  std::size_t bytes = 0;
  std::uint32_t tag = 0;
  Registration* registration = nullptr;
  bool split = false;
  std::array<std::byte, kMaxHeadBytes> head{};
  std::size_t head_bytes = 0;
  Instant arrives = 0;
  std::unique_ptr<Request> inner;
};

class PacedConnection final : public SendConnection {
 public:
  PacedConnection(std::unique_ptr<SendConnection> inner, Path path, const Beginning& beginning,
                  std::function<Instant()> now)
      : inner_(std::move(inner)),
        path_(std::move(path)),
        beginning_(beginning),
        now_(std::move(now)) {}

  bool ready() override { return inner_->ready(); }
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return inner_->register_memory(data, bytes, kind);
  }
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* registration) override {
    auto message = std::make_unique<Message>();
    message->registration = registration;
    return enqueue(std::move(message), data, bytes, tag);
  }
  [[nodiscard]] bool splits_messages() const override { return inner_->splits_messages(); }
  std::unique_ptr<Request> send_split(std::span<const std::byte> head, const void* data,
                                      std::size_t bytes, std::uint32_t tag) override {
    RW_ASSERT(head.size() <= kMaxHeadBytes);
    auto message = std::make_unique<Message>();
    message->split = true;
    message->head_bytes = head.size();
    std::memcpy(message->head.data(), head.data(), head.size());
    return enqueue(std::move(message), data, bytes, tag);
  }
  [[nodiscard]] std::string describe() const override { return inner_->describe(); }

  // Hands over what has arrived by now, in order.
  void drive() {
    if (held_.empty()) return;
    const Instant now = now_();
    while (!held_.empty() && held_.front()->arrives <= now) {
      Message& message = *held_.front();
      message.inner =
          message.split
              ? inner_->send_split(std::span(message.head).first(message.head_bytes), message.data,
                                   message.bytes, message.tag)
              : inner_->send(message.data, message.bytes, message.tag, message.registration);
      if (message.inner == nullptr) return;
      raise_to(path_.destination->arrived, message.arrives);
      held_.pop_front();
    }
  }
  // A request that is destroyed early gives its memory back.
  void forget(const Message& message) noexcept {
    std::erase_if(held_, [&](const Message* held) { return held == &message; });
  }

 private:
  std::unique_ptr<Request> enqueue(std::unique_ptr<Message> message, const void* data,
                                   std::size_t bytes, std::uint32_t tag);

  std::unique_ptr<SendConnection> inner_;
  Path path_;
  const Beginning& beginning_;
  std::function<Instant()> now_;
  std::deque<Message*> held_;  // by the time of arrival
  Instant last_ = 0;           // of the last message
};

class PacedRequest final : public Request {
 public:
  PacedRequest(PacedConnection& connection, std::unique_ptr<Message> message)
      : connection_(connection), message_(std::move(message)) {}
  ~PacedRequest() override {
    if (message_->inner == nullptr) connection_.forget(*message_);
  }
  std::optional<std::size_t> test() override {
    connection_.drive();
    if (message_->inner == nullptr) return std::nullopt;
    return message_->inner->test();
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override {
    return message_->inner == nullptr ? std::span<const std::size_t>() : message_->inner->sizes();
  }

 private:
  PacedConnection& connection_;
  std::unique_ptr<Message> message_;
};

std::unique_ptr<Request> PacedConnection::enqueue(std::unique_ptr<Message> message,
                                                  const void* data, std::size_t bytes,
                                                  std::uint32_t tag) {
  if (held_.size() >= kMaxHeld) {
    drive();
    if (held_.size() >= kMaxHeld) return nullptr;
  }
  message->data = data;
  message->bytes = bytes;
  message->tag = tag;
  // What this rank sends follows from what has reached it, or from its program.
  const Instant ready =
      std::max(beginning_.at, path_.source->arrived.load(std::memory_order_relaxed));
  // Messages of a connection arrive in order, also short ones behind long ones.
  last_ = std::max(last_, reserve(path_, message->head_bytes + bytes, ready));
  message->arrives = last_;
  held_.push_back(message.get());
  auto request = std::make_unique<PacedRequest>(*this, std::move(message));
  drive();
  return request;
}

}  // namespace

Instant monotonic_now() noexcept {
  return static_cast<Instant>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                  std::chrono::steady_clock::now().time_since_epoch())
                                  .count());
}

std::unique_ptr<SendConnection> pace(std::unique_ptr<SendConnection> inner, Path path,
                                     const Beginning& beginning, std::function<Instant()> now) {
  if (!now) now = monotonic_now;
  return std::make_unique<PacedConnection>(std::move(inner), std::move(path), beginning,
                                           std::move(now));
}

}  // namespace ropewalk::transport::emulated
