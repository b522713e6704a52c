#include "plan/simplex.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <random>
#include <vector>

#include "core/index.h"

namespace ropewalk::plan {
namespace {

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

// The value is that of the prices, but for what rounding and the perturbation of limits leave.
// Limits that differ by less than they are perturbed by put some amounts below zero at first, and
// cutting those off alone would cost ten times as much.
TEST(Simplex, ReachesWhatThePricesProve) {
  constexpr int kRows = 12;
  for (unsigned seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    std::vector<double> limits;
    for (int row = 0; row < kRows; ++row) {
      limits.push_back(1 + 3e-8 * static_cast<double>(random() % 8));
    }
    std::vector<Column> columns(40);
    for (Column& column : columns) {
      column.value = 1;
      for (int row = 0; row < kRows; ++row) {
        if (random() % 2 == 0) column.entries.emplace_back(row, 1.0);
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
    for (int row = 0; row < kRows; ++row) bound += found.prices[at(row)] * limits[at(row)];
    EXPECT_NEAR(found.value, bound, 3e-8 * bound);
    std::vector<double> used(kRows, 0.0);
    ASSERT_EQ(found.amounts.size(), made.size());
    for (std::size_t i = 0; i < made.size(); ++i) {
      EXPECT_GE(found.amounts[i], 0);
      for (const auto& [row, use] : made[i].entries) used[at(row)] += use * found.amounts[i];
    }
    for (int row = 0; row < kRows; ++row) EXPECT_LE(used[at(row)], limits[at(row)] + 1e-12);
  }
}

}  // namespace
}  // namespace ropewalk::plan
