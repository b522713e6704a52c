#include "link/mapped_windows.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/test_support.h"
#include "core/settings.h"
#include "transport/registry.h"

namespace ropewalk::link {
namespace {

using bootstrap::run_ranks;

constexpr std::size_t kBytes = 10'000;

MappedWindows::Drivers shared_memory() {
  Config config;
  config.set("NET", "shm", "test");
  return transport::make_window_drivers(config);
}

// Shared memory under another name, which one rank cannot connect to another by, or which one rank
// does not have.
class LimitedDriver final : public transport::window::Driver {
 public:
  struct Limits {
    bool connects = true;
    bool is_there = true;
  };
  explicit LimitedDriver(Limits limits)
      : limits_(limits), driver_(std::move(shared_memory().front())) {}
  [[nodiscard]] std::string name() const override { return "limited"; }
  [[nodiscard]] int num_devices() const override { return limits_.is_there ? 1 : 0; }
  [[nodiscard]] transport::DeviceProperties properties(int device) const override {
    return driver_->properties(device);
  }
  std::unique_ptr<transport::Registration> register_memory(int device, void* data,
                                                           std::size_t bytes,
                                                           transport::MemoryKind kind) override {
    return driver_->register_memory(device, data, bytes, kind);
  }
  std::unique_ptr<transport::window::Acceptor> open_acceptor(
      int device, transport::window::WindowSizes sizes) override {
    return driver_->open_acceptor(device, sizes);
  }
  std::unique_ptr<transport::window::Path> connect(int device, const transport::Handle& handle,
                                                   transport::window::WindowSizes sizes) override {
    if (!limits_.connects) throw Error(Errc::kPeerLost, "limited: nobody answers");
    return driver_->connect(device, handle, sizes);
  }

 private:
  Limits limits_;
  std::unique_ptr<transport::window::Driver> driver_;
};

void exchange_words(bootstrap::Bootstrap& bootstrap, const MappedWindows& windows) {
  const auto word = [](int from, int to) {
    return static_cast<std::uint64_t>(100 * from + to + 1);
  };
  for (int r = 0; r < bootstrap.size(); ++r) {
    if (!windows.between(r)) continue;
    const std::uint64_t sent = word(bootstrap.rank(), r);
    std::memcpy(windows.theirs(r) + kBytes - 8, &sent, 8);
  }
  bootstrap.barrier(bootstrap::soon());
  for (int r = 0; r < bootstrap.size(); ++r) {
    if (!windows.between(r)) continue;
    std::uint64_t came = 0;
    std::memcpy(&came, windows.own(r) + kBytes - 8, 8);
    EXPECT_EQ(came, word(r, bootstrap.rank())) << bootstrap.rank() << " from " << r;
    std::memcpy(&came, windows.own(r), 8);
    EXPECT_EQ(came, 0U);  // what nobody has written
  }
  bootstrap.barrier(bootstrap::soon());
}

TEST(MappedWindows, AreBetweenAllRanksOfDifferentHosts) {
  run_ranks(4, [](bootstrap::Bootstrap& bootstrap) {
    const MappedWindows windows(bootstrap, shared_memory(), {0, 1, 0, 2}, kBytes,
                                bootstrap::soon());
    EXPECT_TRUE(windows.complete());
    EXPECT_EQ(windows.name(), "shm");
    EXPECT_GE(windows.bytes(), kBytes);
    EXPECT_EQ(windows.pairs(), (std::vector<RankPair>{{0, 1}, {0, 3}, {1, 2}, {1, 3}, {2, 3}}));
    EXPECT_FALSE(windows.between(bootstrap.rank()));
    exchange_words(bootstrap, windows);
  });
}

TEST(MappedWindows, AreAgreedWhereOneRankCannotConnect) {
  // Of ranks 0 and 2 the higher one connects.
  run_ranks(3, [](bootstrap::Bootstrap& bootstrap) {
    MappedWindows::Drivers drivers;
    drivers.push_back(std::make_unique<LimitedDriver>(
        LimitedDriver::Limits{.connects = bootstrap.rank() != 2, .is_there = true}));
    const MappedWindows windows(bootstrap, std::move(drivers), {0, 1, 2}, kBytes,
                                bootstrap::soon());
    EXPECT_FALSE(windows.complete());
    EXPECT_EQ(windows.pairs(), (std::vector<RankPair>{{0, 1}}));
    EXPECT_EQ(windows.name(), bootstrap.rank() == 2 ? "" : "limited");
    exchange_words(bootstrap, windows);
  });
}

TEST(MappedWindows, AreOfTheNextDriverWhereTheFirstCannot) {
  run_ranks(3, [](bootstrap::Bootstrap& bootstrap) {
    MappedWindows::Drivers drivers;
    drivers.push_back(std::make_unique<LimitedDriver>(
        LimitedDriver::Limits{.connects = true, .is_there = bootstrap.rank() != 1}));
    drivers.push_back(std::move(shared_memory().front()));
    const MappedWindows windows(bootstrap, std::move(drivers), {0, 1, 2}, kBytes,
                                bootstrap::soon());
    EXPECT_TRUE(windows.complete());
    EXPECT_EQ(windows.name(), bootstrap.rank() == 1 ? "shm" : "limited, shm");
    exchange_words(bootstrap, windows);
  });
}

TEST(MappedWindows, OfAPairThatOneRankFindsUnfitAreGivenUp) {
  run_ranks(3, [](bootstrap::Bootstrap& bootstrap) {
    MappedWindows windows(bootstrap, shared_memory(), {0, 1, 2}, kBytes, bootstrap::soon());
    std::vector<bool> fit(3, true);
    if (bootstrap.rank() == 1) fit[2] = false;
    windows.keep(bootstrap, fit);
    EXPECT_EQ(windows.pairs(), (std::vector<RankPair>{{0, 1}, {0, 2}}));
    EXPECT_EQ(windows.between(0), bootstrap.rank() != 0);
    EXPECT_FALSE(windows.complete());
    exchange_words(bootstrap, windows);
  });
}

TEST(MappedWindows, TellWhoIsLost) {
  run_ranks(2, [](bootstrap::Bootstrap& bootstrap) {
    auto windows = std::make_unique<MappedWindows>(
        bootstrap, shared_memory(), std::vector<int>{0, 1}, kBytes, bootstrap::soon());
    std::atomic<int> told{0};
    windows->watch([&] { ++told; });
    EXPECT_FALSE(windows->lost().has_value());
    bootstrap.barrier(bootstrap::soon());
    if (bootstrap.rank() == 1) {
      windows.reset();
    } else {
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (told == 0 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      EXPECT_EQ(told, 1);
      ASSERT_TRUE(windows->lost().has_value());
      EXPECT_EQ(windows->lost()->code(), Errc::kPeerLost);
      EXPECT_NE(std::string(windows->lost()->what()).find("rank 0 lost rank 1 over shm: "),
                std::string::npos)
          << windows->lost()->what();
    }
    bootstrap.barrier(bootstrap::soon());
  });
}

TEST(MappedWindows, ARankThatSaysGoodbyeIsNotLost) {
  run_ranks(3, [](bootstrap::Bootstrap& bootstrap) {
    auto windows = std::make_unique<MappedWindows>(
        bootstrap, shared_memory(), std::vector<int>{0, 1, 2}, kBytes, bootstrap::soon());
    std::atomic<int> told{0};
    windows->watch([&] { ++told; });
    bootstrap.barrier(bootstrap::soon());
    if (bootstrap.rank() == 1) {
      windows->say_goodbye();
      windows.reset();
    }
    bootstrap.barrier(bootstrap::soon());
    // Rank 2 goes without a word, after which the watch of rank 0 has seen both.
    if (bootstrap.rank() == 2) windows.reset();
    if (bootstrap.rank() == 0) {
      const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (told == 0 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
      ASSERT_TRUE(windows->lost().has_value());
      EXPECT_NE(std::string(windows->lost()->what()).find("lost rank 2"), std::string::npos)
          << windows->lost()->what();
    }
    bootstrap.barrier(bootstrap::soon());
  });
}

TEST(MappedWindows, AreMadeByNoDriverWhereTheSettingsForbidIt) {
  const auto drivers = [](const char* name, const char* value) {
    Config config;
    config.set(name, value, "test");
    return transport::make_window_drivers(config).size();
  };
  EXPECT_EQ(drivers("NET", "auto"), 2U);
  EXPECT_EQ(drivers("NET", "shm"), 1U);
  EXPECT_EQ(drivers("NET", "sisci"), 1U);
  EXPECT_EQ(drivers("NET", "tcp"), 0U);
  EXPECT_EQ(drivers("NET_ENCRYPT", "1"), 0U);
  EXPECT_EQ(drivers("FAULTY", "delay=1us"), 0U);
}

}  // namespace
}  // namespace ropewalk::link
