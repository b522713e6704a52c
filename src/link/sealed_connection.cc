#include "link/sealed_connection.h"

#include <sodium.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/random.h"
#include "transport/simple_requests.h"

namespace ropewalk::link {
namespace {

using transport::MemoryKind;
using transport::ReceiveBuffer;
using transport::Registration;
using transport::Request;

static_assert(kSealBytes == crypto_aead_chacha20poly1305_ietf_ABYTES);
static_assert(sizeof(LinkKey) == crypto_aead_chacha20poly1305_ietf_KEYBYTES);

using Nonce = std::array<unsigned char, crypto_aead_chacha20poly1305_ietf_NPUBBYTES>;

Nonce nonce_of(std::uint64_t number) {
  Nonce nonce{};
  for (std::size_t i = 0; i < 8; ++i) nonce[i] = static_cast<unsigned char>(number >> (8 * i));
  return nonce;
}

unsigned char* chars(std::byte* bytes) { return reinterpret_cast<unsigned char*>(bytes); }

// The sealed messages in flight, each in a buffer of its own.
class Rooms {
 public:
  Rooms(const LinkKey& key, std::size_t most_bytes, std::size_t count)
      : key_(key), bytes_(most_bytes + kSealBytes), memory_(bytes_ * count), taken_(count) {}
  ~Rooms() { sodium_memzero(key_.data(), key_.size()); }
  Rooms(const Rooms&) = delete;
  Rooms& operator=(const Rooms&) = delete;

  [[nodiscard]] std::span<std::byte> memory() noexcept { return memory_; }
  [[nodiscard]] std::size_t bytes_each() const noexcept { return bytes_; }
  [[nodiscard]] std::byte* at(std::size_t room) noexcept { return &memory_[room * bytes_]; }
  std::optional<std::size_t> take() {
    const auto free = std::ranges::find(taken_, false);
    if (free == taken_.end()) return std::nullopt;
    *free = true;
    return static_cast<std::size_t>(free - taken_.begin());
  }
  void give_back(std::size_t room) { taken_[room] = false; }

  void seal(std::size_t room, const void* data, std::size_t bytes, std::uint64_t number) {
    crypto_aead_chacha20poly1305_ietf_encrypt(
        chars(at(room)), nullptr, static_cast<const unsigned char*>(data), bytes, nullptr, 0,
        nullptr, nonce_of(number).data(), chars(key_.data()));
  }
  // @return whether these are the bytes that were sealed
  bool open(std::size_t room, std::size_t sealed_bytes, void* data, std::uint64_t number) {
    return crypto_aead_chacha20poly1305_ietf_decrypt(
               static_cast<unsigned char*>(data), nullptr, nullptr, chars(at(room)), sealed_bytes,
               nullptr, 0, nonce_of(number).data(), chars(key_.data())) == 0;
  }

 private:
  LinkKey key_;
  const std::size_t bytes_;
  std::vector<std::byte> memory_;
  std::vector<bool> taken_;
};

class Sending final : public Request {
 public:
  Sending(std::unique_ptr<Request> inner, std::shared_ptr<Rooms> rooms, std::size_t room)
      : inner_(std::move(inner)), rooms_(std::move(rooms)), room_(room) {}
  ~Sending() override {
    inner_.reset();  // from then on nothing reads the room
    rooms_->give_back(room_);
  }
  Sending(const Sending&) = delete;
  Sending& operator=(const Sending&) = delete;

  std::optional<std::size_t> test() override {
    const std::optional<std::size_t> bytes = inner_->test();
    if (bytes.has_value()) bytes_ = *bytes - kSealBytes;
    return bytes.has_value() ? std::optional(bytes_) : std::nullopt;
  }
  [[nodiscard]] bool at_hand() const override { return inner_->at_hand(); }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return {&bytes_, 1}; }

 private:
  std::unique_ptr<Request> inner_;
  const std::shared_ptr<Rooms> rooms_;
  const std::size_t room_;
  std::size_t bytes_ = 0;
};

class Receiving final : public Request {
 public:
  Receiving(std::unique_ptr<Request> inner, std::shared_ptr<Rooms> rooms, std::size_t room,
            const ReceiveBuffer& wanted, std::uint64_t number)
      : inner_(std::move(inner)),
        rooms_(std::move(rooms)),
        room_(room),
        wanted_(wanted),
        number_(number) {}
  ~Receiving() override {
    inner_.reset();
    rooms_->give_back(room_);
  }
  Receiving(const Receiving&) = delete;
  Receiving& operator=(const Receiving&) = delete;

  std::optional<std::size_t> test() override {
    if (opened_) return bytes_;
    const std::optional<std::size_t> came = inner_->test();
    if (!came.has_value()) return std::nullopt;
    if (*came < kSealBytes || *came - kSealBytes > wanted_.bytes ||
        !rooms_->open(room_, *came, wanted_.data, number_)) {
      throw Error(
          Errc::kPeerLost,
          "a message of {} bytes failed authentication (setting NET_ENCRYPT): it was changed "
          "in transit",
          *came);
    }
    bytes_ = *came - kSealBytes;
    opened_ = true;
    return bytes_;
  }
  [[nodiscard]] bool at_hand() const override { return opened_ || inner_->at_hand(); }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return {&bytes_, 1}; }

 private:
  std::unique_ptr<Request> inner_;
  const std::shared_ptr<Rooms> rooms_;
  const std::size_t room_;
  const ReceiveBuffer wanted_;
  const std::uint64_t number_;
  std::size_t bytes_ = 0;
  bool opened_ = false;
};

// What both ends have: rooms that are registered with the connection inside.
template <typename Connection>
class SealedEnd : public Connection {
 public:
  SealedEnd(std::unique_ptr<Connection> inner, const LinkKey& key, std::size_t most_bytes,
            std::size_t most_messages)
      : rooms_(std::make_shared<Rooms>(key, most_bytes, most_messages)),
        inner_(std::move(inner)),
        registration_(inner_->register_memory(rooms_->memory().data(), rooms_->memory().size(),
                                              MemoryKind::kHost)) {}

  [[nodiscard]] bool ready() override { return inner_->ready(); }
  std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                MemoryKind kind) override {
    return transport::HostRegistration::make(data, bytes, kind);  // the transport sees rooms alone
  }
  [[nodiscard]] bool add_descriptors(std::vector<pollfd>& to) const override {
    return inner_->add_descriptors(to);
  }
  [[nodiscard]] std::string describe() const override { return inner_->describe(); }

 protected:
  const std::shared_ptr<Rooms> rooms_;
  const std::unique_ptr<Connection> inner_;
  const std::unique_ptr<Registration> registration_;
};

class SealedSender final : public SealedEnd<transport::SendConnection> {
 public:
  using SealedEnd::SealedEnd;

  void more_follow(bool follow) override { inner_->more_follow(follow); }
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t tag,
                                Registration* /*registration*/) override {
    transport::check_buffer(data, bytes, rooms_->bytes_each() - kSealBytes);
    // A message that could not be started is the one that is asked for again.
    if (!waiting_.has_value()) {
      waiting_ = rooms_->take();
      if (!waiting_.has_value()) return nullptr;
      rooms_->seal(*waiting_, data, bytes, sealed_++);
      waiting_bytes_ = bytes;
    }
    RW_ASSERT(waiting_bytes_ == bytes);
    std::unique_ptr<Request> started =
        inner_->send(rooms_->at(*waiting_), bytes + kSealBytes, tag, registration_.get());
    if (started == nullptr) return nullptr;
    return std::make_unique<Sending>(std::move(started), rooms_,
                                     *std::exchange(waiting_, std::nullopt));
  }

 private:
  std::uint64_t sealed_ = 0;
  std::optional<std::size_t> waiting_;
  std::size_t waiting_bytes_ = 0;
};

class SealedReceiver final : public SealedEnd<transport::ReceiveConnection> {
 public:
  using SealedEnd::SealedEnd;

  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override {
    transport::check_buffers(buffers, 1, rooms_->bytes_each() - kSealBytes);
    const std::optional<std::size_t> room = rooms_->take();
    if (!room.has_value()) return nullptr;
    const ReceiveBuffer sealed{rooms_->at(*room), buffers[0].bytes + kSealBytes, buffers[0].tag,
                               registration_.get()};
    std::unique_ptr<Request> started = inner_->receive(std::span(&sealed, 1));
    if (started == nullptr) {
      rooms_->give_back(*room);
      return nullptr;
    }
    return std::make_unique<Receiving>(std::move(started), rooms_, *room, buffers[0], posted_++);
  }
  // The content is host memory, and was written by this process.
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> /*buffers*/) override {
    return std::make_unique<transport::FinishedRequest>(std::vector<std::size_t>{});
  }

 private:
  std::uint64_t posted_ = 0;
};

}  // namespace

LinkKey make_link_key() {
  LinkKey key;
  fill_random(key);
  return key;
}

std::unique_ptr<transport::SendConnection> sealed(std::unique_ptr<transport::SendConnection> inner,
                                                  const LinkKey& key, std::size_t most_bytes,
                                                  std::size_t most_messages) {
  return std::make_unique<SealedSender>(std::move(inner), key, most_bytes, most_messages);
}

std::unique_ptr<transport::ReceiveConnection> sealed(
    std::unique_ptr<transport::ReceiveConnection> inner, const LinkKey& key, std::size_t most_bytes,
    std::size_t most_messages) {
  return std::make_unique<SealedReceiver>(std::move(inner), key, most_bytes, most_messages);
}

}  // namespace ropewalk::link
