#include "core/copy_in_order.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace ropewalk {
namespace {

TEST(CopyInOrder, CopiesEveryByteAndNoOther) {
  constexpr std::size_t kMost = 700;
  alignas(128) std::byte to[kMost + 256];
  std::vector<std::byte> from(kMost + 64);
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + 1);
  for (const std::size_t begin : {0U, 1U, 8U, 64U, 119U, 120U, 121U, 127U}) {
    for (std::size_t bytes = 0; bytes <= kMost; bytes += bytes < 300 ? 1 : 37) {
      std::memset(to, 0, sizeof to);
      copy_in_order(to + begin, from.data() + begin % 16, bytes);
      for (std::size_t i = 0; i < sizeof to; ++i) {
        const bool inside = i >= begin && i < begin + bytes;
        ASSERT_EQ(to[i], inside ? from[begin % 16 + i - begin] : std::byte{})
            << begin << " " << bytes << " " << i;
      }
    }
  }
}

}  // namespace
}  // namespace ropewalk
