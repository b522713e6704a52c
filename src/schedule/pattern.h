// Known inputs and the results that follow, for checking collectives.
//
// Values are small integers, chosen so that every partial result is exact in every type: then any
// order of reduction gives the same bits. (Averages of floats are the exception: they are compared
// within the rounding that one multiplication per rank can cause.)
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "core/types.h"

namespace ropewalk::schedule {

class TestPattern {
 public:
  /// `units` of `count` elements go into and come out of a rank's buffers as schedule/layout.h
  /// says.
  TestPattern(Collective collective, DataType type, RedOp op, int num_ranks, int root,
              std::size_t count);

  /// This rank's factor for kPreMulSum, as one element's bits.
  [[nodiscard]] std::uint64_t scalar(int rank) const;

  /// Fills the whole input buffer of `rank`.
  void fill_input(int rank, void* input) const;

  /// Compares the whole output buffer of `rank`. @return how many elements are wrong
  [[nodiscard]] std::uint64_t count_wrong(int rank, const void* output) const;

 private:
  /// Values of elements `begin` and following of a rank's input.
  void input_values(int rank, std::size_t begin, std::size_t count, double* values) const;
  /// The input unit that ends in unit `output_unit` of `rank`'s output, where nothing is reduced.
  struct Origin {
    int rank;
    int unit;
  };
  [[nodiscard]] std::optional<Origin> origin(int rank, int output_unit) const;
  void reduced_values(std::size_t begin, std::size_t count, double* values) const;
  [[nodiscard]] double scalar_value(int rank) const;

  Collective collective_;
  DataType type_;
  RedOp op_;
  int num_ranks_;
  int root_;
  std::size_t count_;
  // Inputs: numbers below below_ by chance, where it is not zero. Otherwise high_ on as many ranks
  // as keep the result exact, which change with the index, and low_ on the others.
  std::uint64_t below_ = 0;
  double low_ = 0;
  double high_ = 0;
  std::size_t most_high_ = 0;
};

}  // namespace ropewalk::schedule
