#include "transport/emulated/paced_connection.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

namespace ropewalk::transport::emulated {
namespace {

// Takes what it is given, while it has room, and finishes it at once.
class Instantly final : public SendConnection {
 public:
  explicit Instantly(std::vector<std::string>& came, bool& full) : came_(came), full_(full) {}
  std::unique_ptr<Registration> register_memory(void* /*data*/, std::size_t /*bytes*/,
                                                MemoryKind /*kind*/) override {
    return nullptr;
  }
  std::unique_ptr<Request> send(const void* data, std::size_t bytes, std::uint32_t /*tag*/,
                                Registration* /*registration*/) override {
    if (full_) return nullptr;
    came_.emplace_back(static_cast<const char*>(data), bytes);
    return std::make_unique<Done>(bytes);
  }
  [[nodiscard]] bool splits_messages() const override { return true; }
  std::unique_ptr<Request> send_split(std::span<const std::byte> head, const void* data,
                                      std::size_t bytes, std::uint32_t /*tag*/) override {
    came_.emplace_back(reinterpret_cast<const char*>(head.data()), head.size());
    came_.back().append(static_cast<const char*>(data), bytes);
    return std::make_unique<Done>(bytes);
  }

 private:
  struct Done final : Request {
    explicit Done(std::size_t bytes) : bytes_(bytes) {}
    std::optional<std::size_t> test() override { return bytes_; }
    [[nodiscard]] std::span<const std::size_t> sizes() const override { return {&bytes_, 1}; }
    std::size_t bytes_;
  };
  std::vector<std::string>& came_;
  bool& full_;
};

class Paced : public ::testing::Test {
 protected:
  // 1 byte a nanosecond over each link given, and `latency` nanoseconds.
  std::unique_ptr<SendConnection> connection(std::vector<LinkClock*> links, Instant latency = 0) {
    Path path;
    for (LinkClock* link : links) path.hops.push_back({link, 1.0});
    path.latency = latency;
    path.source = &ranks_[0];
    path.destination = &ranks_[1];
    return pace(std::make_unique<Instantly>(came_, full_), path, beginning_,
                [this] { return now_; });
  }
  std::unique_ptr<Request> send(SendConnection& connection, std::size_t bytes) {
    return connection.send(text_.data(), bytes, 0, nullptr);
  }

  Instant now_ = 1000;
  Beginning beginning_{1000};
  std::array<LinkClock, 3> links_{};
  std::array<RankClock, 2> ranks_{};
  bool full_ = false;
  std::vector<std::string> came_;
  std::string text_ = std::string(1000, 'x');
};

TEST_F(Paced, AMessageArrivesWhenItsLastByteDoes) {
  const auto link = connection({&links_[0]}, 7);
  const auto request = send(*link, 100);
  now_ = 1106;
  EXPECT_FALSE(request->test().has_value());
  EXPECT_TRUE(came_.empty());
  now_ = 1107;
  EXPECT_EQ(request->test(), 100U);
  EXPECT_EQ(came_, std::vector<std::string>{std::string(100, 'x')});
  EXPECT_EQ(ranks_[1].arrived.load(), 1107U);
}

TEST_F(Paced, TwoFlowsOverOneLinkGetHalfEach) {
  const auto one = connection({&links_[0]});
  const auto other = connection({&links_[0], &links_[1]});
  const auto a = send(*one, 100);
  const auto b = send(*other, 100);
  const auto c = send(*one, 100);
  now_ = 1100;
  EXPECT_TRUE(a->test().has_value());
  EXPECT_FALSE(b->test().has_value());
  now_ = 1200;
  EXPECT_TRUE(b->test().has_value());
  EXPECT_FALSE(c->test().has_value());
  now_ = 1300;
  EXPECT_TRUE(c->test().has_value());
}

TEST_F(Paced, LinksInARowWorkAtOnce) {
  const auto link = connection({&links_[0], &links_[1], &links_[2]});
  const auto a = send(*link, 100);
  const auto b = send(*link, 100);
  now_ = 1100;
  EXPECT_TRUE(a->test().has_value());
  now_ = 1199;
  EXPECT_FALSE(b->test().has_value());
  now_ = 1200;
  EXPECT_TRUE(b->test().has_value());
}

TEST_F(Paced, AThreadThatRunsLateMakesNoLinkSlower) {
  // It got the data at 1000 and comes to send it at 1080 only.
  ranks_[0].arrived = 1000;
  now_ = 1080;
  const auto link = connection({&links_[0]});
  const auto late = send(*link, 100);
  now_ = 1100;
  EXPECT_TRUE(late->test().has_value());
  // What its program asks for now was not ready before.
  beginning_.at = now_ = 2000;
  const auto next = send(*link, 100);
  now_ = 2099;
  EXPECT_FALSE(next->test().has_value());
  now_ = 2100;
  EXPECT_TRUE(next->test().has_value());
}

TEST_F(Paced, ShortMessagesDoNotOvertake) {
  const auto link = connection({&links_[0]}, 50);
  const auto first = send(*link, 100);
  const auto second = send(*link, 0);
  now_ = 1149;
  EXPECT_FALSE(second->test().has_value());
  now_ = 1150;
  EXPECT_TRUE(second->test().has_value());
  EXPECT_TRUE(first->test().has_value());
  ASSERT_EQ(came_.size(), 2U);
  EXPECT_EQ(came_[0].size(), 100U);
}

TEST_F(Paced, WaitsForRoomBehindIt) {
  const auto link = connection({&links_[0]});
  const auto request = send(*link, 10);
  full_ = true;
  now_ = 1010;
  EXPECT_FALSE(request->test().has_value());
  full_ = false;
  EXPECT_TRUE(request->test().has_value());
}

TEST_F(Paced, ARequestThatIsDestroyedEarlySendsNothing) {
  const auto link = connection({&links_[0]});
  auto request = send(*link, 10);
  const auto next = send(*link, 20);
  request.reset();
  now_ = 1030;
  EXPECT_TRUE(next->test().has_value());
  EXPECT_EQ(came_, std::vector<std::string>{std::string(20, 'x')});
}

TEST_F(Paced, TheHeadIsCopiedAtOnce) {
  const auto link = connection({&links_[0]});
  std::array<std::byte, 4> head{};
  std::memcpy(head.data(), "head", 4);
  const auto request = link->send_split(head, "data", 4, 0);
  head.fill(std::byte{0});
  now_ = 1007;
  EXPECT_FALSE(request->test().has_value());
  now_ = 1008;
  EXPECT_TRUE(request->test().has_value());
  EXPECT_EQ(came_, std::vector<std::string>{"headdata"});
}

}  // namespace
}  // namespace ropewalk::transport::emulated
