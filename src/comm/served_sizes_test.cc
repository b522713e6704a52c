// What the log says of sizes is what the tuner does.
#include "comm/served_sizes.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <sstream>
#include <string>

#include "tune/tuner.h"

namespace ropewalk::comm {
namespace {

tune::Tuner tuner_with(const char* algorithm, schedule::CheckedSchedules& schedules) {
  Config config = Config::load();
  config.set("TUNE", "0", "test");
  config.set("ALGORITHM", algorithm, "test");
  tune::GroupFacts facts;
  facts.num_ranks = facts.max_ranks_per_host = 4;
  return tune::host_tuner(config, facts, {}, schedules);
}

TEST(ServedSizes, OneThatIsForcedServesAll) {
  schedule::CheckedSchedules schedules;
  tune::Tuner tuner = tuner_with("all_reduce=ring", schedules);
  EXPECT_EQ(served_sizes(tuner, Collective::kAllReduce, 0, 4),
            "all_reduce of 4 ranks: ring for all sizes; bytes in a unit");
}

TEST(ServedSizes, AreThoseThatTheTunerChooses) {
  schedule::CheckedSchedules schedules;
  tune::Tuner tuner = tuner_with("auto", schedules);
  for (int c = 0; c < kNumCollectives; ++c) {
    const auto collective = static_cast<Collective>(c);
    const std::string text = served_sizes(tuner, collective, 0, 4);
    SCOPED_TRACE(text);
    // "NAME of 4 ranks: FIRST below 8 KiB, SECOND below 1 MiB, LAST from there on; ..."
    std::istringstream words(text.substr(text.find(": ") + 2));
    std::size_t next = 8;
    int parts = 0;
    std::string algorithm;
    for (std::string how; words >> algorithm >> how; ++parts) {
      EXPECT_EQ(tuner.choose(collective, 0, next)->algorithm, algorithm);
      if (how != "below") break;
      std::string unit;
      words >> next >> unit;
      for (const char prefix : {'K', 'M', 'G'}) {
        next <<= 10U;
        if (unit.front() == prefix) break;
        if (unit.front() == 'B') {
          next >>= 10U;
          break;
        }
      }
      EXPECT_EQ(tuner.choose(collective, 0, next - 1)->algorithm, algorithm);
      EXPECT_NE(tuner.choose(collective, 0, next)->algorithm, algorithm);
    }
    EXPECT_EQ(tuner.choose(collective, 0, std::size_t{1} << 30U)->algorithm, algorithm);
    EXPECT_TRUE(parts > 0 || collective != Collective::kAllReduce);
  }
}

}  // namespace
}  // namespace ropewalk::comm
