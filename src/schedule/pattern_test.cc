#include "schedule/pattern.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

namespace ropewalk::schedule {
namespace {

// Around the numbers of elements that are made at once, and across several times as many.
const std::vector<std::size_t> kPatternCounts = {1, 7, 255, 256, 257, 1025};

template <typename T>
T reduced_by(RedOp op, T a, T b) {
  switch (op) {
    case RedOp::kProd: return static_cast<T>(a * b);
    case RedOp::kMax: return std::max(a, b);
    case RedOp::kMin: return std::min(a, b);
    default: return static_cast<T>(a + b);
  }
}

template <typename T>
void expect_reductions(DataType type) {
  for (const RedOp op :
       {RedOp::kSum, RedOp::kAvg, RedOp::kPreMulSum, RedOp::kProd, RedOp::kMax, RedOp::kMin}) {
    for (const int ranks : {1, 2, 5, 200}) {
      for (const std::size_t count : kPatternCounts) {
        SCOPED_TRACE(std::string(name(type)) + " " + std::string(name(op)) + " " +
                     std::to_string(ranks) + " " + std::to_string(count));
        const TestPattern pattern(Collective::kAllReduce, type, op, ranks, 0, count);
        std::vector<T> result(count);
        std::vector<T> input(count);
        for (int rank = 0; rank < ranks; ++rank) {
          pattern.fill_input(rank, input.data());
          T factor{1};
          const std::uint64_t bits = pattern.scalar(rank);
          if (op == RedOp::kPreMulSum) std::memcpy(&factor, &bits, sizeof factor);
          for (std::size_t i = 0; i < count; ++i) {
            const T own = static_cast<T>(input[i] * factor);
            result[i] = rank == 0 ? own : reduced_by(op, result[i], own);
          }
        }
        if (op == RedOp::kAvg) {
          for (T& each : result) each = static_cast<T>(each / static_cast<T>(ranks));
        }
        ASSERT_EQ(pattern.count_wrong(ranks - 1, result.data()), 0U);
        for (const std::size_t index : {std::size_t{0}, count / 2, count - 1}) {
          const T right = result[index];
          result[index] = static_cast<T>(right + std::max(right, T{1}));
          ASSERT_EQ(pattern.count_wrong(ranks - 1, result.data()), 1U) << index;
          result[index] = right;
        }
      }
    }
  }
}

TEST(Pattern, ReductionsOfEveryOperatorAreKnown) {
  expect_reductions<float>(DataType::kFloat32);
  expect_reductions<double>(DataType::kFloat64);
  expect_reductions<std::int32_t>(DataType::kInt32);
  expect_reductions<std::uint64_t>(DataType::kUint64);
}

TEST(Pattern, CopiesAreKnownInEveryType) {
  for (const DataType type :
       {DataType::kInt8, DataType::kUint8, DataType::kInt32, DataType::kUint32, DataType::kInt64,
        DataType::kUint64, DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8e4m3,
        DataType::kFloat8e5m2, DataType::kFloat32, DataType::kFloat64}) {
    for (const std::size_t count : kPatternCounts) {
      SCOPED_TRACE(std::string(name(type)) + " " + std::to_string(count));
      const TestPattern pattern(Collective::kAllGather, type, RedOp::kSum, 3, 0, count);
      const std::size_t bytes = count * size_of(type);
      std::vector<std::byte> output(3 * bytes);
      for (int rank = 0; rank < 3; ++rank) {
        pattern.fill_input(rank, output.data() + static_cast<std::size_t>(rank) * bytes);
      }
      EXPECT_EQ(pattern.count_wrong(1, output.data()), 0U);
      // Swapped blocks are wrong wherever their values differ.
      std::swap_ranges(output.data(), output.data() + bytes, output.data() + bytes);
      if (count > 7) {
        EXPECT_GT(pattern.count_wrong(1, output.data()), count);
      }
    }
  }
}

TEST(Pattern, InputsTakeEveryValue) {
  const TestPattern pattern(Collective::kBroadcast, DataType::kUint8, RedOp::kSum, 2, 0, 1000);
  std::vector<std::uint8_t> input(1000);
  pattern.fill_input(0, input.data());
  for (int value = 0; value < 8; ++value) {
    EXPECT_GT(std::count(input.begin(), input.end(), value), 80) << value;
  }
  EXPECT_EQ(*std::max_element(input.begin(), input.end()), 7);
}

TEST(Pattern, NotANumberIsWrong) {
  const TestPattern pattern(Collective::kAllReduce, DataType::kFloat32, RedOp::kAvg, 2, 0, 1);
  const float bad = std::numeric_limits<float>::quiet_NaN();
  EXPECT_EQ(pattern.count_wrong(0, &bad), 1U);
}

}  // namespace
}  // namespace ropewalk::schedule
