#include "executor/host/slot_readers.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <tuple>
#include <vector>

#include "executor/host/host_team.h"

namespace ropewalk::executor {
namespace {

constexpr FifoShape kShape{.headers = 16, .slots = 4, .slot_bytes = 2048};
constexpr std::size_t kBytes = 2048;

// Links from one rank to ranks 1 and 2, with their other ends.
class SlotReadersTest : public ::testing::Test {
 protected:
  SlotReadersTest() {
    for (std::size_t k = 0; k < 2; ++k) {
      memory_[k].reset(
          static_cast<std::byte*>(std::aligned_alloc(128, (kShape.bytes() + 127) / 128 * 128)));
      std::memset(memory_[k].get(), 0, kShape.bytes());
      sends_[k].lie_in(memory_[k].get(), kShape);
      sends_[k].peer = static_cast<int>(k) + 1;
      receives_[k].lie_in(memory_[k].get(), kShape);
    }
    call_.tag.call = 7;
    call_.check_tags = true;
  }

  // To both, in the slot of the first.
  void send_to_both(std::byte value) {
    std::byte* const slot = team_.describe(sends_[0], call_, kBytes, nullptr).data;
    team_.share(sends_[1], call_, kBytes, sends_[0]);
    std::memset(slot, static_cast<int>(value), kBytes);
    for (SendEnd& send : sends_) team_.publish(send);
  }
  void send_to_first() {
    ASSERT_NE(team_.describe(sends_[0], call_, kBytes, nullptr).data, nullptr);
    team_.publish(sends_[0]);
  }
  // Takes the next chunk of a link. @return its first byte
  std::byte receive(std::size_t k) {
    EXPECT_TRUE(others_[k].wait_arrival(receives_[k], kBytes));
    const Source source = others_[k].arrived(receives_[k], call_, kBytes);
    const std::byte value = *source.data;
    others_[k].release(receives_[k], source);
    return value;
  }

  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };
  std::array<std::unique_ptr<std::byte, Free>, 2> memory_;
  std::array<SendEnd, 2> sends_;
  std::array<ReceiveEnd, 2> receives_;
  HostTeam team_{0};
  std::array<HostTeam, 2> others_{HostTeam(1), HostTeam(2)};
  Call call_;
};

TEST_F(SlotReadersTest, BothReadTheSameBytes) {
  send_to_both(std::byte{3});
  EXPECT_EQ(receive(1), std::byte{3});
  EXPECT_EQ(receive(0), std::byte{3});
  // Nothing was written into the second link's own slots.
  EXPECT_EQ(*sends_[1].data(1, kBytes), std::byte{0});
}

// The first link's reader is done with all, and its writer may not use the slot again before the
// other reader is; which it says at once, since it may get no further chunk.
TEST_F(SlotReadersTest, TheWriterWaitsForTheOtherReader) {
  send_to_both(std::byte{1});
  std::ignore = receive(0);
  for (int chunk = 0; chunk < 3; ++chunk) {
    EXPECT_TRUE(team_.wait_room(sends_[0], kBytes)) << chunk;
    send_to_first();
    std::ignore = receive(0);
  }
  EXPECT_FALSE(team_.wait_room(sends_[0], kBytes));
  EXPECT_EQ(team_.other_readers(sends_[0]), std::vector{2});
  EXPECT_TRUE(team_.wait_room(sends_[0], kInlineBytes)) << "needs no slot";
  EXPECT_EQ(receive(1), std::byte{1});
  EXPECT_TRUE(team_.wait_room(sends_[0], kBytes));
  EXPECT_TRUE(team_.other_readers(sends_[0]).empty());
}

TEST_F(SlotReadersTest, ASlotKnowsTheReadersOfItsLastChunkAlone) {
  for (int turn = 0; turn < 9; ++turn) {
    ASSERT_TRUE(team_.wait_room(sends_[0], kBytes)) << turn;
    ASSERT_TRUE(team_.wait_room(sends_[1], kBytes)) << turn;
    const auto value = static_cast<std::byte>(turn);
    send_to_both(value);
    EXPECT_EQ(receive(0), value);
    EXPECT_EQ(receive(1), value);
  }
}

TEST_F(SlotReadersTest, ShortChunksAndThoseOverNetworksHaveSlotsOfTheirOwn) {
  Strand strand;
  EXPECT_TRUE(HostTeam::may_share(strand, sends_[0], sends_[1], kBytes));
  EXPECT_FALSE(HostTeam::may_share(strand, sends_[0], sends_[1], 512));
  strand.common_slot_bytes = kBytes + 1;
  EXPECT_FALSE(HostTeam::may_share(strand, sends_[0], sends_[1], kBytes));
  strand.common_slot_bytes = 0;
  sends_[1].drain_all = true;
  EXPECT_FALSE(HostTeam::may_share(strand, sends_[0], sends_[1], kBytes));
}

}  // namespace
}  // namespace ropewalk::executor
