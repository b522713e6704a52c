#include "plan/simplex.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <vector>

namespace ropewalk::plan {
namespace {

std::size_t at(int index) { return static_cast<std::size_t>(index); }

double gain_of(const Column& column, const std::vector<double>& prices) {
  double gain = column.value;
  for (const auto& [row, use] : column.entries) gain -= prices[at(row)] * use;
  return gain;
}

TEST(Simplex, FindsAKnownOptimumAndItsPrices) {
  // Maximise 3a + 2b + 4c with a + b <= 4, a + c <= 3, b + 2c <= 5.
  const std::vector<Column> columns = {
      {{{0, 1.0}, {1, 1.0}}, 3}, {{{0, 1.0}, {2, 1.0}}, 2}, {{{1, 1.0}, {2, 2.0}}, 4}};
  const std::vector<double> limits = {4, 3, 5};
  const LinearSolution found =
      maximise(limits, [&](const std::vector<double>& prices) -> std::optional<Column> {
        for (const Column& column : columns) {
          if (gain_of(column, prices) > 1e-9) return column;
        }
        return std::nullopt;
      });
  EXPECT_TRUE(found.proven);
  double worth = 0;
  for (std::size_t row = 0; row < limits.size(); ++row) {
    EXPECT_GE(found.prices[row], 0);
    worth += found.prices[row] * limits[row];
  }
  EXPECT_NEAR(found.value, worth, 1e-5);
  for (const Column& column : columns) {
    EXPECT_LE(gain_of(column, found.prices), 1e-9);
  }
}

// By duality the value is that of the prices. Limits that are alike make many amounts 0 at the
// optimum, and the limits by which simplex avoids turning on the spot put some of them below.
TEST(Simplex, ReachesWhatThePricesProveToTheLastDigits) {
  std::mt19937 random(1);
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(round);
    constexpr int kRows = 12;
    const std::vector<double> limits(kRows, 1.0);
    std::vector<Column> columns(40);
    for (Column& column : columns) {
      column.value = 1;
      for (int row = 0; row < kRows; ++row) {
        if (random() % 4 == 0) column.entries.emplace_back(row, 1.0);
      }
      if (column.entries.empty()) column.entries.emplace_back(0, 1.0);
    }
    std::vector<Column> made;
    const LinearSolution found =
        maximise(limits, [&](const std::vector<double>& prices) -> std::optional<Column> {
          const auto best =
              std::max_element(columns.begin(), columns.end(), [&](const auto& a, const auto& b) {
                return gain_of(a, prices) < gain_of(b, prices);
              });
          if (gain_of(*best, prices) < 1e-9) return std::nullopt;
          made.push_back(*best);
          return *best;
        });
    ASSERT_TRUE(found.proven);
    double bound = 0;
    for (const double price : found.prices) bound += price;
    EXPECT_NEAR(found.value, bound, 1e-10 * bound);
    std::vector<double> used(kRows, 0.0);
    ASSERT_EQ(found.amounts.size(), made.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      EXPECT_GE(found.amounts[i], 0);
      for (const auto& [row, use] : made[i].entries) {
        used[at(row)] += use * found.amounts[i];
      }
    }
    EXPECT_LE(*std::max_element(used.begin(), used.end()), 1 + 1e-12);
  }
}

}  // namespace
}  // namespace ropewalk::plan
