#include "bootstrap/bootstrap.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "bootstrap/test_support.h"

namespace ropewalk::bootstrap {
namespace {

TEST(Bootstrap, AllGatherGivesEveryRankEveryBlock) {
  for (const int size : {1, 2, 3, 4, 5, 7, 8, 13}) {
    run_ranks(size, [&](Bootstrap& self) {
      for (int round = 0; round < 3; ++round) {
        std::vector<std::byte> all(static_cast<std::size_t>(size) * 5);
        for (std::size_t i = 0; i < 5; ++i) {
          all[static_cast<std::size_t>(self.rank()) * 5 + i] =
              static_cast<std::byte>(self.rank() * 16 + round + static_cast<int>(i));
        }
        self.all_gather(all, 5, soon());
        for (int rank = 0; rank < size; ++rank) {
          for (std::size_t i = 0; i < 5; ++i) {
            ASSERT_EQ(all[static_cast<std::size_t>(rank) * 5 + i],
                      static_cast<std::byte>(rank * 16 + round + static_cast<int>(i)));
          }
        }
      }
      self.barrier(soon());
    });
  }
}

TEST(Bootstrap, BroadcastFromEveryRoot) {
  constexpr int kSize = 6;
  run_ranks(kSize, [](Bootstrap& self) {
    for (int root = 0; root < kSize; ++root) {
      std::vector<std::byte> data(100'000, static_cast<std::byte>(self.rank() + 1));
      self.broadcast(data, root, soon());
      EXPECT_EQ(data, std::vector<std::byte>(100'000, static_cast<std::byte>(root + 1)));
    }
  });
}

TEST(Bootstrap, MessagesBetweenAllPairsArriveInOrder) {
  constexpr int kSize = 5;
  run_ranks(kSize, [](Bootstrap& self) {
    for (int i = 0; i < 20; ++i) {
      for (int peer = 0; peer < kSize; ++peer) {
        const std::array<std::byte, 2> message = {static_cast<std::byte>(self.rank()),
                                                  static_cast<std::byte>(i)};
        self.send(peer, static_cast<std::uint32_t>(i % 2), message);
      }
    }
    for (int peer = kSize; peer-- > 0;) {
      for (const int parity : {1, 0}) {
        for (int i = parity; i < 20; i += 2) {
          std::array<std::byte, 2> message{};
          self.recv(peer, static_cast<std::uint32_t>(parity), message, soon());
          EXPECT_EQ(message[0], static_cast<std::byte>(peer));
          EXPECT_EQ(message[1], static_cast<std::byte>(i));
        }
      }
    }
  });
}

TEST(Bootstrap, LeavingDoesNotOvertakeMessages) {
  for (int round = 0; round < 30; ++round) {
    run_ranks(4, [](Bootstrap& self) {
      const std::vector<std::byte> data(50'000, std::byte{1});
      // Rank 0 leaves at once; the others may know that before they read.
      if (self.rank() == 0) {
        for (int peer = 1; peer < 4; ++peer) self.send(peer, 1, data);
        return;
      }
      EXPECT_EQ(self.recv(0, 1, soon()), data);
    });
  }
}

TEST(Bootstrap, ManyRanksAsThreads) {
  constexpr int kSize = 256;
  const auto begin = std::chrono::steady_clock::now();
  Context context;
  Config config = quiet_config();
  const UniqueId id = make_unique_id(config, context);
  std::vector<std::unique_ptr<Bootstrap>> all(kSize);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; ++rank) {
    threads.emplace_back([&, rank] {
      all[static_cast<std::size_t>(rank)] =
          Bootstrap::join(id, rank, kSize, config, soon(), context);
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto joined = std::chrono::steady_clock::now();
  threads.clear();
  for (int round = 0; round < 2; ++round) {
    const auto start = std::chrono::steady_clock::now();
    for (auto& self : all) {
      threads.emplace_back([&self] {
        std::vector<std::byte> table(std::size_t{kSize} * 64);
        table[static_cast<std::size_t>(self->rank()) * 64] = static_cast<std::byte>(self->rank());
        self->all_gather(table, 64, soon());
        for (std::size_t rank = 0; rank < kSize; ++rank) {
          EXPECT_EQ(table[rank * 64], static_cast<std::byte>(rank));
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    threads.clear();
    std::printf("all_gather %d: %.1f ms\n", round,
                std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
                    .count());
  }
  const auto start = std::chrono::steady_clock::now();
  for (auto& self : all) threads.emplace_back([&self] { self->leave(); });
  for (std::thread& thread : threads) thread.join();
  const auto end = std::chrono::steady_clock::now();
  const auto ms = [](auto duration) {
    return std::chrono::duration<double, std::milli>(duration).count();
  };
  std::printf("join %.1f ms, leave %.1f ms\n", ms(joined - begin), ms(end - start));
}

}  // namespace
}  // namespace ropewalk::bootstrap
