#include "link/sealed_connection.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <string>
#include <vector>

#include "core/error.h"

namespace ropewalk::link {
namespace {

using transport::MemoryKind;
using transport::ReceiveBuffer;
using transport::Registration;
using transport::Request;

// The messages in flight between two ends, for a test to read and change.
struct Wire {
  std::deque<std::string> messages;
  bool full = false;
};

struct Done final : Request {
  explicit Done(std::size_t bytes) : bytes_(bytes) {}
  std::optional<std::size_t> test() override { return bytes_; }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return {&bytes_, 1}; }
  std::size_t bytes_;
};

class IntoWire final : public transport::SendConnection {
 public:
  explicit IntoWire(Wire& wire) : wire_(wire) {}
  std::unique_ptr<Registration> register_memory(void* /*data*/, std::size_t /*bytes*/,
                                                MemoryKind /*kind*/) override {
    return nullptr;
  }
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t /*tag*/,
                                Registration* /*registration*/) override {
    if (wire_.full) return nullptr;
    wire_.messages.emplace_back(static_cast<const char*>(data), bytes);
    return std::make_unique<Done>(bytes);
  }

 private:
  Wire& wire_;
};

class OutOfWire final : public transport::ReceiveConnection {
 public:
  explicit OutOfWire(Wire& wire) : wire_(wire) {}
  std::unique_ptr<Registration> register_memory(void* /*data*/, std::size_t /*bytes*/,
                                                MemoryKind /*kind*/) override {
    return nullptr;
  }
  std::unique_ptr<Request> receive(std::span<const ReceiveBuffer> buffers) override {
    struct Waiting final : Request {
      Waiting(Wire& wire, ReceiveBuffer into) : wire_(wire), into_(into) {}
      std::optional<std::size_t> test() override {
        if (wire_.messages.empty()) return std::nullopt;
        const std::string message = wire_.messages.front();
        wire_.messages.pop_front();
        std::memcpy(into_.data, message.data(), std::min(message.size(), into_.bytes));
        return message.size();
      }
      [[nodiscard]] std::span<const std::size_t> sizes() const override { return {}; }
      Wire& wire_;
      ReceiveBuffer into_;
    };
    return std::make_unique<Waiting>(wire_, buffers[0]);
  }
  std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> /*buffers*/) override {
    return nullptr;
  }

 private:
  Wire& wire_;
};

class Sealed : public ::testing::Test {
 protected:
  static constexpr std::size_t kMost = 64;
  static constexpr std::size_t kRooms = 3;

  std::unique_ptr<Request> send(const std::string& text) {
    return sender_->send(text.data(), text.size(), 1, nullptr);
  }
  // What arrives next, or the error's words.
  std::string received() {
    std::vector<char> into(kMost);
    const ReceiveBuffer buffer{into.data(), into.size(), 1, nullptr};
    const std::unique_ptr<Request> request = receiver_->receive(std::span(&buffer, 1));
    try {
      const std::optional<std::size_t> bytes = request->test();
      if (!bytes.has_value()) return "nothing yet";
      return {into.data(), *bytes};
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kPeerLost);
      return error.what();
    }
  }

  const LinkKey key_ = make_link_key();
  Wire wire_;
  std::unique_ptr<transport::SendConnection> sender_ =
      sealed(std::make_unique<IntoWire>(wire_), key_, kMost, kRooms);
  std::unique_ptr<transport::ReceiveConnection> receiver_ =
      sealed(std::make_unique<OutOfWire>(wire_), key_, kMost, kRooms);
};

TEST_F(Sealed, MessagesArriveAndAreEncryptedInTransit) {
  const std::string text = "what nobody on the path should read";
  const auto sent = send(text);
  ASSERT_EQ(wire_.messages.size(), 1U);
  EXPECT_EQ(wire_.messages[0].size(), text.size() + kSealBytes);
  EXPECT_EQ(wire_.messages[0].find("nobody"), std::string::npos);
  EXPECT_EQ(sent->test(), text.size());
  EXPECT_EQ(received(), text);
}

TEST_F(Sealed, EqualMessagesDifferInTransit) {
  (void)send("twice");
  (void)send("twice");
  EXPECT_NE(wire_.messages[0], wire_.messages[1]);
  EXPECT_EQ(received(), "twice");
  EXPECT_EQ(received(), "twice");
}

TEST_F(Sealed, AMessageMayBeEmptyOrAsLongAsAgreed) {
  (void)send("");
  EXPECT_EQ(received(), "");
  (void)send(std::string(kMost, 'x'));
  EXPECT_EQ(received(), std::string(kMost, 'x'));
  EXPECT_THROW((void)send(std::string(kMost + 1, 'x')), Error);
}

TEST_F(Sealed, EveryChangedBitIsSeen) {
  (void)send("content");
  for (std::size_t at = 0; at < wire_.messages[0].size(); ++at) {
    Wire changed;
    changed.messages.push_back(wire_.messages[0]);
    changed.messages[0][at] = static_cast<char>(changed.messages[0][at] ^ 1);
    const auto receiver = sealed(std::make_unique<OutOfWire>(changed), key_, kMost, kRooms);
    std::vector<char> into(kMost);
    const ReceiveBuffer buffer{into.data(), into.size(), 1, nullptr};
    const auto request = receiver->receive(std::span(&buffer, 1));
    EXPECT_THROW((void)request->test(), Error) << at;
  }
}

TEST_F(Sealed, LeftOutRepeatedAndReorderedMessagesAreDetected) {
  constexpr const char* kSeen = "it was changed in transit";
  (void)send("one");
  (void)send("two");
  const std::deque<std::string> sent = wire_.messages;
  wire_.messages = {sent[1]};
  EXPECT_NE(received().find(kSeen), std::string::npos);
  receiver_ = sealed(std::make_unique<OutOfWire>(wire_), key_, kMost, kRooms);
  wire_.messages = {sent[0], sent[0]};
  EXPECT_EQ(received(), "one");
  EXPECT_NE(received().find(kSeen), std::string::npos);
}

TEST_F(Sealed, CutAndForeignMessagesAreSeen) {
  (void)send("content");
  wire_.messages[0].resize(kSealBytes - 1);
  EXPECT_NE(received().find("15 bytes failed authentication"), std::string::npos);
  receiver_ = sealed(std::make_unique<OutOfWire>(wire_), make_link_key(), kMost, kRooms);
  (void)send("of another key");
  EXPECT_NE(received().find("NET_ENCRYPT"), std::string::npos);
}

TEST_F(Sealed, AMessageThatFindsNoRoomIsSealedOnce) {
  wire_.full = true;
  EXPECT_EQ(send("later"), nullptr);
  EXPECT_EQ(send("later"), nullptr);
  wire_.full = false;
  EXPECT_NE(send("later"), nullptr);
  EXPECT_EQ(received(), "later");
  (void)send("next");
  EXPECT_EQ(received(), "next");
}

TEST_F(Sealed, RoomsComeBackWithTheirRequests) {
  std::vector<std::unique_ptr<Request>> sent;
  for (std::size_t i = 0; i < kRooms; ++i) sent.push_back(send("a"));
  EXPECT_EQ(send("b"), nullptr);
  sent.erase(sent.begin());
  EXPECT_NE(send("b"), nullptr);
}

}  // namespace
}  // namespace ropewalk::link
