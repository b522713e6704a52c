#include "bootstrap/monitor.h"

#include <gtest/gtest.h>
#include <sys/syscall.h>

#include <chrono>
#include <cstdio>
#include <random>

#include "bootstrap/test_processes.h"

namespace ropewalk::bootstrap {
namespace {

using Kind = Notice::Kind;

// ---- Membership
// ----------------------------------------------------------------------------------

TEST(Membership, TheFirstFinalStateStays) {
  Membership self(0, 4);
  EXPECT_TRUE(self.merge({Kind::kLeft, 2, 1, 0, {}}));
  EXPECT_FALSE(self.merge({Kind::kLeft, 2, 3, 0, {}}));
  EXPECT_FALSE(self.merge({Kind::kLost, 2, 3, 0, "late"}));
  EXPECT_EQ(self.state(2), Membership::State::kLeft);
  EXPECT_EQ(self.num_alive(), 3);
}

TEST(Membership, TheFirstFailureIsTheCause) {
  Membership self(0, 4);
  self.merge({Kind::kLeft, 1, 1, 0, {}});
  EXPECT_EQ(self.first_failure(), -1);
  self.merge({Kind::kLost, 3, 1, 0, "killed"});
  self.merge({Kind::kAborted, 2, 2, 0, "rank 3 is lost"});
  EXPECT_EQ(self.first_failure(), 3);
}

TEST(Membership, TheNextAliveRankSkipsTheGone) {
  Membership self(1, 4);
  EXPECT_EQ(self.next_alive(1), 2);
  self.merge({Kind::kLost, 2, 3, 0, "x"});
  EXPECT_EQ(self.next_alive(1), 3);
  EXPECT_EQ(self.next_alive(3), 0);
  self.merge({Kind::kLost, 0, 3, 0, "x"});
  self.merge({Kind::kAborted, 3, 3, 0, "x"});
  EXPECT_EQ(self.next_alive(1), -1);
}

TEST(Membership, SuspicionsOfSeveralClearOneByOne) {
  Membership self(0, 5);
  EXPECT_TRUE(self.merge({Kind::kSuspected, 2, 1, 1, {}}));
  EXPECT_TRUE(self.merge({Kind::kSuspected, 2, 3, 1, {}}));
  EXPECT_TRUE(self.merge({Kind::kCleared, 2, 1, 2, {}}));
  EXPECT_TRUE(self.suspected(2));
  EXPECT_FALSE(self.merge({Kind::kSuspected, 2, 1, 1, {}}));  // old news by another path
  EXPECT_TRUE(self.merge({Kind::kCleared, 2, 3, 2, {}}));
  EXPECT_FALSE(self.suspected(2));
}

// News go around the ring and over it: earlier news are not forwarded again.
TEST(Membership, TheSameSuspicionIsNewsOnce) {
  Membership self(0, 4);
  const Notice doubt{Kind::kSuspected, 2, 1, 3, {}};
  EXPECT_TRUE(self.merge(doubt));
  EXPECT_FALSE(self.merge(doubt));
  EXPECT_TRUE(self.suspected(2));
  const Notice clear{Kind::kCleared, 2, 1, 4, {}};
  EXPECT_TRUE(self.merge(clear));
  EXPECT_FALSE(self.merge(clear));
  EXPECT_FALSE(self.merge(doubt));
  EXPECT_FALSE(self.suspected(2));
  // Its own, which came back.
  Notice own;
  EXPECT_TRUE(self.set_suspected(3, true, &own));
  EXPECT_FALSE(self.set_suspected(3, true, &own));
  EXPECT_FALSE(self.merge(own));
  EXPECT_TRUE(self.suspected(3));
}

TEST(Membership, ADeadRanksSuspicionCountsNoMore) {
  Membership self(0, 3);
  self.merge({Kind::kSuspected, 2, 1, 1, {}});
  self.merge({Kind::kLost, 1, 2, 0, "x"});
  EXPECT_FALSE(self.suspected(2));
}

TEST(Membership, TheSnapshotInformsANewcomer) {
  Membership self(0, 6);
  self.merge({Kind::kLost, 1, 2, 0, "killed"});
  self.merge({Kind::kLeft, 2, 2, 0, {}});
  self.merge({Kind::kAborted, 3, 3, 0, "why"});
  self.merge({Kind::kSuspected, 4, 5, 7, {}});
  Membership other(5, 6);
  for (const Notice& notice : decode_notices(encode_notices(self.snapshot()), 6))
    other.merge(notice);
  for (int rank = 0; rank < 6; ++rank) {
    EXPECT_EQ(self.state(rank), other.state(rank));
    EXPECT_EQ(self.reason(rank), other.reason(rank));
    EXPECT_EQ(self.suspected(rank), other.suspected(rank));
  }
}

// A rank that connects anew learns the cause first: its error names it.
TEST(Membership, TheSnapshotHasTheOrderOfTheNews) {
  Membership self(0, 6);
  self.merge({Kind::kLost, 4, 3, 0, "killed"});
  self.merge({Kind::kAborted, 1, 1, 0, "rank 4 is lost"});
  self.merge({Kind::kLeft, 2, 2, 0, {}});
  std::vector<int> subjects;
  for (const Notice& notice : self.snapshot()) subjects.push_back(notice.subject);
  EXPECT_EQ(subjects, (std::vector<int>{4, 1, 2}));
  Membership other(5, 6);
  for (const Notice& notice : self.snapshot()) other.merge(notice);
  EXPECT_EQ(other.first_failure(), 4);
}

TEST(Notices, MalformedOnesAreRefused) {
  const std::vector<Notice> one = {{Kind::kLost, 1, 2, 3, "reason"}};
  std::vector<std::byte> bytes = encode_notices(one);
  EXPECT_EQ(decode_notices(bytes, 4).size(), 1U);
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    EXPECT_THROW((void)decode_notices(std::span(bytes).first(length), 4), Error) << length;
  }
  EXPECT_THROW((void)decode_notices(bytes, 1), Error);  // rank 1 of 1
  bytes.push_back(std::byte{0});
  EXPECT_THROW((void)decode_notices(bytes, 4), Error);
  const std::vector<std::byte> many(4, std::byte{0xff});  // claims four thousand million
  EXPECT_THROW((void)decode_notices(many, 4), Error);
}

// ---- processes
// -----------------------------------------------------------------------------------

Config short_config(const char* peer_loss_time = "400ms") {
  Config config = quiet_config();
  config.set("PEER_LOSS_TIME", peer_loss_time, "test");
  return config;
}

/// Obeys: q leave, a abort, f fork a child, c clone one behind libc's back; prints when done.
void obey(Bootstrap& self, Reporter& reporter) {
  for (;;) {
    switch (reporter.command()) {
      case 'q':
        self.leave();
        reporter.say("gone");
        return;
      case 'a':
        self.abort("no more rope");
        reporter.say("aborted");
        return;
      case 'f':
      case 'c': break;
      case 'b':
        self.barrier(soon());
        reporter.say("barrier");
        break;
      default: return;
    }
  }
}

void all_joined(Processes& ranks, int size) {
  for (int rank = 0; rank < size; ++rank) ranks.expect(rank, "joined");
}

void kill_and_check(int size, const std::vector<int>& victims) {
  Processes ranks(size, short_config("5s"), obey);
  all_joined(ranks, size);
  std::vector<std::string> losses;
  for (const int victim : victims) losses.push_back("lost " + std::to_string(victim));
  const auto start = std::chrono::steady_clock::now();
  for (const int victim : victims) ranks.signal(victim, SIGKILL);
  for (int rank = 0; rank < size; ++rank) {
    if (std::find(victims.begin(), victims.end(), rank) != victims.end()) continue;
    ranks.expect_all(rank, losses, {"left", "abort"});
  }
  std::printf(
      "%zu of %d killed, known to all after %.1f ms\n", victims.size(), size,
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count());
  // The survivors' ring is whole again: they leave without taking each other for lost.
  for (int rank = 0; rank < size; ++rank) {
    if (std::find(victims.begin(), victims.end(), rank) != victims.end()) continue;
    ranks.command(rank, 'q');
    ranks.expect(rank, "gone", {"lost"});
    EXPECT_EQ(ranks.wait(rank), 0);
  }
}

TEST(Monitor, AKilledRankIsKnownToAll) { kill_and_check(5, {2}); }
TEST(Monitor, AKilledRankOfTwo) { kill_and_check(2, {0}); }
TEST(Monitor, NeighboursKilledTogether) { kill_and_check(8, {3, 4, 5}); }
TEST(Monitor, RanksKilledHereAndThere) { kill_and_check(9, {0, 4, 5, 7}); }
TEST(Monitor, AllButOneKilled) { kill_and_check(6, {0, 1, 2, 4, 5}); }

TEST(Monitor, ABarrierFailsByTheNameOfTheDead) {
  Processes ranks(4, short_config(), obey);
  all_joined(ranks, 4);
  for (const int rank : {0, 1, 3}) ranks.command(rank, 'b');
  ranks.signal(2, SIGKILL);
  for (const int rank : {0, 1, 3}) {
    const std::string line = ranks.expect(rank, "error", {"barrier"});
    EXPECT_NE(line.find("rank 2"), std::string::npos) << line;
  }
}

TEST(Monitor, AStoppedRankIsSuspectedUntilItGoesOn) {
  Processes ranks(4, short_config(), obey);
  all_joined(ranks, 4);
  ranks.signal(1, SIGSTOP);
  for (const int rank : {0, 2, 3}) ranks.expect(rank, "suspect 1", {"lost"});
  ranks.signal(1, SIGCONT);
  for (const int rank : {0, 2, 3}) ranks.expect(rank, "clear 1", {"lost"});
  for (int rank = 0; rank < 4; ++rank) ranks.command(rank, 'q');
  for (int rank = 0; rank < 4; ++rank) ranks.expect(rank, "gone", {"lost"});
}

TEST(Monitor, AStoppedRankThatIsKilledIsLost) {
  Processes ranks(3, short_config(), obey);
  all_joined(ranks, 3);
  ranks.signal(1, SIGSTOP);
  for (const int rank : {0, 2}) ranks.expect(rank, "suspect 1", {"lost"});
  ranks.signal(1, SIGKILL);
  for (const int rank : {0, 2}) ranks.expect(rank, "lost 1");
}

TEST(Monitor, TheRingIsRepairedAroundAStoppedRank) {
  Processes ranks(6, short_config(), obey);
  all_joined(ranks, 6);
  ranks.signal(3, SIGSTOP);
  ranks.signal(2, SIGKILL);
  for (const int rank : {0, 1, 4, 5}) ranks.expect_all(rank, {"lost 2"}, {"lost 3"});
  // Another death behind the stopped one still reaches all.
  ranks.signal(4, SIGKILL);
  for (const int rank : {0, 1, 5}) ranks.expect_all(rank, {"lost 4"}, {"lost 3"});
  ranks.signal(3, SIGCONT);
  ranks.expect_all(3, {"lost 2", "lost 4"}, {"lost 0", "lost 1", "lost 5"});
}

TEST(Monitor, ThoseWhoLeaveInOrderAreNotLost) {
  constexpr int kSize = 6;
  Processes ranks(kSize, short_config(), obey);
  all_joined(ranks, kSize);
  // One by one, the process ends each time; the rest keep watch.
  for (const int leaver : {1, 0, 3}) {
    ranks.command(leaver, 'q');
    ranks.expect(leaver, "gone", {"lost"});
    EXPECT_EQ(ranks.wait(leaver), 0);
    for (const int rank : {2, 4, 5}) {
      ranks.expect(rank, "left " + std::to_string(leaver), {"lost"});
    }
  }
  ranks.signal(4, SIGKILL);
  for (const int rank : {2, 5}) ranks.expect(rank, "lost 4", {"left"});
}

TEST(Monitor, AllButOneLeaveAtOnce) {
  constexpr int kSize = 12;
  Processes ranks(kSize, short_config("5s"), obey);
  all_joined(ranks, kSize);
  std::vector<std::string> leaving;
  for (int rank = 1; rank < kSize; ++rank) {
    ranks.command(rank, 'q');
    leaving.push_back("left " + std::to_string(rank));
  }
  for (int rank = 1; rank < kSize; ++rank) ranks.expect(rank, "gone", {"lost"});
  ranks.expect_all(0, leaving, {"lost"});
}

TEST(Monitor, ADepartureOutlivesTheNotifiedNeighbour) {
  constexpr int kSize = 6;
  for (const int victim : {1, 3}) {
    Processes ranks(kSize, short_config("5s"), obey);
    all_joined(ranks, kSize);
    ranks.command(2, 'q');
    ranks.expect(2, "gone", {"lost"});
    ranks.signal(victim, SIGKILL);
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank == 2 || rank == victim) continue;
      ranks.expect_all(rank, {"left 2", "lost " + std::to_string(victim)}, {"lost 2"});
    }
  }
}

TEST(Monitor, AnAbortIsReportedWithItsReason) {
  Processes ranks(4, short_config("5s"), obey);
  all_joined(ranks, 4);
  ranks.command(2, 'a');
  for (const int rank : {0, 1, 3}) {
    EXPECT_EQ(ranks.expect(rank, "abort 2", {"lost"}), "abort 2 no more rope");
  }
  ranks.expect(2, "aborted");
  EXPECT_EQ(ranks.wait(2), 0);
}

TEST(Monitor, EndingWithoutLeavingIsGivingUp) {
  Processes ranks(3, short_config("5s"), obey);
  all_joined(ranks, 3);
  ranks.command(1, 'x');  // returns: the Bootstrap is destroyed
  for (const int rank : {0, 2}) {
    EXPECT_EQ(ranks.expect(rank, "abort 1", {"lost"}), "abort 1 destroyed without leaving");
  }
}

/// Rank 1 makes a child that sleeps on, then is killed.
void kill_a_parent(bool behind_libc) {
  Processes ranks(3, short_config(), [&](Bootstrap& self, Reporter& reporter) {
    if (self.rank() == 1) {
      const auto child =
          static_cast<pid_t>(behind_libc ? syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork());
      if (child == 0) {
        // Not pause(): the child must end when the test has gone wrong.
        const timespec long_time{100, 0};
        syscall(SYS_nanosleep, &long_time, nullptr);
        syscall(SYS_exit_group, 0);
      }
      reporter.say("child " + std::to_string(child));
    }
    obey(self, reporter);
  });
  all_joined(ranks, 3);
  const std::string line = ranks.expect(1, "child ");
  const pid_t child = std::stoi(line.substr(6));
  ranks.signal(1, SIGKILL);
  for (const int rank : {0, 2}) ranks.expect(rank, "lost 1");
  kill(child, SIGKILL);
}

TEST(Monitor, AChildDoesNotHideItsParentsDeath) { kill_a_parent(false); }
TEST(Monitor, AClonedChildDoesNotHideItsParentsDeath) { kill_a_parent(true); }

TEST(Monitor, RandomDeathsAndDeparturesAreDistinguished) {
  const unsigned seed = std::random_device()();
  std::printf("seed %u\n", seed);
  SCOPED_TRACE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 5; ++round) {
    constexpr int kSize = 8;
    Processes ranks(kSize, short_config("5s"), obey);
    all_joined(ranks, kSize);
    const int survivor = static_cast<int>(random() % kSize);
    std::vector<std::string> wanted;
    std::vector<int> order;
    for (int rank = 0; rank < kSize; ++rank) {
      if (rank != survivor) order.push_back(rank);
    }
    std::shuffle(order.begin(), order.end(), random);
    std::vector<std::string> refused;
    bool departed = false;  // since the survivor was asked last
    for (const int rank : order) {
      switch (random() % 3) {
        case 0:
          if (departed) {
            // All that the news of a departure have reached so far may be killed next, and the news
            // with them.
            ranks.expect_all(survivor, wanted, refused);
            wanted.clear();
            departed = false;
          }
          ranks.signal(rank, SIGKILL);
          wanted.push_back("lost " + std::to_string(rank));
          refused.push_back("left " + std::to_string(rank));
          break;
        case 1:
          // Those that were killed may still be dying, and the ring not be repaired.
          ranks.command(rank, 'q');
          ranks.expect(rank, "gone");
          wanted.push_back("left " + std::to_string(rank));
          refused.push_back("lost " + std::to_string(rank));
          departed = true;
          break;
        default: break;  // lives
      }
    }
    ranks.expect_all(survivor, wanted, refused);
  }
}

}  // namespace
}  // namespace ropewalk::bootstrap
