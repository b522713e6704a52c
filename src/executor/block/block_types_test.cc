// Every type by every operator, as CUDA blocks combine them, each by one protocol, so that every
// type and every operator meets every protocol: all three by all would take as long to compile as a
// layer. The CMake option RW_SLOW_TESTS leaves it out.
#include <gtest/gtest.h>

#include <iterator>

#include "executor/block/testing/case.h"
#include "schedule/compile.h"

namespace ropewalk::executor {
namespace {

using namespace testing;  // NOLINT: what all of it is about

constexpr Protocol protocol_of(DataType type, RedOp op) {
  constexpr Protocol kAll[] = {Protocol::kSimple, Protocol::kLl, Protocol::kLl128};
  return kAll[(static_cast<std::size_t>(type) + static_cast<std::size_t>(op)) % std::size(kAll)];
}

template <DataType kType, RedOp kOp>
void expect_right() {
  constexpr Protocol kProtocol = protocol_of(kType, kOp);
  Case test;
  test.schedule = schedule::compile("one_shot", {Collective::kAllReduce, 3, 0, 1});
  test.type = kType;
  test.op = kOp;
  test.count = 61;
  test.protocol = kProtocol;
  for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
    test.misaligned = shift * size_of(kType);
    const std::uint64_t wrong = run<ElementOf<kType>, kOp, Compiled<kProtocol>>(test);
    EXPECT_EQ(wrong, 0U) << name(kType) << " " << name(kOp) << " shift " << shift << " "
                         << describe(test);
  }
}

template <DataType kType>
void expect_operators_right() {
  expect_right<kType, RedOp::kSum>();
  expect_right<kType, RedOp::kProd>();
  expect_right<kType, RedOp::kMax>();
  expect_right<kType, RedOp::kMin>();
}

TEST(Block, CombinesEveryTypeByEveryOperator) {
  expect_operators_right<DataType::kInt8>();
  expect_operators_right<DataType::kUint8>();
  expect_operators_right<DataType::kInt32>();
  expect_operators_right<DataType::kUint32>();
  expect_operators_right<DataType::kInt64>();
  expect_operators_right<DataType::kUint64>();
  expect_operators_right<DataType::kFloat16>();
  expect_operators_right<DataType::kFloat32>();
  expect_operators_right<DataType::kFloat64>();
  expect_operators_right<DataType::kBfloat16>();
  expect_operators_right<DataType::kFloat8e4m3>();
  expect_operators_right<DataType::kFloat8e5m2>();
}

}  // namespace
}  // namespace ropewalk::executor
