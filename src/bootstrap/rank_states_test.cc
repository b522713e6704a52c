// The states of a rank's parts: what may follow what.
#include <gtest/gtest.h>

#include <array>

#include "bootstrap/departure.h"
#include "bootstrap/joining.h"
#include "bootstrap/rank_status.h"
#include "bootstrap/reachability.h"

namespace ropewalk::bootstrap {
namespace {

TEST(RankStates, PhasesGoForward) {
  using enum RankPhase;
  constexpr std::array kAll = {kJoining, kJoined, kLeaving, kClosed};
  for (const RankPhase from : kAll) {
    for (const RankPhase to : kAll) {
      const bool next = static_cast<int>(to) == static_cast<int>(from) + 1;
      EXPECT_EQ(may_enter(from, to), from != kClosed && (next || to == kClosed));
    }
  }
}

TEST(RankStates, AnIllegalPhaseIsRefused) {
  RankStatus status(0, 2);
  EXPECT_THROW(status.enter(RankPhase::kLeaving), Error);
  EXPECT_EQ(status.phase(), RankPhase::kJoining);
  status.enter(RankPhase::kJoined);
  EXPECT_THROW(status.enter(RankPhase::kJoining), Error);
  status.enter(RankPhase::kClosed);
  EXPECT_THROW(status.enter(RankPhase::kJoined), Error);
}

TEST(RankStates, JoiningGoesStepByStepOrEnds) {
  using enum Joining::State;
  constexpr std::array kAll = {kConnecting, kIntroduced, kLinking, kLinked, kDone};
  for (const auto from : kAll) {
    for (const auto to : kAll) {
      const bool next = static_cast<int>(to) == static_cast<int>(from) + 1;
      EXPECT_EQ(Joining::may_enter(from, to), from != kDone && (next || to == kDone));
    }
  }
}

TEST(RankStates, DeparturesDoNotGoBack) {
  using enum Departure::State;
  EXPECT_TRUE(Departure::may_enter(kStaying, kDraining));
  EXPECT_TRUE(Departure::may_enter(kStaying, kAnnounced));
  EXPECT_TRUE(Departure::may_enter(kDraining, kAnnounced));
  EXPECT_FALSE(Departure::may_enter(kAnnounced, kDraining));
  EXPECT_FALSE(Departure::may_enter(kAnnounced, kStaying));
  EXPECT_FALSE(Departure::may_enter(kDraining, kStaying));
}

TEST(RankStates, ARefusedPeerIsNotRetried) {
  Reachability peers;
  EXPECT_EQ(peers.of(3), Reach::kReachable);
  EXPECT_FALSE(peers.enter(3, Reach::kReachable));
  EXPECT_TRUE(peers.enter(3, Reach::kRetrying));
  EXPECT_FALSE(peers.any_refused());
  EXPECT_TRUE(peers.enter(3, Reach::kRefused));
  EXPECT_FALSE(peers.enter(3, Reach::kRetrying));
  EXPECT_FALSE(peers.enter(3, Reach::kRefused));
  EXPECT_TRUE(peers.any_refused());
  EXPECT_EQ(peers.of(2), Reach::kReachable);
  EXPECT_TRUE(peers.enter(3, Reach::kReachable));
  EXPECT_FALSE(peers.any_refused());
}

TEST(RankStatusTest, MessagesOfOneKeyStayInOrderAndApartFromOthers) {
  RankStatus status(0, 2);
  const auto channel = MessageChannel::kMessages;
  status.deliver(1, channel, 5, {std::byte{1}});
  status.deliver(1, channel, 5, {std::byte{2}});
  status.deliver(1, MessageChannel::kCollectives, 5, {std::byte{3}});
  EXPECT_FALSE(status.try_receive(1, channel, 6, "test"));
  EXPECT_EQ(status.try_receive(1, channel, 5, "test"), std::vector{std::byte{1}});
  EXPECT_EQ(status.try_receive(1, channel, 5, "test"), std::vector{std::byte{2}});
  EXPECT_FALSE(status.try_receive(1, channel, 5, "test"));
}

TEST(RankStatusTest, AHandlerGetsTheMessagesOfItsTagInOrderAlsoThoseThatHaveArrived) {
  RankStatus status(0, 3);
  const auto channel = MessageChannel::kMessages;
  status.deliver(1, channel, 5, {std::byte{1}});
  status.deliver(2, channel, 5, {std::byte{2}});
  status.deliver(1, channel, 6, {std::byte{3}});
  status.deliver(1, MessageChannel::kCollectives, 5, {std::byte{4}});
  std::vector<std::pair<int, std::byte>> handled;
  status.handle(5, [&](int peer, std::span<const std::byte> message) {
    handled.emplace_back(peer, message[0]);
  });
  status.deliver(1, channel, 5, {std::byte{5}});
  status.deliver(1, MessageChannel::kCollectives, 5, {std::byte{6}});
  const std::vector<std::pair<int, std::byte>> expected{
      {1, std::byte{1}}, {2, std::byte{2}}, {1, std::byte{5}}};
  EXPECT_EQ(handled, expected);
  EXPECT_EQ(status.try_receive(1, channel, 6, "test"), std::vector{std::byte{3}});
  EXPECT_EQ(status.try_receive(1, MessageChannel::kCollectives, 5, "test"),
            std::vector{std::byte{4}});
  status.handle(5, nullptr);
  status.deliver(2, channel, 5, {std::byte{7}});
  EXPECT_EQ(handled.size(), 3U);
  EXPECT_EQ(status.try_receive(2, channel, 5, "test"), std::vector{std::byte{7}});
}

TEST(RankStatusTest, OnlyTheFirstOfLeavingAndAbortingCounts) {
  RankStatus status(0, 2);
  EXPECT_TRUE(status.set_left());
  EXPECT_FALSE(status.set_aborted("late"));
  EXPECT_FALSE(status.set_left());
  try {
    (void)status.try_receive(1, MessageChannel::kMessages, 0, "test");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidUsage);
  }
}

}  // namespace
}  // namespace ropewalk::bootstrap
