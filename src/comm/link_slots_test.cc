// The slots of GPUs' links, and what rings need of them.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "link/window_layout.h"
#include "schedule/compile.h"
#include "schedule/lags.h"

namespace ropewalk::comm {
namespace {

// Else rings go round by round, at two thirds of the rate (four H100, 128 MiB).
TEST(LinkSlots, HoldSoManyChunksThatRingsRunSeveralRoundsAtOnce) {
  for (int ranks = 2; ranks <= 16; ++ranks) {
    const schedule::Schedule ring =
        schedule::compile("ring", {Collective::kAllReduce, ranks, 0, 1});
    const auto most = [&](std::uint32_t slots) {
      std::uint32_t lag = 0;
      for (const auto& steps : schedule::find_lags(ring, 0, slots)) {
        for (const std::uint32_t each : steps) lag = std::max(lag, each);
      }
      return lag;
    };
    EXPECT_GT(most(link::device_link_slots(ranks)), 0U) << ranks;
    // No more than needed.
    if (ranks > 4) {
      EXPECT_EQ(most(link::device_link_slots(ranks) / 2), 0U) << ranks;
    }
  }
  EXPECT_EQ(link::device_link_slots(4), 8U);
  EXPECT_EQ(link::device_link_slots(72), 32U);
}

}  // namespace
}  // namespace ropewalk::comm
