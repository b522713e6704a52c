#include "comm/collective_call.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>

#include "core/error.h"
#include "core/testing/in_child.h"

namespace ropewalk::comm {
namespace {

std::string refusal(std::size_t count, std::byte* memory) {
  CollectiveCall call;
  call.collective = Collective::kAllReduce;
  call.type = DataType::kFloat32;
  call.count = count;
  call.input = memory;
  call.output = memory;
  return testing::message_of([&] { (void)validate(call, 0, 1); }, Errc::kInvalidArgument);
}

// No buffer is so large, so nothing may begin to look for its end.
TEST(CollectiveCall, BuffersBeyondTheAddressSpaceAreRefused) {
  alignas(16) std::array<std::byte, 16> memory{};
  EXPECT_NE(refusal(std::size_t{1} << 46, memory.data()).find("leave the address space"),
            std::string::npos);
  EXPECT_NE(refusal(std::size_t{1} << 60, memory.data()).find("leave the address space"),
            std::string::npos);
  EXPECT_NE(refusal(std::size_t{1} << 62, memory.data()).find("exceed the address space"),
            std::string::npos);
}

// What a count asks for over all ranks is looked at before it is multiplied: 2^64 bytes are none.
TEST(CollectiveCall, CountsThatOverflowOverAllRanksAreRefused) {
  alignas(16) std::array<std::byte, 16> memory{};
  struct Case {
    std::size_t count;
    DataType type;
    int ranks;
  };
  for (const Case& each : {Case{std::size_t{1} << 61, DataType::kFloat16, 2},
                           {std::size_t{1} << 62, DataType::kInt8, 4},
                           {std::size_t{1} << 61, DataType::kFloat32, 2},
                           {std::size_t{1} << 60, DataType::kFloat64, 2},
                           {std::size_t{1} << 61, DataType::kInt8, 8},
                           {(std::size_t{1} << 63) / 3, DataType::kInt8, 7}}) {
    for (const Collective collective :
         {Collective::kAllToAll, Collective::kAllGather, Collective::kReduceScatter}) {
      CollectiveCall call;
      call.collective = collective;
      call.type = each.type;
      call.count = each.count;
      call.input = memory.data();
      call.output = memory.data() + 8;
      for (const int rank : {0, each.ranks - 1}) {
        const std::string words = testing::message_of(
            [&] { (void)validate(call, rank, each.ranks); }, Errc::kInvalidArgument);
        EXPECT_NE(words.find("exceed the address space"), std::string::npos) << words;
        EXPECT_NE(words.find(std::to_string(each.ranks) + " rank(s)"), std::string::npos) << words;
      }
    }
  }
}

// The last count whose bytes over all ranks have a number; no buffer is so large.
TEST(CollectiveCall, TheLargestCountIsNotTakenForAnOverflow) {
  alignas(16) std::array<std::byte, 16> memory{};
  CollectiveCall call;
  call.collective = Collective::kAllToAll;
  call.type = DataType::kInt8;
  call.count = (std::size_t{1} << 62) - 1;
  call.input = memory.data();
  call.output = memory.data() + 8;
  std::string words =
      testing::message_of([&] { (void)validate(call, 0, 2); }, Errc::kInvalidArgument);
  EXPECT_NE(words.find("leave the address space"), std::string::npos) << words;
  ++call.count;
  words = testing::message_of([&] { (void)validate(call, 0, 2); }, Errc::kInvalidArgument);
  EXPECT_NE(words.find("exceed the address space"), std::string::npos) << words;
}

}  // namespace
}  // namespace ropewalk::comm
