// Every type by every operator, as CUDA blocks combine them. Takes as long to compile as a layer:
// the CMake option RW_SLOW_TESTS leaves it out.
#include <gtest/gtest.h>

#include "executor/block/testing/case.h"
#include "schedule/compile.h"

namespace ropewalk::executor {
namespace {

using namespace testing;  // NOLINT: what all of it is about

template <DataType kType, RedOp kOp>
void expect_right() {
  Case test;
  test.schedule = schedule::compile("one_shot", {Collective::kAllReduce, 3, 0, 1});
  test.type = kType;
  test.op = kOp;
  test.count = 61;
  for (const std::size_t shift : {std::size_t{0}, std::size_t{1}}) {
    test.misaligned = shift * size_of(kType);
    for (const Protocol protocol : {Protocol::kSimple, Protocol::kLl, Protocol::kLl128}) {
      test.protocol = protocol;
      const std::uint64_t wrong = run<ElementOf<kType>, kOp>(test);
      EXPECT_EQ(wrong, 0U) << name(kType) << " " << name(kOp) << " shift " << shift << " "
                           << describe(test);
    }
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
