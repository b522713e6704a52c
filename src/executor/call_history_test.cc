#include "executor/call_history.h"

#include <gtest/gtest.h>

#include <string>

#include "core/types.h"

namespace ropewalk::executor {
namespace {

CallTag all_reduce(std::uint32_t call, unsigned type, RedOp op = RedOp::kSum) {
  CallTag tag;
  tag.count = 4;
  tag.call = call;
  tag.type_and_op = static_cast<std::uint8_t>(type | static_cast<unsigned>(op) << kTagTypeBits);
  return tag;
}

constexpr auto kFloat32 = static_cast<unsigned>(DataType::kFloat32);

std::string difference(const CallTag& ours, const CallTag& theirs,
                       const CallHistory& history = {}) {
  return describe_difference(0, ours, history, 1, theirs);
}

TEST(CallHistory, NamesTypesThatOtherTypesCarry) {
  EXPECT_EQ(difference(all_reduce(1, static_cast<unsigned>(CarriedType::kComplex64)),
                       all_reduce(1, kFloat32)),
            "ranks issued different calls (type): rank 0 call 1: all_reduce of 4 complex64 sum; "
            "rank 1 call 1: all_reduce of 4 float32 sum");
}

TEST(CallHistory, EveryOperatorHasRoomBesideEveryType) {
  for (unsigned type = 0; type < kEndOfCarriedTypes; ++type) {
    EXPECT_EQ(difference(all_reduce(1, type, RedOp::kPreMulSum), all_reduce(1, type))
                  .find("ranks issued different calls (operator): "),
              0U)
        << type;
  }
}

TEST(CallHistory, ATypeThatIsNoneIsNotLookedUp) {
  for (const unsigned type : {12U, 15U, 22U, 31U}) {
    const std::string said = difference(all_reduce(1, type), all_reduce(1, kFloat32));
    EXPECT_NE(said.find("unknown elements"), std::string::npos) << said;
  }
}

TEST(CallHistory, ABarrierIsNamedAndItsElementsAreNot) {
  CallTag barrier = all_reduce(1, kFloat32);
  barrier.collective = kBarrier;
  CallTag other = all_reduce(1, static_cast<unsigned>(DataType::kInt8), RedOp::kMax);
  other.count = 9;
  EXPECT_EQ(difference(barrier, other),
            "ranks issued different calls (operation): rank 0 call 1: barrier; rank 1 call 1: "
            "all_reduce of 9 int8 max");
}

TEST(CallHistory, ACallByCopyEnginesAndOneByKernelsDiffer) {
  CallTag kernels = all_reduce(1, kFloat32);
  kernels.collective = static_cast<std::uint8_t>(Collective::kAllGather);
  CallTag engines = kernels;
  engines.collective |= kByCopyEngines;
  const std::string said = difference(kernels, engines);
  EXPECT_NE(said.find("(by copy engines or by kernels)"), std::string::npos) << said;
  EXPECT_NE(said.find("rank 1 call 1: all_gather of"), std::string::npos) << said;
  EXPECT_TRUE(said.ends_with(" by copy engines")) << said;
  CallTag other = engines;
  other.collective = static_cast<std::uint8_t>(Collective::kBroadcast);
  EXPECT_NE(difference(engines, other).find("(operation)"), std::string::npos);
}

// As where two threads used a communicator: each call had its like, but they met in another order.
TEST(CallHistory, SomethingAlwaysDiffers) {
  CallHistory history;
  history.record(all_reduce(1, kFloat32));
  history.record(all_reduce(2, kFloat32));
  const std::string said = difference(all_reduce(2, kFloat32), all_reduce(1, kFloat32), history);
  EXPECT_NE(said.find("(number of calls)"), std::string::npos) << said;
  EXPECT_NE(said.find("two threads"), std::string::npos) << said;
}

}  // namespace
}  // namespace ropewalk::executor
