#include "core/small_float.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace ropewalk {
namespace {

TEST(SmallFloat, KnownValues) {
  EXPECT_EQ(encode_small_float(DataType::kFloat16, 1.0F), 0x3c00);
  EXPECT_EQ(encode_small_float(DataType::kFloat16, -65504.0F), 0xfbff);
  EXPECT_EQ(encode_small_float(DataType::kFloat16, 65520.0F), 0x7c00);
  EXPECT_EQ(encode_small_float(DataType::kBfloat16, 3.140625F), 0x4049);
  EXPECT_EQ(encode_small_float(DataType::kFloat8e4m3, 448.0F), 0x7e);
  EXPECT_EQ(encode_small_float(DataType::kFloat8e4m3, 1000.0F), 0x7f);
  EXPECT_EQ(encode_small_float(DataType::kFloat8e5m2, 57344.0F), 0x7b);
  EXPECT_EQ(encode_small_float(DataType::kFloat8e5m2, 1e9F), 0x7c);
}

TEST(SmallFloat, EveryFiniteValueSurvives) {
  for (const DataType type :
       {DataType::kFloat16, DataType::kBfloat16, DataType::kFloat8e4m3, DataType::kFloat8e5m2}) {
    const unsigned end = size_of(type) == 1 ? 256 : 65536;
    for (unsigned bits = 0; bits < end; ++bits) {
      const float value = decode_small_float(type, static_cast<std::uint16_t>(bits));
      if (std::isnan(value)) continue;
      ASSERT_EQ(encode_small_float(type, value), bits) << name(type) << " " << value;
    }
  }
}

TEST(SmallFloat, HalfwayGoesToEven) {
  EXPECT_EQ(encode_small_float(DataType::kFloat8e4m3, 17.0F),
            encode_small_float(DataType::kFloat8e4m3, 16.0F));
  EXPECT_EQ(encode_small_float(DataType::kFloat8e4m3, 19.0F),
            encode_small_float(DataType::kFloat8e4m3, 20.0F));
}

}  // namespace
}  // namespace ropewalk
