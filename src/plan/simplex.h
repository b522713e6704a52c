// Linear programmes whose columns are too many to write down: maximise value, rows within limits,
// columns made on demand.
//
// Primal simplex with a dense basis inverse (G. B. Dantzig 1947) and delayed columns (P. C. Gilmore
// and R. E. Gomory, Operations Research 9, 1961): each round asks the caller for the column that is
// worth most at the current prices of the rows. When none is worth more than it costs, the prices
// prove the optimum.
#pragma once

#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace ropewalk::plan {

/// What one unit of a column uses of some rows, and what it is worth.
struct Column {
  std::vector<std::pair<int, double>> entries;  ///< (row, use)
  double value = 0;
};

/// The solution over the columns that were made.
struct LinearSolution {
  double value = 0;
  std::vector<double> amounts;  ///< of every column made, in order
  std::vector<double> prices;   ///< of every row: value <= sum of price x limit, for any solution
  bool proven = false;          ///< false if it stopped at `max_rounds`
};

/// Maximises the value of columns within `limits` (all >= 0) of the rows.
///
/// @param make_column  the column worth most over its cost at these prices (or any one worth more
///        than its cost; nullopt if there is none). It must return the same for the same prices.
/// @param max_rounds   the most pivots
/// @throws Error kInvalidArgument for more than 2000 rows
LinearSolution maximise(
    const std::vector<double>& limits,
    const std::function<std::optional<Column>(const std::vector<double>& prices)>& make_column,
    int max_rounds = 20000);

}  // namespace ropewalk::plan
