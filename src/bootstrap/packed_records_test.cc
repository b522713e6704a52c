#include "bootstrap/packed_records.h"

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <random>
#include <vector>

namespace ropewalk::bootstrap {
namespace {

std::vector<std::byte> random_bytes(std::mt19937& random, std::size_t bytes) {
  std::vector<std::byte> made(bytes);
  for (std::byte& each : made) each = static_cast<std::byte>(random());
  return made;
}

// Records of which each differs from the one before in a few bytes.
std::vector<std::byte> alike(std::mt19937& random, std::size_t count, std::size_t bytes_each,
                             std::size_t changes) {
  std::vector<std::byte> records = random_bytes(random, bytes_each);
  for (std::size_t i = 1; i < count; ++i) {
    std::vector<std::byte> next(records.end() - static_cast<std::ptrdiff_t>(bytes_each),
                                records.end());
    for (std::size_t k = 0; k < changes; ++k) next[random() % bytes_each] = std::byte{0x5a};
    records.insert(records.end(), next.begin(), next.end());
  }
  return records;
}

TEST(PackedRecords, ComeOutAsTheyWere) {
  std::mt19937 random(1);
  for (const std::size_t bytes_each : {1U, 2U, 7U, 8U, 9U, 40U, 129U, 440U}) {
    for (const std::size_t count : {1U, 2U, 3U, 17U}) {
      for (const std::size_t changes : {0U, 1U, 3U, 50U}) {
        const auto records = alike(random, count, bytes_each, changes);
        const auto packed = pack_records(records, bytes_each);
        std::vector<std::byte> found(records.size());
        ASSERT_TRUE(unpack_records(packed, found, bytes_each));
        ASSERT_EQ(found, records) << count << " of " << bytes_each << ", " << changes;
      }
      const auto records = random_bytes(random, count * bytes_each);
      std::vector<std::byte> found(records.size());
      const auto packed = pack_records(records, bytes_each);
      ASSERT_LE(packed.size(), count * (bytes_each + kMostPackedMore));
      ASSERT_TRUE(unpack_records(packed, found, bytes_each));
      ASSERT_EQ(found, records);
    }
  }
  EXPECT_TRUE(unpack_records(pack_records({}, 0), {}, 0));
}

TEST(PackedRecords, OfRanksThatAreAlikeAreShort) {
  constexpr std::size_t kRanks = 1024;
  std::vector<std::byte> records(kRanks * 440);
  for (std::size_t r = 0; r < kRanks; ++r) {
    const auto number = static_cast<std::uint32_t>(r);
    std::memcpy(&records[r * 440 + 64], &number, sizeof number);
  }
  EXPECT_LT(pack_records(records, 440).size(), kRanks * 5 + 500);
}

TEST(PackedRecords, OfAnotherSizeOrDamagedAreRefused) {
  std::mt19937 random(2);
  const auto records = alike(random, 9, 40, 3);
  const auto packed = pack_records(records, 40);
  std::vector<std::byte> found(records.size());
  EXPECT_FALSE(unpack_records(packed, std::span(found).first(320), 40));
  EXPECT_FALSE(unpack_records(packed, found, 20));
  EXPECT_FALSE(unpack_records({}, found, 40));
  for (std::size_t bytes = 0; bytes < packed.size(); ++bytes) {
    EXPECT_FALSE(unpack_records(std::span(packed).first(bytes), found, 40)) << bytes;
  }
  auto longer = packed;
  longer.push_back({});
  EXPECT_FALSE(unpack_records(longer, found, 40));
  // Any bytes at all: false, or records; the sanitizers see that nothing else is written.
  for (int i = 0; i < 20'000; ++i) {
    auto changed = packed;
    for (int k = 0; k < 3; ++k)
      changed[random() % changed.size()] = static_cast<std::byte>(random());
    (void)unpack_records(changed, found, 40);
  }
}

}  // namespace
}  // namespace ropewalk::bootstrap
