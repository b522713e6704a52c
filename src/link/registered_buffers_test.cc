// Registered buffers among ranks that are threads, each taken for a process of its own.
#include "link/registered_buffers.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "bootstrap/test_support.h"

namespace ropewalk::link {
namespace {

using bootstrap::error_of;
using bootstrap::in_ms;
using bootstrap::run_ranks;
using bootstrap::soon;

// A stand-in for the driver. Allocations are at addresses of their own in every rank, and no memory
// is behind them.
class Driver {
 public:
  std::atomic<int> open_now{0};
  std::atomic<int> opened_ever{0};
};

constexpr std::uint64_t kMapped = 0x7000'0000'0000;
constexpr std::uint64_t kBroken = 0x2000;  // the driver fails when it is asked for this

std::uint64_t allocation_of(int rank, int which = 0) {
  return 0x1000'0000 + static_cast<std::uint64_t>(rank) * 0x100'0000 +
         static_cast<std::uint64_t>(which) * 0x10'0000;
}
// Where `reader` sees an allocation.
std::uint64_t mapped(int reader, std::uint64_t allocation) {
  return kMapped + static_cast<std::uint64_t>(reader) * 0x1'0000'0000 + allocation;
}
const void* at(std::uint64_t address) {
  return reinterpret_cast<const void*>(address);  // NOLINT(performance-no-int-to-ptr)
}

class TestSharing final : public MemorySharing {
 public:
  TestSharing(Driver& driver, int rank) : driver_(driver), rank_(rank) {}
  bool shares = true;
  bool opens = true;

  std::optional<Location> location_of(const BufferRange& buffer) override {
    const auto address = reinterpret_cast<std::uint64_t>(buffer.begin);
    if (address == kBroken) throw Error(Errc::kCuda, "the driver is at its end");
    if (address < allocation_of(0)) {
      throw Error(Errc::kInvalidArgument, "buffer: {} is not memory of a GPU", buffer.begin);
    }
    if (!shares) return {};
    Location location;
    const std::uint64_t allocation = address / 0x10'0000 * 0x10'0000;
    location.offset = address - allocation;
    std::memcpy(location.handle.data(), &allocation, sizeof allocation);
    return location;
  }
  std::shared_ptr<std::byte> open(int /*rank*/, const Handle& handle) override {
    if (!opens) throw Error(Errc::kCuda, "out of memory");
    std::uint64_t allocation = 0;
    std::memcpy(&allocation, handle.data(), sizeof allocation);
    ++driver_.open_now;
    ++driver_.opened_ever;
    auto* address = static_cast<std::byte*>(const_cast<void*>(at(mapped(rank_, allocation))));
    return {address, [this](std::byte*) { --driver_.open_now; }};
  }

 private:
  Driver& driver_;
  int rank_;
};

struct Rank {
  Rank(bootstrap::Bootstrap& bootstrap, Driver& driver, bool opens = true,
       std::vector<bool> elsewhere_given = {}, std::vector<bool> beyond = {})
      : number(bootstrap.rank()), joined(bootstrap) {
    std::vector<bool> elsewhere = std::move(elsewhere_given);
    if (elsewhere.empty()) {
      elsewhere.assign(static_cast<std::size_t>(bootstrap.size()), true);
      elsewhere[static_cast<std::size_t>(number)] = false;
    }
    auto made = std::make_unique<TestSharing>(driver, number);
    sharing = made.get();
    buffers.emplace(bootstrap, std::move(made), std::move(elsewhere), opens, std::move(beyond));
  }
  [[nodiscard]] BufferRange own(std::uint64_t offset, std::size_t bytes, int which = 0) const {
    return {at(allocation_of(number, which) + offset), bytes};
  }
  [[nodiscard]] std::int64_t shift_for(int reader, int which = 0) const {
    const std::uint64_t allocation = allocation_of(number, which);
    return static_cast<std::int64_t>(mapped(reader, allocation) - allocation);
  }

  void meet() { joined.barrier(soon()); }

  int number;
  bootstrap::Bootstrap& joined;
  TestSharing* sharing = nullptr;
  std::optional<RegisteredBuffers> buffers;
};

// Ranks in processes of their own, each of which opens what it can. They end together, so that none
// frees memory that another still reads.
template <typename Body>
void with_ranks(int count, Driver& driver, Body body) {
  run_ranks(count, [&](bootstrap::Bootstrap& bootstrap) {
    Rank rank(bootstrap, driver);
    body(rank);
    rank.meet();
  });
}

TEST(RegisteredBuffers, PeersSeeMemoryWithinOne) {
  Driver driver;
  with_ranks(3, driver, [&](Rank& rank) {
    // Sizes differ, and each begins somewhere in its allocation.
    const std::size_t bytes = 0x1000 + 0x100 * static_cast<std::size_t>(rank.number);
    EXPECT_EQ(rank.buffers->add(rank.own(0x40, bytes), soon()), 1U);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank.number) continue;
      EXPECT_EQ(rank.buffers->seen_by(peer, rank.own(0x40, bytes)), rank.shift_for(peer));
      EXPECT_EQ(rank.buffers->seen_by(peer, rank.own(0x80, bytes - 0x40)), rank.shift_for(peer));
      EXPECT_FALSE(rank.buffers->seen_by(peer, rank.own(0x3f, 2)).has_value());
      EXPECT_FALSE(rank.buffers->seen_by(peer, rank.own(0x80, bytes - 0x3f)).has_value());
      EXPECT_FALSE(rank.buffers->seen_by(peer, rank.own(0x40 + bytes, 1)).has_value());
      EXPECT_FALSE(rank.buffers->seen_by(peer, rank.own(0x40, ~std::size_t{0})).has_value());
      EXPECT_EQ(rank.buffers->seen_by(peer, {nullptr, 0}), 0) << "what is not used hides nothing";
    }
    rank.buffers->close_all();
  });
  EXPECT_EQ(driver.open_now, 0);
  EXPECT_EQ(driver.opened_ever, 6);
}

TEST(RegisteredBuffers, ACallGoesByAddressWhenBothItsBuffersAreSeen) {
  Driver driver;
  with_ranks(2, driver, [&](Rank& rank) {
    const int peer = 1 - rank.number;
    const BufferRange input = rank.own(0, 0x1000);
    const BufferRange output = rank.own(0x80, 0x1000, 1);
    rank.buffers->add(input, soon());
    EXPECT_FALSE(rank.buffers->seen_by(peer, input, output).has_value());
    const auto only_input = rank.buffers->seen_by(peer, input, {});
    ASSERT_TRUE(only_input.has_value());
    EXPECT_EQ(only_input->input, rank.shift_for(peer));
    EXPECT_EQ(only_input->output, 0);
    rank.buffers->add(output, soon());
    const auto both = rank.buffers->seen_by(peer, input, output);
    ASSERT_TRUE(both.has_value());
    EXPECT_EQ(both->input, rank.shift_for(peer));
    EXPECT_EQ(both->output, rank.shift_for(peer, 1));
  });
}

TEST(RegisteredBuffers, MoreRanksSeeABufferThanALaunchCanName) {
  Driver driver;
  constexpr int kRanks = static_cast<int>(executor::kMaxSeen) + 2;
  with_ranks(kRanks, driver, [&](Rank& rank) {
    const BufferRange buffer = rank.own(0, 0x1000);
    rank.buffers->add(buffer, soon());
    for (int peer = 0; peer < kRanks; ++peer) {
      if (peer == rank.number) continue;
      EXPECT_TRUE(rank.buffers->seen_by(peer, buffer, buffer).has_value());
      EXPECT_TRUE(rank.buffers->seen_by(peer, buffer).has_value()) << "messages carry their own";
    }
  });
}

TEST(RegisteredBuffers, RanksOfOneProcessOpenNothing) {
  Driver driver;
  run_ranks(3, [&](bootstrap::Bootstrap& bootstrap) {
    // Ranks 0 and 1 share a process.
    const bool apart = bootstrap.rank() == 2;
    Rank rank(bootstrap, driver, true, {apart, apart, !apart});
    rank.buffers->add(rank.own(0, 0x1000), soon());
    EXPECT_EQ(rank.buffers->seen_by(2, rank.own(0, 0x1000)).has_value(), !apart);
    EXPECT_EQ(rank.buffers->seen_by(0, rank.own(0, 0x1000)).has_value(), apart);
    bootstrap.barrier(soon());
  });
  EXPECT_EQ(driver.opened_ever, 4);
}

TEST(RegisteredBuffers, ReachesThePeersOwnAddresses) {
  Driver driver;
  run_ranks(4, [&](bootstrap::Bootstrap& bootstrap) {
    // Ranks 0 and 1 share a process; rank 3's memory cannot be shared.
    const bool pair = bootstrap.rank() < 2;
    const int self = bootstrap.rank();
    Rank rank(bootstrap, driver, true, {!pair, !pair, self != 2, self != 3});
    rank.sharing->shares = self != 3;
    const auto bytes_of = [](int r) { return 0x1000 + static_cast<std::size_t>(r); };
    const std::uint64_t number = rank.buffers->add(rank.own(0x40, bytes_of(self)), soon());
    const std::vector<BufferRange> reached = rank.buffers->reached(number);
    ASSERT_EQ(reached.size(), 4U);
    for (int r = 0; r < 4; ++r) {
      SCOPED_TRACE(std::to_string(self) + " reaches " + std::to_string(r));
      const BufferRange& range = reached[static_cast<std::size_t>(r)];
      const bool here = r == self || (pair && r < 2);
      const bool seen = here || r != 3;
      EXPECT_EQ(range.bytes, seen ? bytes_of(r) : 0);
      const std::uint64_t there = allocation_of(r) + 0x40;
      EXPECT_EQ(range.begin, !seen ? nullptr : at(here ? there : mapped(self, there)));
    }
    EXPECT_THROW((void)rank.buffers->reached(number + 1), Error);
    bootstrap.barrier(soon());
    rank.buffers->remove(number);
    EXPECT_THROW((void)rank.buffers->reached(number), Error);
    bootstrap.barrier(soon());
  });
}

TEST(RegisteredBuffers, ASymmetricLocationIsTheSameOnAllRanks) {
  Driver driver;
  with_ranks(3, driver, [&](Rank& rank) {
    // The second rank's is the shortest one.
    const std::size_t bytes = rank.number == 1 ? 0x1000 : 0x2000;
    EXPECT_EQ(rank.buffers->add(rank.own(0, 0x1000, 1), soon()), 1U);
    const std::uint64_t number = rank.buffers->add(rank.own(0x40, bytes), soon(), {}, true);
    const auto location = rank.buffers->symmetric_location(rank.own(0x80, 0xfc0));
    ASSERT_TRUE(location.has_value());
    EXPECT_EQ(location->number, number);
    EXPECT_EQ(location->offset, 0x40U);
    for (int r = 0; r < 3; ++r) {
      const std::uint64_t there = allocation_of(r) + 0x40;
      EXPECT_EQ((*location->reached)[static_cast<std::size_t>(r)].begin,
                at(r == rank.number ? there : mapped(rank.number, there)));
    }
    EXPECT_FALSE(rank.buffers->symmetric_location(rank.own(0x80, 0xfc1)).has_value())
        << "rank 1's ends before";
    EXPECT_FALSE(rank.buffers->symmetric_location(rank.own(0x3f, 1)).has_value());
    EXPECT_FALSE(rank.buffers->symmetric_location(rank.own(0x40, ~std::size_t{0})).has_value());
    EXPECT_FALSE(rank.buffers->symmetric_location(rank.own(0, 8, 1)).has_value()) << "not promised";
    rank.meet();
    rank.buffers->remove(number);
    EXPECT_FALSE(rank.buffers->symmetric_location(rank.own(0x80, 8)).has_value());
    rank.meet();
  });
}

TEST(RegisteredBuffers, NothingIsSymmetricThatOneRankDoesNotPromiseOrReach) {
  Driver driver;
  with_ranks(3, driver, [&](Rank& rank) {
    rank.buffers->add(rank.own(0, 64), soon(), {}, rank.number != 2);
    EXPECT_FALSE(rank.buffers->symmetric_location(rank.own(0, 64)).has_value());
    // Rank 1 opens nothing: the others learn of it.
    rank.sharing->opens = rank.number != 1;
    rank.buffers->add(rank.own(0, 64, 1), soon(), {}, true);
    EXPECT_FALSE(rank.buffers->symmetric_location(rank.own(0, 64, 1)).has_value());
    rank.sharing->opens = true;
    rank.buffers->add(rank.own(0, 64, 2), soon(), {}, true);
    EXPECT_TRUE(rank.buffers->symmetric_location(rank.own(0, 64, 2)).has_value());
    rank.meet();
  });
}

TEST(RegisteredBuffers, NothingIsSymmetricAnyMoreThatAPeerHasRemoved) {
  Driver driver;
  with_ranks(2, driver, [&](Rank& rank) {
    const std::uint64_t number = rank.buffers->add(rank.own(0, 64), soon(), {}, true);
    rank.meet();
    if (rank.number == 1) {
      rank.buffers->remove(number);
      rank.buffers->settle();
    }
    rank.meet();
    if (rank.number == 0) {
      bool heard = false;
      while (rank.buffers->symmetric_location(rank.own(0, 64)).has_value()) {
        EXPECT_FALSE(heard);
        heard = rank.buffers->settle();
      }
      EXPECT_TRUE(heard);
      rank.buffers->remove(number);
    }
    rank.meet();
  });
}

// Ranks of one process, whose windows lie side by side: what keeps them mapped is let go of between
// operations, and not before.
TEST(RegisteredBuffers, MappedBuffersOfOneProcessAreReachedAndKept) {
  Driver driver;
  std::atomic<int> kept = 0;
  run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    Rank rank(bootstrap, driver, true, {false, false});
    rank.sharing->shares = false;
    const auto buffer_of = [&](int owner) { return allocation_of(owner) + 0x70'0000; };
    MappedBuffers given;
    for (int owner = 0; owner < 2; ++owner) {
      ++kept;
      given.emplace_back(static_cast<std::byte*>(const_cast<void*>(at(buffer_of(owner)))),
                         [&](std::byte*) { --kept; });
    }
    const std::uint64_t number =
        rank.buffers->add(rank.own(0x40, 64), soon(), std::exchange(given, {}), true);
    const auto found = rank.buffers->symmetric_location(rank.own(0x50, 16));
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->offset, 0x10U);
    const int peer = 1 - rank.number;
    EXPECT_EQ((*found->reached)[static_cast<std::size_t>(peer)].begin, at(buffer_of(peer)));
    rank.meet();
    EXPECT_EQ(kept, 4);
    rank.meet();
    rank.buffers->remove(number);
    rank.meet();
    EXPECT_EQ(kept, 4) << "operations may be running";
    EXPECT_TRUE(rank.buffers->unsettled());
    rank.meet();
    rank.buffers->settle();
    EXPECT_FALSE(rank.buffers->unsettled());
    rank.meet();
    EXPECT_EQ(kept, 0);
    rank.meet();
  });
}

// Memory that no handle names, mapped by other means before; of three ranks the last could not.
TEST(RegisteredBuffers, BuffersThatAreMappedAlreadyAreNotOpened) {
  Driver driver;
  std::atomic<int> kept = 0;
  with_ranks(3, driver, [&](Rank& rank) {
    rank.sharing->shares = false;
    const auto buffer_of = [&](int owner) {
      return mapped(rank.number, allocation_of(owner)) + 0x7000;
    };
    MappedBuffers given;
    for (int owner = 0; owner < 3 && rank.number != 2; ++owner) {
      ++kept;
      given.emplace_back(static_cast<std::byte*>(const_cast<void*>(at(buffer_of(owner)))),
                         [&](std::byte*) { --kept; });
    }
    const std::uint64_t number =
        rank.buffers->add(rank.own(0x40, 64), soon(), std::exchange(given, {}));
    rank.meet();
    EXPECT_EQ(kept, 2) << "the own one is of no use, and nobody reads rank 2's";
    const auto& reached = rank.buffers->reached(number);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank.number) continue;
      const auto seen = rank.buffers->seen_by(peer, rank.own(0x50, 16));
      const BufferRange& range = reached[static_cast<std::size_t>(peer)];
      if (peer == 2 || rank.number == 2) {
        EXPECT_FALSE(seen.has_value());
        EXPECT_EQ(range.begin, nullptr);
        continue;
      }
      const std::uint64_t there = mapped(peer, allocation_of(rank.number)) + 0x7000;
      EXPECT_EQ(seen, static_cast<std::int64_t>(there - allocation_of(rank.number) - 0x40));
      EXPECT_EQ(range.begin, at(buffer_of(peer)));
      EXPECT_EQ(range.bytes, 64U);
    }
    rank.meet();
    rank.buffers->remove(number);
    rank.buffers->settle();
    rank.meet();
    while (rank.buffers->unsettled()) rank.buffers->settle();
    rank.meet();
    EXPECT_EQ(kept, 0);
    EXPECT_EQ(driver.opened_ever, 0);
  });
}

TEST(RegisteredBuffers, ARankThatOpensNothingReachesItsOwnOnly) {
  Driver driver;
  run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    Rank rank(bootstrap, driver, false, {false, false});
    const std::uint64_t number = rank.buffers->add(rank.own(0, 0x1000), soon());
    const auto& reached = rank.buffers->reached(number);
    EXPECT_EQ(reached[static_cast<std::size_t>(rank.number)].bytes, 0x1000U);
    EXPECT_EQ(reached[static_cast<std::size_t>(1 - rank.number)].bytes, 0U);
    bootstrap.barrier(soon());
  });
}

TEST(RegisteredBuffers, BuffersThatCannotBeSharedOrOpenedAreStaged) {
  Driver driver;
  run_ranks(3, [&](bootstrap::Bootstrap& bootstrap) {
    // Rank 0 has memory that cannot be shared, rank 1 opens none, rank 2 is told to open none.
    Rank rank(bootstrap, driver, bootstrap.rank() != 2);
    rank.sharing->shares = rank.number != 0;
    rank.sharing->opens = rank.number != 1;
    EXPECT_EQ(rank.buffers->add(rank.own(0, 64), soon()), 1U);
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == rank.number) continue;
      EXPECT_EQ(rank.buffers->seen_by(peer, rank.own(0, 64)).has_value(),
                rank.number != 0 && peer == 0);
    }
    rank.buffers->remove(1);
    bootstrap.barrier(soon());
  });
}

TEST(RegisteredBuffers, ABadBufferOfOneRankIsAnErrorOfAll) {
  Driver driver;
  struct Case {
    BufferRange buffer;
    std::string words;
    Errc code = Errc::kInvalidArgument;
  };
  const std::vector<Case> cases = {
      {{nullptr, 64}, "rank 1: buffer: NULL"},
      {{at(allocation_of(1)), 0}, "rank 1: buffer: 0 bytes"},
      {{at(0x1000), 64}, "rank 1: buffer: 0x1000 is not memory of a"},
      {{at(kBroken), 64}, "rank 1: the driver is at its end", Errc::kCuda}};
  with_ranks(3, driver, [&](Rank& rank) {
    for (const Case& bad : cases) {
      const BufferRange buffer = rank.number == 1 ? bad.buffer : rank.own(0, 64);
      const auto [code, text] = error_of([&] { rank.buffers->add(buffer, soon()); });
      EXPECT_EQ(code, bad.code);
      EXPECT_NE(text.find(bad.words), std::string::npos) << text;
      EXPECT_FALSE(rank.buffers->seen_by((rank.number + 1) % 3, rank.own(0, 64)).has_value());
    }
    // The ranks are still in step.
    const std::uint64_t number = rank.buffers->add(rank.own(0, 64), soon());
    EXPECT_EQ(number, cases.size() + 1);
    EXPECT_TRUE(rank.buffers->seen_by((rank.number + 1) % 3, rank.own(0, 64)).has_value());
  });
}

TEST(RegisteredBuffers, RemovingIsLocalAndTheOthersCloseWhenNotified) {
  Driver driver;
  with_ranks(2, driver, [&](Rank& rank) {
    const int peer = 1 - rank.number;
    const std::uint64_t number = rank.buffers->add(rank.own(0, 64), soon());
    EXPECT_FALSE(rank.buffers->unsettled());
    rank.meet();
    EXPECT_EQ(driver.open_now, 2);
    rank.meet();
    if (rank.number == 0) {
      rank.buffers->remove(number);
      EXPECT_FALSE(rank.buffers->seen_by(peer, rank.own(0, 64)).has_value());
      EXPECT_TRUE(rank.buffers->unsettled());
    }
    rank.meet();
    rank.buffers->settle();
    rank.meet();
    if (rank.number == 1) {
      EXPECT_TRUE(rank.buffers->seen_by(peer, rank.own(0, 64)).has_value());
      while (driver.open_now == 2) rank.buffers->settle();
      EXPECT_FALSE(rank.buffers->unsettled());
      rank.buffers->remove(number);
      EXPECT_TRUE(rank.buffers->unsettled()) << "rank 0 has not been told";
      rank.buffers->settle();
    }
    // Rank 1 might have given addresses to rank 0 until it removed its part.
    while (rank.buffers->unsettled()) rank.buffers->settle();
    rank.meet();
    EXPECT_EQ(driver.open_now, 0);
    const auto [code, text] = error_of([&] { rank.buffers->remove(number); });
    EXPECT_EQ(code, Errc::kInvalidArgument);
    EXPECT_NE(text.find("1 is not registered"), std::string::npos) << text;
  });
}

TEST(RegisteredBuffers, ARemovalLeavesABufferOpenUntilItIsAnnounced) {
  Driver driver;
  with_ranks(2, driver, [&](Rank& rank) {
    for (std::uint64_t number = 1; number <= 3; ++number) {
      // As if a kernel was at work all the time.
      EXPECT_EQ(rank.buffers->add(rank.own(0, 64), soon()), number);
      rank.buffers->remove(number);
    }
    rank.meet();
    EXPECT_EQ(driver.open_now, 6);
    rank.meet();
    rank.buffers->settle();
    // No buffer whose removal was announced is open after the next registration.
    rank.buffers->add(rank.own(0, 64, 1), soon());
    rank.meet();
    EXPECT_EQ(driver.open_now, 2);
  });
}

TEST(RegisteredBuffers, MemoryThatWasFreedIsClosedBeforeTheNextIsOpened) {
  Driver driver;
  with_ranks(3, driver, [&](Rank& rank) {
    for (std::uint64_t round = 1; round <= 50; ++round) {
      EXPECT_EQ(rank.buffers->add(rank.own(0, 64), soon()), round);
      EXPECT_LE(driver.open_now, 6);
      EXPECT_TRUE(rank.buffers->seen_by((rank.number + 1) % 3, rank.own(0, 64)).has_value());
      rank.buffers->remove(round);
      rank.buffers->settle();
    }
  });
  EXPECT_EQ(driver.open_now, 0);
  EXPECT_EQ(driver.opened_ever, 300);
}

TEST(RegisteredBuffers, OverlappingBuffersAreApart) {
  Driver driver;
  with_ranks(2, driver, [&](Rank& rank) {
    const int peer = 1 - rank.number;
    const std::uint64_t whole = rank.buffers->add(rank.own(0, 0x1000), soon());
    const std::uint64_t part = rank.buffers->add(rank.own(0x800, 0x1000), soon());
    EXPECT_FALSE(rank.buffers->seen_by(peer, rank.own(0x100, 0x1000)).has_value())
        << "in neither of the two, though in both together";
    rank.buffers->remove(whole);
    EXPECT_FALSE(rank.buffers->seen_by(peer, rank.own(0, 64)).has_value());
    EXPECT_EQ(rank.buffers->seen_by(peer, rank.own(0x900, 64)), rank.shift_for(peer));
    rank.buffers->remove(part);
    EXPECT_FALSE(rank.buffers->seen_by(peer, rank.own(0x900, 64)).has_value());
  });
}

TEST(RegisteredBuffers, ARankThatDoesNotComeIsATimeout) {
  Driver driver;
  std::atomic<bool> timed_out{false};
  run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    Rank rank(bootstrap, driver);
    if (rank.number == 0) {
      const auto [code, text] = error_of([&] { rank.buffers->add(rank.own(0, 64), in_ms(50)); });
      EXPECT_EQ(code, Errc::kTimeout) << text;
      EXPECT_NE(text.find("rank 1"), std::string::npos) << text;
      timed_out = true;
    } else {
      while (!timed_out) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
}

// A rank of another process that is out of reach, as GPUs without peer access are, is neither
// opened nor taken for one of this process.
TEST(RegisteredBuffers, ARankBeyondReachIsNeitherHereNorOpened) {
  Driver driver;
  bootstrap::run_ranks(2, [&](bootstrap::Bootstrap& bootstrap) {
    std::vector<bool> beyond(2, true);
    beyond[static_cast<std::size_t>(bootstrap.rank())] = false;
    Rank rank(bootstrap, driver, true, {false, false}, beyond);
    const BufferRange own = rank.own(0, 0x1000);
    const std::uint64_t number = rank.buffers->add(own, soon());
    const auto& reached = rank.buffers->reached(number);
    EXPECT_EQ(reached[static_cast<std::size_t>(rank.number)].bytes, 0x1000U);
    EXPECT_EQ(reached[static_cast<std::size_t>(1 - rank.number)].bytes, 0U);
    EXPECT_EQ(rank.buffers->seen_by(1 - rank.number, own), std::nullopt);
    EXPECT_EQ(driver.opened_ever, 0);
    rank.meet();
  });
}

}  // namespace
}  // namespace ropewalk::link
