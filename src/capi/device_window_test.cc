// The functions that kernels call on windows (ropewalk/device.cuh), run by host threads on windows
// in the host's memory: what is said there holds of them too.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "capi/testing/host_team.h"
#include "ropewalk/device.cuh"
#include "ropewalk/messages.h"
#include "ropewalk/ropewalk.h"

namespace {

using ropewalk::capi::testing::check;
using ropewalk::capi::testing::kLanes;
using ropewalk::capi::testing::Rank;
using ropewalk::capi::testing::reset_links;
using ropewalk::capi::testing::set_links;
using ropewalk::capi::testing::Team;
using ropewalk::capi::testing::with_ranks;
using ropewalk::capi::testing::with_team;
using ropewalk::device::Status;
using ropewalk::device::Thread;

// What is between the ranks.
class DeviceFunctions : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { set_links(GetParam()); }
  void TearDown() override { reset_links(); }
};

std::vector<unsigned char> pattern(std::size_t bytes, int rank, int turn) {
  std::vector<unsigned char> made(bytes);
  std::mt19937 random(static_cast<unsigned>(rank * 1000 + turn));
  for (unsigned char& byte : made) byte = static_cast<unsigned char>(random());
  return made;
}

TEST_P(DeviceFunctions, ATeamPutsSignalsAndWaits) {
  with_ranks(3, [](Rank& rank) {
    constexpr std::size_t kMost = 50'001;
    rwMessageWindow_t window = nullptr;
    check(rwWindowCreate(rank.comm, 2 * kMost, 2, &window));
    rwDeviceWindow device;
    check(rwWindowDevice(window, &device));
    void* memory = nullptr;
    check(rwWindowMemory(window, rank.rank, &memory, nullptr));
    const auto* mine = static_cast<const unsigned char*>(memory);
    const int next = (rank.rank + 1) % rank.size;
    const int previous = (rank.rank + rank.size - 1) % rank.size;
    Team::Shared shared;
    std::vector<std::thread> lanes;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      lanes.emplace_back([&, lane] {
        using namespace ropewalk::device;  // NOLINT: as a kernel is written
        const Team team(shared, lane);
        int turn = 0;
        for (const std::size_t bytes :
             {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{9}, kMost}) {
          ++turn;
          const std::vector<unsigned char> source = pattern(bytes, rank.rank, turn);
          EXPECT_EQ(put(team, device, next, turn % 2 == 0 ? 0 : kMost, source.data(), bytes),
                    Status::kDone);
          EXPECT_EQ(signal(team, device, next), Status::kDone);
          EXPECT_EQ(wait_signal(team, device, previous), Status::kDone);
          const std::vector<unsigned char> expected = pattern(bytes, previous, turn);
          EXPECT_TRUE(std::ranges::equal(
              expected, std::span(mine + (turn % 2 == 0 ? 0 : kMost), expected.size())))
              << bytes;
          std::vector<unsigned char> back(bytes);
          EXPECT_EQ(flush(team, device), Status::kDone);
          if (lane == 0) {
            EXPECT_EQ(get(Thread{}, device, next, turn % 2 == 0 ? 0 : kMost, back.data(), bytes),
                      Status::kDone);
            EXPECT_EQ(back, source);
          }
          // The neighbour may write again.
          EXPECT_EQ(signal(team, device, previous, 1), Status::kDone);
          EXPECT_EQ(wait_signal(team, device, next, 1), Status::kDone);
        }
        EXPECT_EQ(signal_count(device, previous), 5U);
      });
    }
    for (std::thread& lane : lanes) lane.join();
    std::uint64_t count = 0;
    check(rwSignalCount(previous, 0, window, &count));
    EXPECT_EQ(count, 5U);
    check(rwWindowFree(window));
  });
}

// One of its threads is late after each barrier.
class LateTeam : public Team {
 public:
  using Team::Team;
  void sync() const {
    Team::sync();
    if (rank() == kLanes - 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
};

TEST_P(DeviceFunctions, AGetSeesWhatAnyOfItsThreadsPut) {
  with_ranks(2, [](Rank& rank) {
    constexpr std::size_t kBytes = 10'001;
    constexpr std::size_t kShift = 16;  // so that each reads what another one stored
    rwMessageWindow_t window = nullptr;
    check(rwWindowCreate(rank.comm, kBytes, 1, &window));
    rwDeviceWindow device;
    check(rwWindowDevice(window, &device));
    Team::Shared shared;
    std::vector<std::vector<unsigned char>> back(5, std::vector<unsigned char>(kBytes - kShift));
    std::vector<std::thread> lanes;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      lanes.emplace_back([&, lane] {
        using namespace ropewalk::device;  // NOLINT: as a kernel is written
        const LateTeam team(shared, lane);
        for (std::size_t turn = 0; turn < back.size(); ++turn) {
          const auto source = pattern(kBytes, rank.rank, static_cast<int>(turn));
          EXPECT_EQ(put(team, device, 1 - rank.rank, 0, source.data(), kBytes), Status::kDone);
          EXPECT_EQ(get(team, device, 1 - rank.rank, kShift, back[turn].data(), kBytes - kShift),
                    Status::kDone);
          EXPECT_EQ(flush(team, device), Status::kDone);
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
    for (std::size_t turn = 0; turn < back.size(); ++turn) {
      const auto source = pattern(kBytes, rank.rank, static_cast<int>(turn));
      EXPECT_TRUE(std::ranges::equal(back[turn], std::span(source).subspan(kShift))) << turn;
    }
    check(rwWindowFree(window));
  });
}

// Kernels go on from what calls had counted, and the two meet.
TEST_P(DeviceFunctions, KernelsAndCallsMeet) {
  with_ranks(2, [](Rank& rank) {
    const int peer = 1 - rank.rank;
    rwMessageWindow_t window = nullptr;
    check(rwWindowCreate(rank.comm, 64, 2, &window));
    for (int slot = 0; slot < 2; ++slot) {
      check(rwSignal(peer, slot, 3, window, nullptr, nullptr));
      check(rwWaitSignal(peer, slot, 3, window, nullptr, nullptr));
    }
    rwDeviceWindow device;
    check(rwWindowDevice(window, &device));
    for (int turn = 0; turn < 20; ++turn) {
      // A kernel's signal that a call waits for, then the other way round.
      EXPECT_EQ(ropewalk::device::signal(Thread{}, device, peer, 0, 2), Status::kDone);
      check(rwWaitSignal(peer, 0, 2, window, nullptr, nullptr));
      check(rwSignal(peer, 1, 1, window, nullptr, nullptr));
      EXPECT_EQ(ropewalk::device::wait_signal(Thread{}, device, peer, 1), Status::kDone);
    }
    check(rwWindowFree(window));
  });
}

// More than the ring of a link holds.
TEST_P(DeviceFunctions, ManyPutsInARow) {
  with_ranks(2, [](Rank& rank) {
    const int peer = 1 - rank.rank;
    constexpr std::size_t kWords = 3000;
    rwMessageWindow_t window = nullptr;
    check(rwWindowCreate(rank.comm, kWords * 8, 1, &window));
    rwDeviceWindow device;
    check(rwWindowDevice(window, &device));
    for (std::uint64_t k = 0; k < kWords; ++k) {
      const std::uint64_t word = k * 3 + static_cast<std::uint64_t>(rank.rank);
      ASSERT_EQ(ropewalk::device::put(Thread{}, device, peer, k * 8, &word, 8), Status::kDone);
    }
    ASSERT_EQ(ropewalk::device::signal(Thread{}, device, peer), Status::kDone);
    ASSERT_EQ(ropewalk::device::wait_signal(Thread{}, device, peer), Status::kDone);
    void* memory = nullptr;
    check(rwWindowMemory(window, rank.rank, &memory, nullptr));
    for (std::uint64_t k = 0; k < kWords; ++k) {
      ASSERT_EQ(static_cast<std::uint64_t*>(memory)[k], k * 3 + static_cast<std::uint64_t>(peer));
    }
    EXPECT_EQ(ropewalk::device::flush(Thread{}, device), Status::kDone);
    check(rwWindowFree(window));
  });
}

TEST_P(DeviceFunctions, WhatCannotBeRightBreaksByName) {
  std::barrier<> ready(2);  // a rank may break the communicator while the other is in a collective
  with_ranks(
      2,
      [&](Rank& rank) {
        rwMessageWindow_t window = nullptr;
        check(rwWindowCreate(rank.comm, 100, 2, &window));
        rwDeviceWindow device;
        check(rwWindowDevice(window, &device));
        ready.arrive_and_wait();
        const std::array<unsigned char, 60> source{};
        if (rank.rank == 0) {
          EXPECT_EQ(ropewalk::device::signal(Thread{}, device, 1, 2), Status::kBadRange);
          EXPECT_EQ(ropewalk::device::put(Thread{}, device, 2, 0, source.data(), 1),
                    Status::kBadRange);
          EXPECT_EQ(ropewalk::device::put(Thread{}, device, 1, 41, source.data(), 60),
                    Status::kBadRange);
        }
        // Of the other rank it is the abort that ends the wait.
        EXPECT_EQ(ropewalk::device::wait_signal(Thread{}, device, 1 - rank.rank), Status::kAborted);
        EXPECT_EQ(rwSignal(1 - rank.rank, 0, 1, window, nullptr, nullptr),
                  rank.rank == 0 ? rwInvalidArgument : rwRemoteError);
        if (rank.rank == 0) {
          EXPECT_NE(std::string(rwGetLastError(rank.comm)).find("a kernel used a window"),
                    std::string::npos)
              << rwGetLastError(rank.comm);
        }
      },
      false);
}

// Deadlines are set behind what all ranks do together, which may take as long on a machine under
// load.
constexpr std::int64_t kShortDeadlineUs = 200'000;

// The host hears a little later what a kernel came to.
rwResult_t failure_of_signals(int peer, rwMessageWindow_t window) {
  rwResult_t told = rwSuccess;
  for (int turn = 0; turn < 5000 && told == rwSuccess; ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    told = rwSignal(peer, 0, 1, window, nullptr, nullptr);
  }
  return told;
}

TEST_P(DeviceFunctions, AWaitEndsByItsDeadline) {
  std::atomic<int> waited{0};
  std::atomic<int> ended{0};
  with_ranks(
      2,
      [&](Rank& rank) {
        rwMessageWindow_t window = nullptr;
        check(rwWindowCreate(rank.comm, 0, 1, &window));
        check(rwCommSetTimeout(rank.comm, kShortDeadlineUs));
        rwDeviceWindow device;
        check(rwWindowDevice(window, &device));
        const auto begin = std::chrono::steady_clock::now();
        EXPECT_NE(ropewalk::device::wait_signal(Thread{}, device, 1 - rank.rank), Status::kDone);
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
        // A signal that comes through meanwhile would end the other's wait well.
        ++waited;
        while (waited < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        const rwResult_t told = failure_of_signals(1 - rank.rank, window);
        EXPECT_TRUE(told == rwTimeout || told == rwRemoteError) << told;
        ++ended;
        while (ended < 2) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      },
      false);
}

// ---- counters -----------------------------------------------------------------------------------

// Of waits that an abort ends long before.
constexpr std::int64_t kFailsAfterUs = 15'000'000;
constexpr std::uint64_t kMostSignals = (std::uint64_t{1} << 63U) - 1;

TEST_P(DeviceFunctions, CountersGoToTheirEnd) {
  with_ranks(2, [](Rank& rank) {
    const int peer = 1 - rank.rank;
    rwMessageWindow_t window = nullptr;
    check(rwWindowCreate(rank.comm, 0, 1, &window));
    rwDeviceWindow device;
    check(rwWindowDevice(window, &device));
    for (const std::uint64_t count : {kMostSignals - 3, std::uint64_t{2}, std::uint64_t{1}}) {
      EXPECT_EQ(ropewalk::device::signal(Thread{}, device, peer, 0, count), Status::kDone);
      EXPECT_EQ(ropewalk::device::wait_signal(Thread{}, device, peer, 0, count), Status::kDone);
    }
    EXPECT_EQ(ropewalk::device::signal_count(device, peer), kMostSignals);
    check(rwWindowFree(window));
  });
}

// Who of a team is told that something cannot be counted; the host always is.
enum class Told { kAll, kSome, kPerhapsNobody };

// What a team's threads got. Threads: any.
struct Answers {
  std::atomic<int> done = 0;
  std::atomic<int> refused = 0;
  void add(Status status) {
    EXPECT_TRUE(status == Status::kDone || status == Status::kBadRange) << static_cast<int>(status);
    ++(status == Status::kDone ? done : refused);
  }
  void expect(Told told) const {
    if (told == Told::kAll) {
      EXPECT_EQ(done, 0);
    }
    if (told != Told::kPerhapsNobody) {
      EXPECT_GT(refused, 0);
    }
  }
};

// Has rank 0's team do what cannot be counted.
void expect_refusal(const std::function<Status(const Team&, const rwDeviceWindow&)>& call,
                    Told told, std::uint64_t before = 0) {
  std::barrier<> both(2);
  with_ranks(
      2,
      [&](Rank& rank) {
        const int peer = 1 - rank.rank;
        rwMessageWindow_t window = nullptr;
        check(rwWindowCreate(rank.comm, 0, 2, &window));
        check(rwCommSetTimeout(rank.comm, kFailsAfterUs));
        rwDeviceWindow device;
        check(rwWindowDevice(window, &device));
        if (before > 0) {
          EXPECT_EQ(ropewalk::device::signal(Thread{}, device, peer, 0, before), Status::kDone);
          EXPECT_EQ(ropewalk::device::wait_signal(Thread{}, device, peer, 0, before),
                    Status::kDone);
        }
        both.arrive_and_wait();
        if (rank.rank == 0) {
          Answers answers;
          with_team([&](const Team& team) { answers.add(call(team, device)); });
          answers.expect(told);
        }
        EXPECT_EQ(ropewalk::device::wait_signal(Thread{}, device, peer, 1), Status::kAborted);
        EXPECT_EQ(rwSignal(peer, 1, 1, window, nullptr, nullptr),
                  rank.rank == 0 ? rwInvalidArgument : rwRemoteError);
        if (rank.rank == 0) {
          EXPECT_NE(std::string(rwGetLastError(rank.comm)).find("a counter ends"),
                    std::string::npos)
              << rwGetLastError(rank.comm);
        }
        both.arrive_and_wait();
        EXPECT_EQ(ropewalk::device::signal_count(device, peer), before);
      },
      false);
}

TEST_P(DeviceFunctions, CountsThatNoCounterHoldsAreRefused) {
  for (const std::uint64_t count : {std::uint64_t{0}, kMostSignals + 1, ~std::uint64_t{0}}) {
    expect_refusal(
        [&](const Team& team, const rwDeviceWindow& device) {
          return ropewalk::device::signal(team, device, 1, 0, count);
        },
        Told::kAll);
    expect_refusal(
        [&](const Team& team, const rwDeviceWindow& device) {
          return ropewalk::device::wait_signal(team, device, 1, 0, count);
        },
        Told::kAll);
  }
}

// What a link carries the host counts.
TEST_P(DeviceFunctions, CountersEndBeforeTheyOverflow) {
  expect_refusal(
      [&](const Team& team, const rwDeviceWindow& device) {
        return ropewalk::device::signal(team, device, 1, 0, 2);
      },
      GetParam() == "memory" ? Told::kSome : Told::kPerhapsNobody, kMostSignals - 1);
  expect_refusal(
      [&](const Team& team, const rwDeviceWindow& device) {
        return ropewalk::device::wait_signal(team, device, 1, 0, 2);
      },
      Told::kAll, kMostSignals - 1);
}

// Launched twice: the second time is too much. Of more signals than a team has threads the last one
// is.
TEST_P(DeviceFunctions, ABatchThatWouldOverflowIsRefused) {
  for (const int slots : {1, kLanes + 2}) {
    std::barrier<> both(2);
    with_ranks(
        2,
        [&](Rank& rank) {
          const int peer = 1 - rank.rank;
          rwMessageWindow_t window = nullptr;
          check(rwWindowCreate(rank.comm, 0, slots + 1, &window));
          check(rwCommSetTimeout(rank.comm, kFailsAfterUs));
          rwBatch_t batch = nullptr;
          check(rwBatchCreate(rank.comm, &batch));
          for (int slot = 0; slot < slots; ++slot) {
            const bool last = slot == slots - 1;
            check(rwBatchSignal(batch, peer, slot, last ? kMostSignals / 2 + 1 : 1, window));
          }
          rwDeviceBatch list{};
          rwDeviceWindow device;
          check(rwWindowDevice(window, &device));
          check(rwBatchDevice(batch, &list));
          const auto launch = [&](bool fits) {
            Answers answers;
            with_team([&](const Team& team) { answers.add(ropewalk::device::launch(team, list)); });
            if (fits) {
              EXPECT_EQ(answers.refused, 0);
            } else {
              answers.expect(GetParam() == "memory" ? Told::kSome : Told::kPerhapsNobody);
            }
          };
          if (rank.rank == 0) {
            launch(true);
          } else {
            EXPECT_EQ(
                ropewalk::device::wait_signal(Thread{}, device, 0, slots - 1, kMostSignals / 2 + 1),
                Status::kDone);
          }
          both.arrive_and_wait();
          if (rank.rank == 0) launch(false);
          EXPECT_EQ(ropewalk::device::wait_signal(Thread{}, device, peer, slots), Status::kAborted);
          EXPECT_EQ(rwSignal(peer, slots, 1, window, nullptr, nullptr),
                    rank.rank == 0 ? rwInvalidArgument : rwRemoteError)
              << rwGetLastError(rank.comm);
          both.arrive_and_wait();
          check(rwBatchFree(batch));
        },
        false);
  }
}

// ---- a rank that left ---------------------------------------------------------------------------

// What kernels put to it goes to memory that its host still has, or a link says that it left.
TEST_P(DeviceFunctions, ARankThatLeft) {
  std::barrier<> all(3);
  with_ranks(
      3,
      [&](Rank& rank) {
        rwMessageWindow_t window = nullptr;
        check(rwWindowCreate(rank.comm, 8, 1, &window));
        rwDeviceWindow device;
        check(rwWindowDevice(window, &device));
        if (rank.rank == 2) {
          check(rwCommDestroy(rank.comm));
          rank.comm = nullptr;
          all.arrive_and_wait();
          return;
        }
        // Calls of the host are refused without effect.
        EXPECT_EQ(failure_of_signals(2, window), rwRemoteError) << rwGetLastError(rank.comm);
        const std::uint64_t word = 1;
        if (rank.rank == 0) {
          EXPECT_EQ(ropewalk::device::put(Thread{}, device, 2, 0, &word, 8), Status::kDone);
          EXPECT_EQ(ropewalk::device::signal(Thread{}, device, 2), Status::kDone);
        }
        if (GetParam() == "memory") {
          EXPECT_EQ(ropewalk::device::signal(Thread{}, device, 1 - rank.rank), Status::kDone);
          EXPECT_EQ(ropewalk::device::wait_signal(Thread{}, device, 1 - rank.rank), Status::kDone);
        } else {
          EXPECT_EQ(ropewalk::device::wait_signal(Thread{}, device, 1 - rank.rank),
                    Status::kAborted);
          EXPECT_EQ(rwSignal(1 - rank.rank, 0, 1, window, nullptr, nullptr), rwRemoteError);
          if (rank.rank == 0) {
            EXPECT_NE(std::string(rwGetLastError(rank.comm)).find("rank 2 left"), std::string::npos)
                << rwGetLastError(rank.comm);
          }
        }
        all.arrive_and_wait();
      },
      false);
}

// ---- batches ------------------------------------------------------------------------------------

// Puts of many lengths to both neighbours from two windows, signals, and waits for theirs, by one
// call of a team, again and again; the host's calls count on before.
TEST_P(DeviceFunctions, ATeamLaunchesABatch) {
  with_ranks(3, [](Rank& rank) {
    constexpr std::array<std::size_t, 7> kLengths{0, 1, 8, 16, 33, 500, 5000};
    constexpr std::size_t kMost = 5600;
    const std::array<int, 2> peers{(rank.rank + 1) % 3, (rank.rank + 2) % 3};
    std::array<rwMessageWindow_t, 2> windows{};
    for (rwMessageWindow_t& window : windows)
      check(rwWindowCreate(rank.comm, 3 * kMost, 2, &window));
    for (const int peer : peers) check(rwSignal(peer, 1, 2, windows[0], nullptr, nullptr));
    for (const int peer : peers) check(rwWaitSignal(peer, 1, 2, windows[0], nullptr, nullptr));
    std::vector<unsigned char> source(kMost);
    rwBatch_t batch = nullptr;
    check(rwBatchCreate(rank.comm, &batch));
    for (const int peer : peers) {
      for (rwMessageWindow_t window : windows) {
        std::size_t at = 0;
        for (const std::size_t bytes : kLengths) {
          check(rwBatchPut(batch, &source[at], bytes, peer,
                           static_cast<std::size_t>(rank.rank) * kMost + at, window));
          at += bytes;
        }
        check(rwBatchSignal(batch, peer, 1, 1, window));
        check(rwBatchSignal(batch, peer, 1, 2, window));
      }
    }
    for (const int peer : peers) {
      for (rwMessageWindow_t window : windows) check(rwBatchWaitSignal(batch, peer, 1, 3, window));
    }
    rwDeviceBatch list{};
    check(rwBatchDevice(batch, &list));
    EXPECT_EQ(list.num_puts, 24U);  // without those of nothing
    EXPECT_EQ(list.num_signals, 4U);
    EXPECT_EQ(list.num_waits, 4U);
    std::array<rwDeviceWindow, 2> devices{};
    for (std::size_t w = 0; w < 2; ++w) check(rwWindowDevice(windows[w], &devices[w]));
    constexpr std::size_t kUsed = 1 + 8 + 16 + 33 + 500 + 5000;
    Team::Shared shared;
    std::vector<std::thread> lanes;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      lanes.emplace_back([&, lane] {
        const Team team(shared, lane);
        for (int turn = 1; turn <= 10; ++turn) {
          if (lane == 0) std::ranges::copy(pattern(kMost, rank.rank, turn), source.begin());
          ASSERT_EQ(ropewalk::device::launch(team, list), Status::kDone);
          ASSERT_EQ(ropewalk::device::flush(team, devices[0]), Status::kDone);
          for (rwMessageWindow_t window : windows) {
            void* memory = nullptr;
            check(rwWindowMemory(window, rank.rank, &memory, nullptr));
            for (const int peer : peers) {
              const auto* const got = static_cast<const unsigned char*>(memory) +
                                      static_cast<std::size_t>(peer) * kMost;
              const std::vector<unsigned char> expected = pattern(kMost, peer, turn);
              ASSERT_EQ(std::memcmp(got, expected.data(), kUsed), 0) << peer << ", " << turn;
            }
          }
          // They may put again when all have looked.
          for (const int peer : peers) {
            ASSERT_EQ(ropewalk::device::signal(team, devices[0], peer), Status::kDone);
          }
          for (const int peer : peers) {
            ASSERT_EQ(ropewalk::device::wait_signal(team, devices[0], peer), Status::kDone);
          }
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
    for (const int peer : peers) {
      std::uint64_t count = 0;
      check(rwSignalCount(peer, 1, windows[0], &count));
      EXPECT_EQ(count, 32U);
      check(rwSignalCount(peer, 1, windows[1], &count));
      EXPECT_EQ(count, 30U);
    }
    check(rwBarrier(rank.comm));
    check(rwBatchFree(batch));
    for (rwMessageWindow_t window : windows) check(rwWindowFree(window));
  });
}

TEST_P(DeviceFunctions, BatchesThatKernelsCannotLaunch) {
  with_ranks(2, [](Rank& rank) {
    const int peer = 1 - rank.rank;
    rwMessageWindow_t window = nullptr;
    check(rwWindowCreate(rank.comm, 100, 1, &window));
    std::array<unsigned char, 100> memory{};
    rwBatch_t batch = nullptr;
    rwDeviceBatch list{};
    const auto refuses = [&](const char* words, const std::function<void()>& add) {
      check(rwBatchCreate(rank.comm, &batch));
      add();
      EXPECT_EQ(rwBatchDevice(batch, &list), rwInvalidUsage) << words;
      EXPECT_NE(std::string(rwGetLastError(rank.comm)).find(words), std::string::npos)
          << rwGetLastError(rank.comm);
      check(rwBatchFree(batch));
    };
    refuses("no operations", [] {});
    refuses("puts, signals and waits alone",
            [&] { check(rwBatchGet(batch, memory.data(), 8, peer, 0, window)); });
    refuses("puts, signals and waits alone", [&] { check(rwBatchFlush(batch, peer, window)); });
    refuses("waits at the end", [&] {
      check(rwBatchWaitSignal(batch, peer, 0, 1, window));
      check(rwBatchPut(batch, memory.data(), 8, peer, 0, window));
    });
    refuses("no puts that overlap", [&] {
      check(rwBatchPut(batch, memory.data(), 8, peer, 16, window));
      check(rwBatchPut(batch, memory.data(), 8, peer, 0, window));
      check(rwBatchPut(batch, memory.data(), 17, peer, 0, window));
    });
    refuses("whose sum no counter holds", [&] {
      check(rwBatchSignal(batch, peer, 0, kMostSignals, window));
      check(rwBatchSignal(batch, rank.rank, 0, 1, window));  // another one
      check(rwBatchSignal(batch, peer, 0, 1, window));
    });
    void* mine = nullptr;
    check(rwWindowMemory(window, rank.rank, &mine, nullptr));
    refuses("from where another one puts", [&] {
      check(rwBatchPut(batch, memory.data(), 8, rank.rank, 16, window));
      check(rwBatchPut(batch, static_cast<unsigned char*>(mine) + 23, 1, peer, 0, window));
    });
    EXPECT_EQ(rwBatchDevice(nullptr, &list), rwInvalidArgument);
    // Beside each other they may be, and the communicator is whole.
    check(rwBatchCreate(rank.comm, &batch));
    check(rwBatchPut(batch, memory.data(), 8, rank.rank, 16, window));
    check(rwBatchPut(batch, static_cast<unsigned char*>(mine) + 24, 1, peer, 0, window));
    check(rwBatchPut(batch, memory.data(), 15, peer, 1, window));
    check(rwBatchDevice(batch, &list));
    check(rwBatchFree(batch));
    check(rwWindowFree(window));
  });
}

TEST_P(DeviceFunctions, ABatchsWaitEndsByItsDeadline) {
  std::barrier<> both(2);
  with_ranks(
      2,
      [&](Rank& rank) {
        rwMessageWindow_t window = nullptr;
        check(rwWindowCreate(rank.comm, 0, 1, &window));
        check(rwCommSetTimeout(rank.comm, kShortDeadlineUs));
        rwBatch_t batch = nullptr;
        check(rwBatchCreate(rank.comm, &batch));
        check(rwBatchWaitSignal(batch, 1 - rank.rank, 0, 1, window));
        rwDeviceBatch list{};
        check(rwBatchDevice(batch, &list));
        both.arrive_and_wait();
        EXPECT_NE(ropewalk::device::launch(Thread{}, list), Status::kDone);
        both.arrive_and_wait();
        check(rwBatchFree(batch));
      },
      false);
}

// ---- queues -------------------------------------------------------------------------------------

rwMessageWindow_t make_queues(const Rank& rank, std::size_t bytes, int slots,
                              rwDeviceWindow& device) {
  rwMessageWindow_t window = nullptr;
  check(rwWindowCreateQueues(rank.comm, -1, bytes, slots, &window));
  check(rwWindowDevice(window, &device));
  return window;
}

// In a circle, all ranks at once, by teams of threads: messages that fill a queue, and more.
TEST_P(DeviceFunctions, TeamsSendAndReceive) {
  with_ranks(3, [](Rank& rank) {
    constexpr std::size_t kRoom = 1000;
    rwDeviceWindow device;
    rwMessageWindow_t window = make_queues(rank, kRoom, 2, device);
    const int next = (rank.rank + 1) % rank.size;
    const int previous = (rank.rank + rank.size - 1) % rank.size;
    Team::Shared shared;
    // Shared by the team, as memory of a kernel is.
    std::vector<unsigned char> source(kRoom + 8);
    std::vector<unsigned char> got(kRoom + 8);
    std::vector<std::thread> lanes;
    for (unsigned lane = 0; lane < kLanes; ++lane) {
      lanes.emplace_back([&, lane] {
        using namespace ropewalk::device;  // NOLINT: as a kernel is written
        const Team team(shared, lane);
        int turn = 0;
        for (int lap = 0; lap < 20; ++lap) {
          for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{8},
                                          std::size_t{13}, std::size_t{500}, kRoom}) {
            const int slot = ++turn % 2;
            const std::size_t shift = static_cast<std::size_t>(turn % 8);  // aligned or not
            if (lane == 0) std::ranges::copy(pattern(bytes, rank.rank, turn), &source[shift]);
            if (lane == 0) std::ranges::fill(got, 0xee);
            ASSERT_EQ(send(team, device, next, &source[shift], bytes, slot), Status::kDone);
            ASSERT_EQ(receive(team, device, previous, &got[shift], bytes, slot), Status::kDone);
            const std::vector<unsigned char> expected = pattern(bytes, previous, turn);
            ASSERT_TRUE(std::ranges::equal(expected, std::span(got).subspan(shift, bytes)))
                << bytes << " bytes, turn " << turn;
            // Nothing beyond.
            ASSERT_EQ(got[shift + bytes < got.size() ? shift + bytes : 0], 0xee);
            team.sync();
          }
        }
      });
    }
    for (std::thread& lane : lanes) lane.join();
    check(rwWindowFree(window));
  });
}

// One sends as far ahead as there is room, in messages that are longer than the queue, too, while
// the other takes them in other pieces.
TEST_P(DeviceFunctions, ASenderRunsAheadAsFarAsThereIsRoom) {
  with_ranks(2, [](Rank& rank) {
    constexpr std::size_t kRoom = 512;
    constexpr std::size_t kWords = 20'000;
    rwDeviceWindow device;
    rwMessageWindow_t window = make_queues(rank, kRoom, 1, device);
    std::vector<std::uint64_t> words(kWords);
    std::mt19937 random(static_cast<unsigned>(7 + rank.rank));
    std::size_t at = 0;
    while (at < kWords) {
      const std::size_t count = std::min<std::size_t>(random() % 200, kWords - at);
      if (rank.rank == 0) {
        for (std::size_t k = 0; k < count; ++k) words[at + k] = 3 * (at + k);
        ASSERT_EQ(ropewalk::device::send(Thread{}, device, 1, &words[at], count * 8),
                  Status::kDone);
      } else {
        ASSERT_EQ(ropewalk::device::receive(Thread{}, device, 0, &words[at], count * 8),
                  Status::kDone);
      }
      at += count;
    }
    if (rank.rank == 1) {
      for (std::size_t k = 0; k < kWords; ++k) ASSERT_EQ(words[k], 3 * k);
    }
    check(rwWindowFree(window));
  });
}

// While one thread sends another one receives, to and from the same rank on the same slot: neither
// changes what the other one has counted.
TEST_P(DeviceFunctions, OneSendsWhileAnotherReceives) {
  with_ranks(2, [](Rank& rank) {
    constexpr std::uint64_t kMessages = 5000;
    rwDeviceWindow device;
    rwMessageWindow_t window = make_queues(rank, 512, 1, device);
    const int peer = 1 - rank.rank;
    std::thread sender([&] {
      for (std::uint64_t k = 0; k < kMessages; ++k) {
        const std::uint64_t word = 3 * k + static_cast<std::uint64_t>(rank.rank);
        ASSERT_EQ(ropewalk::device::send(Thread{}, device, peer, &word, 8), Status::kDone);
      }
    });
    for (std::uint64_t k = 0; k < kMessages; ++k) {
      std::uint64_t word = 0;
      ASSERT_EQ(ropewalk::device::receive(Thread{}, device, peer, &word, 8), Status::kDone);
      ASSERT_EQ(word, 3 * k + static_cast<std::uint64_t>(peer));
    }
    sender.join();
    check(rwWindowFree(window));
  });
}

// Room for what was not received yet, and no more: the sender waits then, and ends by its deadline.
TEST_P(DeviceFunctions, AFullQueueEndsByItsDeadline) {
  std::barrier<> both(2);
  with_ranks(
      2,
      [&](Rank& rank) {
        rwMessageWindow_t window = nullptr;
        check(rwWindowCreateQueues(rank.comm, -1, 512, 1, &window));
        check(rwCommSetTimeout(rank.comm, kShortDeadlineUs));
        rwDeviceWindow device;
        check(rwWindowDevice(window, &device));
        both.arrive_and_wait();
        if (rank.rank == 0) {
          const std::array<std::uint64_t, 64> words{};
          EXPECT_EQ(ropewalk::device::send(Thread{}, device, 1, words.data(), 512), Status::kDone);
          // What it has room for beyond that is its own affair, but it ends.
          Status status = Status::kDone;
          for (int k = 0; k < 1000 && status == Status::kDone; ++k) {
            status = ropewalk::device::send(Thread{}, device, 1, words.data(), 8);
          }
          EXPECT_EQ(status, Status::kTimeout);
          EXPECT_EQ(failure_of_signals(1, window), rwTimeout) << rwGetLastError(rank.comm);
        }
        both.arrive_and_wait();
      },
      false);
}

// A queue is a row of words of eight bytes: a message may be taken in pieces, and of what was not
// sent a receiver waits.
TEST_P(DeviceFunctions, LengthsOfMessagesAreForTheProgramToKnow) {
  std::barrier<> both(2);
  with_ranks(
      2,
      [&](Rank& rank) {
        rwDeviceWindow device;
        rwDeviceWindow impatient;
        (void)make_queues(rank, 512, 1, device);
        rwMessageWindow_t window = nullptr;
        check(rwWindowCreateQueues(rank.comm, -1, 512, 1, &window));
        check(rwCommSetTimeout(rank.comm, kShortDeadlineUs));
        check(rwWindowDevice(window, &impatient));
        both.arrive_and_wait();
        std::array<std::uint64_t, 2> words{};
        if (rank.rank == 0) {
          words = {1, 2};
          EXPECT_EQ(ropewalk::device::send(Thread{}, device, 1, words.data(), 16), Status::kDone);
          EXPECT_EQ(ropewalk::device::send(Thread{}, impatient, 1, words.data(), 8), Status::kDone);
        } else {
          for (std::uint64_t& word : words) {
            EXPECT_EQ(ropewalk::device::receive(Thread{}, device, 0, &word, 8), Status::kDone);
          }
          EXPECT_EQ(words, (std::array<std::uint64_t, 2>{1, 2}));
          EXPECT_EQ(ropewalk::device::receive(Thread{}, impatient, 0, words.data(), 16),
                    Status::kTimeout);
          EXPECT_EQ(failure_of_signals(0, window), rwTimeout) << rwGetLastError(rank.comm);
        }
        both.arrive_and_wait();
      },
      false);
}

TEST_P(DeviceFunctions, QueuesRefuseWhatCannotBeRight) {
  std::barrier<> both(2);
  with_ranks(
      2,
      [&](Rank& rank) {
        rwMessageWindow_t window = nullptr;
        // Told by all ranks, also those that asked for what is right; the communicator stays whole.
        EXPECT_EQ(rwWindowCreateQueues(rank.comm, -1, rank.rank == 0 ? 0 : 512, 1, &window),
                  rwInvalidArgument);
        EXPECT_EQ(rwWindowCreateQueues(rank.comm, -1, (std::size_t{16} << 20U) + 1, 1, &window),
                  rwInvalidArgument);
        EXPECT_EQ(rwWindowCreateQueues(rank.comm, -1, rank.rank == 0 ? 512 : 2048, 1, &window),
                  rwInvalidUsage)
            << rwGetLastError(rank.comm);
        EXPECT_EQ(rank.rank == 0 ? rwWindowCreate(rank.comm, 512, 1, &window)
                                 : rwWindowCreateQueues(rank.comm, -1, 512, 1, &window),
                  rwInvalidUsage);
        rwDeviceWindow queues;
        window = make_queues(rank, 512, 1, queues);
        const std::uint64_t word = 1;
        EXPECT_EQ(rwPut(&word, 8, 1 - rank.rank, 0, window, nullptr, nullptr), rwInvalidArgument);
        std::size_t bytes = 1;
        check(rwWindowMemory(window, rank.rank, nullptr, &bytes));
        EXPECT_EQ(bytes, 0U);
        // Signals are as on other windows.
        check(rwSignal(1 - rank.rank, 0, 1, window, nullptr, nullptr));
        check(rwWaitSignal(1 - rank.rank, 0, 1, window, nullptr, nullptr));
        rwMessageWindow_t plain = nullptr;
        check(rwWindowCreate(rank.comm, 64, 1, &plain));
        rwDeviceWindow without;
        check(rwWindowDevice(plain, &without));
        check(rwBarrier(rank.comm));
        both.arrive_and_wait();
        if (rank.rank == 0) {
          EXPECT_EQ(ropewalk::device::send(Thread{}, queues, 1, &word, 8, 1), Status::kBadRange);
          EXPECT_EQ(ropewalk::device::send(Thread{}, queues, 2, &word, 8), Status::kBadRange);
          EXPECT_EQ(ropewalk::device::send(Thread{}, without, 1, &word, 8), Status::kBadRange);
          std::uint64_t there = 0;
          EXPECT_EQ(ropewalk::device::receive(Thread{}, without, 1, &there, 8), Status::kBadRange);
        } else {
          std::uint64_t there = 0;
          EXPECT_EQ(ropewalk::device::receive(Thread{}, queues, 0, &there, 8), Status::kAborted);
        }
        both.arrive_and_wait();
      },
      false);
}

INSTANTIATE_TEST_SUITE_P(Between, DeviceFunctions, ::testing::Values("memory", "tcp", "shm"),
                         [](const ::testing::TestParamInfo<std::string>& each) {
                           return each.param;
                         });

}  // namespace
