// All ranks begin with the new at one call, however far apart they are.
#include "comm/call_agreement.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "bootstrap/unique_id.h"
#include "core/error.h"

namespace ropewalk::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

constexpr std::uint64_t kNever = CallAgreement::kNever;

// Each rank in a thread, with an agreement.
void with_agreements(
    int size, const std::function<void(int rank, CallAgreement&, bootstrap::Bootstrap&)>& body) {
  const Config config = Config::load();
  const bootstrap::UniqueId id = bootstrap::make_unique_id(config);
  const Deadline deadline = deadline_after(std::chrono::seconds(60));
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r) {
    threads.emplace_back([&, r] {
      try {
        const auto rank = bootstrap::Bootstrap::join(id, r, size, config, deadline);
        {
          CallAgreement agreement(*rank);
          body(r, agreement, *rank);
          agreement.leave();
          rank->leave();
        }
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Makes calls without any work, as Communicator does.
class Caller {
 public:
  explicit Caller(CallAgreement& agreement) : agreement_(agreement) {}
  // The next call. Notes what began with it.
  void call() {
    ++number_;
    if (number_ >= stop_) stop_ = agreement_.pass(number_, check);
    for (const bool on_device : {false, true}) {
      if (number_ < agreement_.next(on_device)) continue;
      for (const auto& [subject, value] : agreement_.take(on_device, number_)) {
        EXPECT_EQ(subject.on_device, on_device);
        began[subject] = number_;
        if (subject.proposal != 0) values.push_back(value);
      }
    }
  }
  [[nodiscard]] std::uint64_t number() const { return number_; }

  std::map<AgreementSubject, std::uint64_t> began;
  std::vector<std::uint64_t> values;  // of proposals
  std::function<void()> check = [end =
                                     std::chrono::steady_clock::now() + std::chrono::seconds(50)] {
    if (std::chrono::steady_clock::now() > end) throw Error(Errc::kTimeout, "no answer");
  };

 private:
  CallAgreement& agreement_;
  std::uint64_t number_ = 0;
  std::uint64_t stop_ = 1;
};

AgreementSubject subject_of(int i) {
  return {i % 2 == 1, i % 3 == 0 ? Collective::kAllReduce : Collective::kBroadcast, i};
}

TEST(CallAgreement, RanksOfAllSpeedsBeginAtTheSameCall) {
  constexpr int kRanks = 4;
  constexpr int kSubjects = 6;
  std::vector<std::map<AgreementSubject, std::uint64_t>> began(kRanks);
  std::atomic<int> done{0};
  with_agreements(kRanks, [&](int rank, CallAgreement& agreement, bootstrap::Bootstrap&) {
    Caller caller(agreement);
    std::thread planner([&, rank] {
      std::mt19937 random(static_cast<unsigned>(rank));
      for (int i = 0; i < kSubjects; ++i) {
        std::this_thread::sleep_for(milliseconds(random() % 8));
        agreement.ready(subject_of(i), 7);
      }
    });
    // Rank 3 makes a call a millisecond, rank 0 some millions a second.
    bool counted = false;
    while (done < kRanks) {
      caller.call();
      if (rank == 1) std::this_thread::sleep_for(microseconds(10));
      if (rank == 2 && caller.number() % 100 == 0) std::this_thread::sleep_for(milliseconds(2));
      if (rank == 3) std::this_thread::sleep_for(milliseconds(1));
      int fixed = 0;
      for (int i = 0; i < kSubjects; ++i) {
        if (agreement.first_call(subject_of(i)) != kNever) ++fixed;
      }
      if (fixed == kSubjects && !counted) {
        counted = true;
        ++done;
      }
    }
    planner.join();
    // All come to the first calls of all, whatever they are.
    std::uint64_t last = 0;
    for (int i = 0; i < kSubjects; ++i) {
      last = std::max(last, agreement.first_call(subject_of(i)));
    }
    while (caller.number() < last) caller.call();
    began[static_cast<std::size_t>(rank)] = caller.began;
  });
  ASSERT_EQ(began[0].size(), static_cast<std::size_t>(kSubjects));
  for (int rank = 1; rank < kRanks; ++rank) {
    EXPECT_EQ(began[static_cast<std::size_t>(rank)], began[0]) << rank;
  }
}

// Rank 0 alone has what others are to begin with.
TEST(CallAgreement, AProposedValueIsEveryRanksFromTheSameCallOn) {
  constexpr int kRanks = 3;
  constexpr std::uint64_t kProposals = 5;
  std::vector<std::map<AgreementSubject, std::uint64_t>> began(kRanks);
  std::atomic<int> done{0};
  with_agreements(kRanks, [&](int rank, CallAgreement& agreement, bootstrap::Bootstrap&) {
    Caller caller(agreement);
    AgreementSubject last;
    while (done < kRanks) {
      caller.call();
      std::this_thread::sleep_for(microseconds(10 + 20 * rank));
      const std::size_t proposed = caller.values.size();
      // The next one once the last has begun here.
      if (rank == 0 && proposed < kProposals && last.proposal == proposed) {
        last = agreement.propose(true, 100 + proposed);
      }
      if (proposed == kProposals && began[static_cast<std::size_t>(rank)].empty()) {
        began[static_cast<std::size_t>(rank)] = caller.began;
        ++done;
      }
    }
    EXPECT_EQ(caller.values, (std::vector<std::uint64_t>{100, 101, 102, 103, 104}));
  });
  EXPECT_EQ(began[0].size(), kProposals);
  EXPECT_EQ(began[1], began[0]);
  EXPECT_EQ(began[2], began[0]);
}

TEST(CallAgreement, NothingIsProposedOnceARankHasLeft) {
  std::atomic<bool> left{false};
  with_agreements(2, [&](int rank, CallAgreement& agreement, bootstrap::Bootstrap&) {
    if (rank == 1) {
      agreement.leave();
      left = true;
      return;
    }
    while (!left) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(50));
    const AgreementSubject subject = agreement.propose(true, 1);
    Caller caller(agreement);
    for (int i = 0; i < 1000; ++i) caller.call();
    EXPECT_EQ(agreement.first_call(subject), kNever);
    EXPECT_TRUE(caller.values.empty());
  });
}

// One thread may make all calls of one rank before those of another.
TEST(CallAgreement, NoCallWaitsForTheCallsOfAnotherRank) {
  std::atomic<bool> first_done{false};
  with_agreements(2, [&](int rank, CallAgreement& agreement, bootstrap::Bootstrap&) {
    agreement.ready(subject_of(0), 7);
    Caller caller(agreement);
    while (rank == 0 && !first_done) std::this_thread::sleep_for(milliseconds(1));
    while (agreement.first_call(subject_of(0)) == kNever) caller.call();
    const std::uint64_t first = agreement.first_call(subject_of(0));
    while (caller.number() < first + 100) caller.call();
    EXPECT_EQ(caller.began[subject_of(0)], first);
    first_done = true;
  });
}

TEST(CallAgreement, NothingBeginsWhereDigestsDifferOrARankWillNot) {
  for (const std::uint64_t of_last : {std::uint64_t{8}, std::uint64_t{0}}) {
    std::atomic<int> refused{0};
    with_agreements(3, [&](int rank, CallAgreement& agreement, bootstrap::Bootstrap& bootstrap) {
      agreement.ready(subject_of(0), rank == 2 ? of_last : 7);
      Caller caller(agreement);
      for (int i = 0; i < 1000; ++i) caller.call();
      bootstrap.barrier(deadline_after(std::chrono::seconds(30)));
      std::this_thread::sleep_for(milliseconds(20));
      for (int i = 0; i < 1000; ++i) caller.call();
      if (caller.began.empty()) ++refused;
    });
    EXPECT_EQ(refused, 3);
  }
}

// A request that arrives when a rank leaves is answered, so that nobody waits for it.
TEST(CallAgreement, ARankThatLeavesKeepsNobodyWaiting) {
  for (int leaver = 0; leaver < 3; ++leaver) {
    for (int round = 0; round < 5; ++round) {
      std::vector<std::uint64_t> began(3, kNever);
      with_agreements(3, [&](int rank, CallAgreement& agreement, bootstrap::Bootstrap&) {
        Caller caller(agreement);
        // The leaver's last calls come while the ranks agree; the others have as many left.
        if (rank != leaver) std::this_thread::sleep_for(milliseconds(round));
        agreement.ready(subject_of(0), 7);
        for (int i = 0; i < 150; ++i) {
          caller.call();
          if (rank != leaver) std::this_thread::sleep_for(microseconds(20));
        }
        const auto found = caller.began.find(subject_of(0));
        if (found != caller.began.end()) began[static_cast<std::size_t>(rank)] = found->second;
      });
      EXPECT_EQ(began[0], began[1]);
      EXPECT_EQ(began[0], began[2]);
    }
  }
}

TEST(CallAgreement, AWaitEndsByItsCheck) {
  with_agreements(2, [&](int rank, CallAgreement& agreement, bootstrap::Bootstrap& bootstrap) {
    const Deadline deadline = deadline_after(std::chrono::seconds(30));
    if (rank == 1) {
      agreement.ready(subject_of(0), 7);
      bootstrap.on_message(0x47000000, [](int, std::span<const std::byte>) {});  // answers nothing
      bootstrap.barrier(deadline);
      bootstrap.barrier(deadline);
      return;
    }
    bootstrap.barrier(deadline);
    agreement.ready(subject_of(0), 7);
    Caller caller(agreement);
    int checks = 0;
    caller.check = [&] {
      if (++checks == 20) throw Error(Errc::kAborted, "enough");
    };
    // The limit stays where it is, so that a call comes to it.
    EXPECT_THROW(
        for (int i = 0; i < 1'000'000; ++i) {
          caller.call();
          if (i > 10'000) std::this_thread::sleep_for(microseconds(100));
        },
        Error);
    EXPECT_EQ(checks, 20);
    bootstrap.barrier(deadline);
  });
}

}  // namespace
}  // namespace ropewalk::comm
