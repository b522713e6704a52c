// The operators that users made for a communicator, by the numbers that they were given.
#pragma once

#include <cstdint>
#include <map>

#include "comm/collective_call.h"
#include "core/types.h"

namespace ropewalk::comm {

/// Multiplies this rank's input by a scalar, then sums.
struct PreMulSum {
  DataType type = DataType::kFloat32;
  std::uint64_t scalar = 0;         ///< one element, in the low bytes; or
  const void* on_device = nullptr;  ///< where it is read when an operation is enqueued
};

/// Threads: one at a time.
class MadeOperators {
 public:
  /// Pre-multiplied sums have no number of their own in the C APIs: each is made.
  static constexpr int kFirst = kNumRedOps - 1;

  /// @return its number, above those of the operators that are always there
  int add(const PreMulSum& made);

  /// @throws Error kInvalidArgument when there is no such operator
  void remove(int number);

  /// Sets the operator of `call`, by the numbers of both C APIs, and its scalar.
  /// @return the operator made under this number; nullptr for a built-in operator
  /// @throws Error kInvalidArgument when there is no such operator, or it is for another type
  const PreMulSum* set(CollectiveCall& call, int number) const;

 private:
  std::map<int, PreMulSum> made_;
  int next_ = kFirst;
};

}  // namespace ropewalk::comm
