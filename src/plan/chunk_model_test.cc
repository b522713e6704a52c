#include "plan/chunk_model.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "core/error.h"
#include "topology/testing/recorded.h"

namespace ropewalk::plan {
namespace {

TEST(ChunkModel, AgreesWithTheReference) {
  const auto expected = nlohmann::json::parse(topology::testing::file_text("expected-bounds.json"));
  const auto& examples = expected["pipeline_examples"]["values"];
  ASSERT_GE(examples.size(), 4U);
  for (const auto& example : examples) {
    const double bytes = example["bytes"];
    const ChunkChoice found = best_chunk(
        example["hops"], bytes, {example["alpha_s"], example["beta_bytes_per_s"], 0, true});
    EXPECT_NEAR(found.chunk_bytes, example["best_chunk_bytes"].get<double>(), 0.06);
    EXPECT_NEAR(found.seconds * 1e6, example["best_time_us"].get<double>(), 6e-4);
    EXPECT_NEAR(bytes / found.seconds / 1e9, example["algbw_gbps"].get<double>(), 6e-5);
  }
}

TEST(ChunkModel, NoOtherChunkIsFaster) {
  for (const int hops : {1, 2, 7, 30}) {
    for (const double bytes : {1e3, 1e6, 1e9}) {
      for (const bool overlaps : {true, false}) {
        const HopCost hop{5e-6, 25e9, 1 / 40e9, overlaps};
        const ChunkChoice best = best_chunk(hops, bytes, hop, 1);
        for (double chunk = 1; chunk <= bytes; chunk *= 1.5) {
          EXPECT_LE(best.seconds, pipeline_seconds(hops, bytes, chunk, hop) * (1 + 1e-12));
        }
      }
    }
  }
}

TEST(ChunkModel, CombiningOverlapsOrAdds) {
  const HopCost beside{0, 10e9, 1 / 20e9, true};
  const HopCost after{0, 10e9, 1 / 20e9, false};
  EXPECT_DOUBLE_EQ(beside.seconds_per_byte(), 1 / 10e9);
  EXPECT_DOUBLE_EQ(after.seconds_per_byte(), 1 / 10e9 + 1 / 20e9);
}

TEST(ChunkModel, RefusesWhatHasNoMeaning) {
  const HopCost good{1e-6, 1e9, 0, true};
  EXPECT_THROW(best_chunk(0, 1e6, good), Error);
  EXPECT_THROW(best_chunk(1, 0, good), Error);
  EXPECT_THROW(best_chunk(1, std::numeric_limits<double>::infinity(), good), Error);
  EXPECT_THROW(best_chunk(2, 1e6, {-1, 1e9, 0, true}), Error);
  EXPECT_THROW(best_chunk(2, 1e6, {1e-6, 0, 0, true}), Error);
  EXPECT_THROW(best_chunk(2, 1e6, {1e-6, 1e9, -1, true}), Error);
  EXPECT_THROW(pipeline_seconds(2, 1e6, 0, good), Error);
}

}  // namespace
}  // namespace ropewalk::plan
