// How many messages of the provider messages take: what a write tells by itself, announcements of
// several receives at once, and small messages that leave together. On the stand-in for libfabric,
// which counts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/error.h"
#include "transport/messaging/ofi/ofi.h"
#include "transport/messaging/ofi/testing/stand_in.h"
#include "transport/messaging/ofi/wire.h"

#ifdef RW_STAND_IN_LIBFABRIC

namespace ropewalk::transport::ofi {
namespace {

constexpr std::size_t kLong = 100'000;
constexpr int kMany = 64;
constexpr std::size_t kPosted = 8;

class OfiAnnouncements : public ::testing::Test {
 protected:
  OfiAnnouncements() = default;
  ~OfiAnnouncements() override {
    sender_.reset();
    receiver_.reset();
    transport_.reset();
    fabric_.configure("");
  }
  OfiAnnouncements(const OfiAnnouncements&) = delete;
  OfiAnnouncements& operator=(const OfiAnnouncements&) = delete;

  // Since the connection was made.
  [[nodiscard]] long count(const char* name) const {
    return fabric_.count(name) - before_.at(name);
  }

  void connect(const std::string& fabric = "", const std::string& verify = "") {
    fabric_.configure(fabric);
    Config config = over_stand_ins();
    if (!verify.empty()) config.set("VERIFY", verify, "test");
    transport_ = make_transport(config);
    ASSERT_EQ(transport_->num_devices(), 1);
    connect_to_itself(*transport_, sender_, receiver_);
    in_.assign(kPosted * kLong, 0);
    in_memory_ = receiver_->register_memory(in_.data(), in_.size(), MemoryKind::kHost);
    for (const char* name : {"write", "word", "small", "long"}) before_[name] = fabric_.count(name);
  }

  // Of receive `number`.
  char* buffer_of(std::size_t number) { return in_.data() + number % kPosted * kLong; }
  std::unique_ptr<Request> receive(std::size_t number, std::uint32_t tag = 1) {
    const ReceiveBuffer buffer{buffer_of(number), kLong, tag, in_memory_.get()};
    std::unique_ptr<Request> request;
    until([&] { return (request = receiver_->receive({&buffer, 1})) != nullptr; });
    return request;
  }
  static std::vector<char> message(std::size_t number) {
    return std::vector<char>(kLong - number, static_cast<char>(number + 1));
  }
  // Message `number` arrives whole.
  void transfer(std::size_t number, Request& receives, std::uint32_t tag = 1) {
    const std::vector<char> out = message(number);
    std::unique_ptr<Request> sends;
    std::optional<std::size_t> got;
    until([&] {
      if (!sends) sends = sender_->send(out.data(), out.size(), tag, nullptr);
      if (!got) got = receives.test();
      return sends && sends->test() && got;
    });
    ASSERT_EQ(got, out.size()) << number;
    ASSERT_TRUE(std::equal(out.begin(), out.end(), buffer_of(number))) << number;
  }
  void transfer_many() {
    std::deque<std::unique_ptr<Request>> receives;
    for (std::size_t i = 0; i < kPosted; ++i) receives.push_back(receive(i));
    for (std::size_t i = 0; i < kMany; ++i) {
      ASSERT_NO_FATAL_FAILURE(transfer(i, *receives.front()));
      receives.pop_front();
      if (i + kPosted < kMany) receives.push_back(receive(i + kPosted));
    }
  }

  std::unique_ptr<SendConnection> sender_;
  std::unique_ptr<ReceiveConnection> receiver_;
  std::unique_ptr<Transport> transport_;
  StandInFabric fabric_;

 private:
  Hearing hearing_;
  std::map<std::string, long> before_;
  std::vector<char> in_;
  std::unique_ptr<Registration> in_memory_;
};

TEST_F(OfiAnnouncements, AWriteTellsByItselfAndReceivesAreAnnouncedTogether) {
  connect();
  transfer_many();
  EXPECT_EQ(count("write"), kMany);
  EXPECT_EQ(count("word"), kMany);
  EXPECT_EQ(count("long"), 0);
  // Announcements alone: four receives in each, but for the first and the last ones.
  EXPECT_GE(count("small"), kMany / 8);
  EXPECT_LE(count("small"), kMany / 4 + 4);
}

TEST_F(OfiAnnouncements, WhereAWriteTellsNothingAMessageFollows) {
  connect("word=95");
  EXPECT_THAT(heard(), ::testing::Contains(::testing::HasSubstr("takes no data with a write")));
  transfer_many();
  EXPECT_EQ(count("write"), kMany);
  EXPECT_EQ(count("word"), 0);
  EXPECT_GE(count("small"), kMany + kMany / 8);
  EXPECT_LE(count("small"), kMany + kMany / 4 + 4);
}

TEST_F(OfiAnnouncements, AMessageWithAChecksumFollows) {
  connect("", "all");
  transfer_many();
  EXPECT_EQ(count("word"), 0);
  EXPECT_GE(count("small"), kMany);
}

// The sender knows enough receives, of another tag.
TEST_F(OfiAnnouncements, AReceiveThatIsHeldBackIsAnnouncedWhenItIsAskedFor) {
  connect();
  std::vector<std::unique_ptr<Request>> others;
  for (std::size_t i = 0; i + 1 < kPosted; ++i) others.push_back(receive(i));
  for (const auto& other : others) EXPECT_FALSE(other->test());
  const auto wanted = receive(kPosted - 1, 2);
  transfer(kPosted - 1, *wanted, 2);
  for (std::size_t i = 0; i + 1 < kPosted; ++i) {
    ASSERT_NO_FATAL_FAILURE(transfer(i, *others[i])) << i;
  }
}

TEST_F(OfiAnnouncements, AReceiveThatIsGivenUpBeforeItIsToldHarmsNothingElse) {
  connect();
  std::vector<std::unique_ptr<Request>> receives;
  for (std::size_t i = 0; i + 1 < kPosted; ++i) receives.push_back(receive(i));
  for (const auto& each : receives) EXPECT_FALSE(each->test());
  // Given up while held back: the connection ends, and at once.
  auto held = receive(kPosted - 1);
  const auto begin = std::chrono::steady_clock::now();
  held.reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(500));
  EXPECT_THROW((void)receives.front()->test(), Error);
  sender_.reset();
  receives.clear();
}

// A send that received first would leave only after what has come, which may be long.
TEST_F(OfiAnnouncements, AMessageWhoseReceiveIsKnownLeavesBeforeAnythingIsReceived) {
  connect();
  std::vector<std::unique_ptr<Request>> receives;
  for (std::size_t i = 0; i < kPosted; ++i) receives.push_back(receive(i));
  // Both ends drive one endpoint: the announcements come.
  for (int turn = 0; turn < 1000; ++turn) EXPECT_FALSE(receives.front()->test());
  std::vector<std::vector<char>> messages;
  std::vector<std::unique_ptr<Request>> sends;
  for (std::size_t i = 0; i < kPosted; ++i) {
    messages.push_back(message(i));
    sends.push_back(sender_->send(messages[i].data(), messages[i].size(), 1, nullptr));
    ASSERT_NE(sends.back(), nullptr) << i;
  }
  EXPECT_EQ(count("write"), kPosted);
  for (const auto& each : receives) EXPECT_FALSE(each->at_hand());
  for (std::size_t i = 0; i < kPosted; ++i) {
    until([&] { return sends[i]->test() && receives[i]->test(); });
    ASSERT_TRUE(std::equal(messages[i].begin(), messages[i].end(), buffer_of(i))) << i;
  }
}

TEST_F(OfiAnnouncements, SmallMessagesTakeAnnouncedReceives) {
  connect();
  for (std::size_t i = 0; i < 3 * kPosted; ++i) {
    const auto receives = receive(i);
    if (i % 3 == 0) {
      const std::uint64_t word = i;
      std::unique_ptr<Request> sends;
      std::optional<std::size_t> got;
      until([&] {
        if (!sends) sends = sender_->send(&word, sizeof word, 1, nullptr);
        if (!got) got = receives->test();
        return sends && sends->test() && got;
      });
      ASSERT_EQ(got, sizeof word);
      ASSERT_EQ(std::memcmp(buffer_of(i), &word, sizeof word), 0);
    } else {
      ASSERT_NO_FATAL_FAILURE(transfer(i, *receives)) << i;
    }
  }
}

class OfiJoined : public OfiAnnouncements {
 protected:
  // Sends messages of these sizes, all but the last with others to follow.
  void send_together(const std::vector<std::size_t>& sizes) {
    for (std::size_t i = 0; i < sizes.size(); ++i) {
      sent_.emplace_back(sizes[i], static_cast<char>(i + 1));
      sender_->more_follow(i + 1 < sizes.size());
      sends_.push_back(sender_->send(sent_[i].data(), sizes[i], 1, nullptr));
      ASSERT_NE(sends_.back(), nullptr) << i;
    }
  }
  void receive_all() {
    for (std::size_t i = 0; i < sent_.size(); ++i) {
      const auto receives = receive(i);
      std::optional<std::size_t> got;
      until([&] { return (got = receives->test()).has_value(); });
      ASSERT_EQ(got, sent_[i].size()) << i;
      ASSERT_TRUE(std::equal(sent_[i].begin(), sent_[i].end(), buffer_of(i))) << i;
    }
  }
  void receive_one(char expected) {
    const auto receives = receive(0);
    until([&] { return receives->test().has_value(); });
    EXPECT_EQ(*buffer_of(0), expected);
  }
  std::deque<std::vector<char>> sent_;
  std::vector<std::unique_ptr<Request>> sends_;
};

TEST_F(OfiJoined, SmallMessagesThatFollowEachOtherAtOnceLeaveTogether) {
  connect();
  send_together({8, 0, 1000, 500, 8});
  EXPECT_EQ(count("small"), 1);
  ASSERT_NO_FATAL_FAILURE(receive_all());
  sender_->more_follow(false);
  const char alone = 'a';
  sends_.push_back(sender_->send(&alone, 1, 2, nullptr));
  EXPECT_EQ(count("small"), 2);
}

// Of the longest ones that are said to leave together, two do.
TEST_F(OfiJoined, WhatIsTooLongForOthersLeavesAfterThem) {
  connect();
  EXPECT_EQ(transport_->properties(0).joined_bytes, kJoinedBytes);
  send_together({kJoinedBytes, kJoinedBytes + kMaxHeadBytes, kJoinedBytes, kEagerBytes, 8});
  EXPECT_EQ(count("small"), 3);
  receive_all();
}

TEST_F(OfiJoined, WhatWaitsForOthersLeavesWhenItsRequestIsTested) {
  connect();
  sender_->more_follow(true);
  const char first = 'f';
  sends_.push_back(sender_->send(&first, 1, 1, nullptr));
  ASSERT_NE(sends_.back(), nullptr);
  EXPECT_EQ(count("small"), 0);
  EXPECT_TRUE(sends_.back()->test());
  EXPECT_EQ(count("small"), 1);
  receive_one(first);
}

// Nobody may have a reason to look at the connection again but for these requests.
TEST_F(OfiJoined, WhatTheProviderHasNoRoomForIsNotOver) {
  connect();
  fabric_.configure("busy_sends=6");
  send_together({8, 1000, 8});
  EXPECT_EQ(count("small"), 0);
  EXPECT_FALSE(sends_.front()->test());
  until([&] { return sends_.back()->test().has_value(); });
  EXPECT_EQ(count("small"), 1);
  for (const auto& each : sends_) EXPECT_TRUE(each->test());
  receive_all();
}

TEST_F(OfiJoined, WhatWaitsForOthersLeavesBeforeTheEnd) {
  connect();
  sender_->more_follow(true);
  const char last = 'l';
  sends_.push_back(sender_->send(&last, 1, 1, nullptr));
  sends_.clear();
  sender_.reset();
  receive_one(last);
}

TEST_F(OfiJoined, MessagesWithChecksumsLeaveOneByOne) {
  connect("", "all");
  send_together({8, 8, 8});
  EXPECT_EQ(count("small"), 3);
  receive_all();
}

}  // namespace
}  // namespace ropewalk::transport::ofi

#endif  // RW_STAND_IN_LIBFABRIC
