#include "comm/collective_call.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <string>

#include "comm/made_operators.h"
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
  return ropewalk::testing::message_of([&] { (void)validate(call, 0, 1); }, Errc::kInvalidArgument);
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

// The bytes of a count over all ranks are checked before they are multiplied: 2^64 would wrap to 0.
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
        const std::string words = ropewalk::testing::message_of(
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
      ropewalk::testing::message_of([&] { (void)validate(call, 0, 2); }, Errc::kInvalidArgument);
  EXPECT_NE(words.find("leave the address space"), std::string::npos) << words;
  ++call.count;
  words =
      ropewalk::testing::message_of([&] { (void)validate(call, 0, 2); }, Errc::kInvalidArgument);
  EXPECT_NE(words.find("exceed the address space"), std::string::npos) << words;
}

TEST(CollectiveCall, CarriedElementsAreCountedAsTheCallerDoes) {
  struct Case {
    CarriedType type;
    std::size_t carriers;  // of 3 elements
    const char* words;
  };
  for (const Case& each :
       {Case{CarriedType::kNone, 3, "3 float32"}, Case{CarriedType::kBool, 3, "3 bool"},
        Case{CarriedType::kInt16, 3, "3 int16"}, Case{CarriedType::kUint16, 3, "3 uint16"},
        Case{CarriedType::kComplex64, 6, "3 complex64"},
        Case{CarriedType::kComplex128, 6, "3 complex128"}, Case{CarriedType::kByte, 3, "3 byte"}}) {
    CollectiveCall call;
    PointToPointCall message;
    call.count = message.count = each.carriers;
    call.carried = message.carried = each.type;
    if (each.type != CarriedType::kNone) {
      EXPECT_EQ(each.carriers, 3 * carrier_of(each.type).per_element);
      call.type = message.type = carrier_of(each.type).type;
    }
    EXPECT_EQ(describe_elements(call.count, call.type, call.carried), each.words);
    EXPECT_EQ(tag_of(call, 1).count, 3U) << each.words;
    EXPECT_EQ(tag_of(message).count, 3U) << each.words;
  }
}

TEST(CollectiveCall, RanksThatMoveTheSameBytesAsOtherTypesDisagree) {
  CollectiveCall call;
  call.type = DataType::kFloat16;
  CollectiveCall carried = call;
  carried.carried = CarriedType::kInt16;
  EXPECT_NE(tag_of(call, 1), tag_of(carried, 1));
  EXPECT_FALSE(call == carried);
}

TEST(CollectiveCall, OnlyComplexElementsAreSummed) {
  const MadeOperators operators;
  for (int type = kFirstCarriedType; type < kEndOfCarriedTypes; ++type) {
    for (int op = 0; op < MadeOperators::kFirst; ++op) {
      CollectiveCall call;
      call.carried = static_cast<CarriedType>(type);
      const bool sum = op == static_cast<int>(RedOp::kSum) || op == static_cast<int>(RedOp::kAvg);
      if (adds(call.carried) && sum) {
        operators.set(call, op);
        EXPECT_EQ(static_cast<int>(call.op), op);
      } else {
        const std::string said =
            ropewalk::testing::message_of([&] { operators.set(call, op); }, Errc::kInvalidArgument);
        EXPECT_NE(said.find(name(call.carried)), std::string::npos) << said;
      }
    }
  }
}

}  // namespace
}  // namespace ropewalk::comm
