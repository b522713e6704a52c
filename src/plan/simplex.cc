#include "plan/simplex.h"

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "core/error.h"
#include "core/index.h"
#include "core/interrupt.h"

namespace ropewalk::plan {

namespace {

constexpr double kWorth = 1e-10;  // a column must be worth this much more than it costs, relative
constexpr double kPivot = 1e-7;   // smaller entries are rounding
constexpr std::size_t kMostRows = 2000;  // its inverse is dense
constexpr double kPerturbation = 1e-7;
constexpr int kRenewAfter = 40;  // pivots between fresh inverses: rounding adds up

class Simplex {
 public:
  explicit Simplex(const std::vector<double>& limits)
      : rows_(static_cast<int>(limits.size())), limits_(limits), perturbed_(limits) {
    // Many rows become tight at once in symmetric programmes, and simplex would turn on the spot.
    // Rows get limits that differ by a little, by fixed but irregular amounts. Prices do not depend
    // on limits, so what they prove is unharmed; amounts are computed from the real limits.
    std::uint64_t state = 0x9e3779b97f4a7c15ULL;
    for (double& limit : perturbed_) {
      state = state * 6364136223846793005ULL + 1442695040888963407ULL;
      const double noise = static_cast<double>(state >> 40U) / static_cast<double>(1U << 24U);
      limit += kPerturbation * (0.5 + noise);
    }
    for (int row = 0; row < rows_; ++row) {
      basis_.push_back(-1 - row);
    }
    renew();
  }

  LinearSolution run(const std::function<std::optional<Column>(const std::vector<double>&)>& make,
                     int max_rounds) {
    LinearSolution out;
    for (int round = 0; round < max_rounds; ++round) {
      if (since_renewal_ >= kRenewAfter) {
        renew();
      }
      std::vector<double> prices = row_prices();
      const auto lowest = std::min_element(prices.begin(), prices.end());
      if (lowest != prices.end() && *lowest < -1e-12) {
        // A negative price: the row's slack is worth using.
        if (!enter(-1 - static_cast<int>(lowest - prices.begin())) && !retry()) {
          break;
        }
        continue;
      }
      for (double& price : prices) {
        price = std::max(price, 0.0);
      }
      std::optional<Column> column = make(prices);
      if (!column.has_value() ||
          gain(*column, prices) <= kWorth * std::fabs(column->value) + 1e-13) {
        out.proven = true;
        break;
      }
      columns_.push_back(std::move(*column));
      if (!enter(static_cast<int>(columns_.size()) - 1) && !retry()) {
        break;
      }
    }
    renew();
    out.prices = row_prices();
    for (double& price : out.prices) {
      price = std::max(price, 0.0);
    }
    restore_feasibility();
    return finish(std::move(out));
  }

 private:
  /// Nothing seems to limit a column only when rounding has spoilt the inverse: try once with a new
  /// one.
  bool retry() {
    const bool spoilt = since_renewal_ > 0;
    renew();
    return spoilt;
  }

  static double gain(const Column& column, const std::vector<double>& prices) {
    double cost = 0;
    for (const auto& [row, use] : column.entries) {
      cost += prices[at(row)] * use;
    }
    return column.value - cost;
  }

  double& inverse(int row, int column) { return inverse_[at(row) * at(rows_) + at(column)]; }
  [[nodiscard]] double inverse(int row, int column) const {
    return inverse_[at(row) * at(rows_) + at(column)];
  }

  [[nodiscard]] double value_of(int column) const {
    return column < 0 ? 0 : columns_[at(column)].value;
  }

  [[nodiscard]] std::vector<double> row_prices() const {
    std::vector<double> out(at(rows_), 0.0);
    for (int row = 0; row < rows_; ++row) {
      const double value = value_of(basis_[at(row)]);
      if (value == 0) {
        continue;
      }
      for (int i = 0; i < rows_; ++i) {
        out[at(i)] += value * inverse(row, i);
      }
    }
    return out;
  }

  /// The basis inverse times a column.
  [[nodiscard]] std::vector<double> direction(int column) const {
    std::vector<double> out(at(rows_), 0.0);
    for (int row = 0; row < rows_; ++row) {
      if (column < 0) {
        out[at(row)] = inverse(row, -1 - column);
        continue;
      }
      for (const auto& [i, use] : columns_[at(column)].entries) {
        out[at(row)] += inverse(row, i) * use;
      }
    }
    return out;
  }

  [[nodiscard]] std::vector<double> amounts(const std::vector<double>& limits) const {
    std::vector<double> out(at(rows_), 0.0);
    for (int row = 0; row < rows_; ++row) {
      for (int i = 0; i < rows_; ++i) {
        out[at(row)] += inverse(row, i) * limits[at(i)];
      }
    }
    return out;
  }

  /// Brings a column into the basis. False if nothing limits it.
  bool enter(int column) {
    const std::vector<double> along = direction(column);
    // Two passes (P. M. J. Harris, Mathematical Programming 5, 1973): the least ratio with a little
    // tolerance, then the largest entry within it, which keeps the inverse accurate.
    double most = -1;
    for (int row = 0; row < rows_; ++row) {
      if (along[at(row)] > kPivot) {
        const double ratio = (std::max(amounts_[at(row)], 0.0) + 1e-10) / along[at(row)];
        if (most < 0 || ratio < most) {
          most = ratio;
        }
      }
    }
    if (most < 0) {
      return false;
    }
    int leaving = -1;
    for (int row = 0; row < rows_; ++row) {
      if (along[at(row)] > kPivot && std::max(amounts_[at(row)], 0.0) / along[at(row)] <= most &&
          (leaving < 0 || along[at(row)] > along[at(leaving)])) {
        leaving = row;
      }
    }
    pivot(leaving, column, along);
    return true;
  }

  /// Exchanges the basis column of row `leaving` for `column`, whose direction is `along`.
  void pivot(int leaving, int column, const std::vector<double>& along) {
    check_stopped("planning");
    const double size = along[at(leaving)];
    const double step = amounts_[at(leaving)] / size;
    for (int i = 0; i < rows_; ++i) {
      inverse(leaving, i) /= size;
    }
    for (int row = 0; row < rows_; ++row) {
      if (row == leaving || along[at(row)] == 0) {
        continue;
      }
      amounts_[at(row)] -= step * along[at(row)];
      for (int i = 0; i < rows_; ++i) {
        inverse(row, i) -= along[at(row)] * inverse(leaving, i);
      }
    }
    amounts_[at(leaving)] = step;
    basis_[at(leaving)] = column;
    ++since_renewal_;
  }

  /// With the real limits some amounts may be below zero. Dual simplex steps (C. E. Lemke 1954)
  /// over the existing columns make them feasible and keep the prices optimal.
  void restore_feasibility() {
    perturbed_ = limits_;
    renew();
    const int columns = static_cast<int>(columns_.size());
    for (int round = 0; round < 20 * rows_; ++round) {
      if (since_renewal_ >= kRenewAfter) {
        renew();
      }
      const int leaving =
          static_cast<int>(std::min_element(amounts_.begin(), amounts_.end()) - amounts_.begin());
      if (amounts_[at(leaving)] > -1e-11) {
        return;
      }
      const std::vector<double> prices = row_prices();
      std::vector<bool> in_basis(at(columns + rows_), false);
      for (const int member : basis_) {
        in_basis[at(member + rows_)] = true;
      }
      int entering = 0;
      double least = -1;
      double largest = 0;
      for (int column = -rows_; column < columns; ++column) {
        if (in_basis[at(column + rows_)]) {
          continue;
        }
        double entry = 0;
        double loss = 0;
        if (column < 0) {
          entry = inverse(leaving, -1 - column);
          loss = prices[at(-1 - column)];
        } else {
          for (const auto& [row, use] : columns_[at(column)].entries) {
            entry += inverse(leaving, row) * use;
          }
          loss = -gain(columns_[at(column)], prices);
        }
        if (entry >= -kPivot) {
          continue;
        }
        const double ratio = std::max(loss, 0.0) / -entry;
        if (least < 0 || ratio < least - 1e-12 || (ratio <= least + 1e-12 && -entry > largest)) {
          least = ratio;
          largest = -entry;
          entering = column;
        }
      }
      if (least < 0) {
        return;
      }
      pivot(leaving, entering, direction(entering));
    }
  }

  /// Computes the inverse anew from the basis, by Gauss-Jordan elimination with row exchange.
  void renew() {
    std::vector<double> matrix(at(rows_) * at(rows_), 0.0);
    const auto entry = [&](int row, int column) -> double& {
      return matrix[at(row) * at(rows_) + at(column)];
    };
    for (int column = 0; column < rows_; ++column) {
      const int member = basis_[at(column)];
      if (member < 0) {
        entry(-1 - member, column) = 1;
        continue;
      }
      for (const auto& [row, use] : columns_[at(member)].entries) {
        entry(row, column) += use;
      }
    }
    inverse_.assign(at(rows_) * at(rows_), 0.0);
    for (int i = 0; i < rows_; ++i) {
      inverse(i, i) = 1;
    }
    for (int column = 0; column < rows_; ++column) {
      int best = column;
      for (int row = column + 1; row < rows_; ++row) {
        if (std::fabs(entry(row, column)) > std::fabs(entry(best, column))) {
          best = row;
        }
      }
      if (best != column) {
        for (int i = 0; i < rows_; ++i) {
          std::swap(entry(best, i), entry(column, i));
          std::swap(inverse(best, i), inverse(column, i));
        }
      }
      const double pivot = entry(column, column);
      for (int i = 0; i < rows_; ++i) {
        entry(column, i) /= pivot;
        inverse(column, i) /= pivot;
      }
      for (int row = 0; row < rows_; ++row) {
        const double factor = entry(row, column);
        if (row == column || factor == 0) {
          continue;
        }
        for (int i = 0; i < rows_; ++i) {
          entry(row, i) -= factor * entry(column, i);
          inverse(row, i) -= factor * inverse(column, i);
        }
      }
    }
    amounts_ = amounts(perturbed_);
    since_renewal_ = 0;
  }

  LinearSolution finish(LinearSolution out) const {
    out.amounts.assign(columns_.size(), 0.0);
    for (int row = 0; row < rows_; ++row) {
      if (basis_[at(row)] >= 0) {
        out.amounts[at(basis_[at(row)])] = std::max(amounts_[at(row)], 0.0);
      }
    }
    // Where a little below zero was cut off, the rest is scaled back into the limits.
    std::vector<double> used(at(rows_), 0.0);
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      for (const auto& [row, use] : columns_[i].entries) {
        used[at(row)] += use * out.amounts[i];
      }
    }
    double worst = 1;
    for (int row = 0; row < rows_; ++row) {
      if (limits_[at(row)] > 0) {
        worst = std::max(worst, used[at(row)] / limits_[at(row)]);
      }
    }
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      out.amounts[i] /= worst;
      out.value += columns_[i].value * out.amounts[i];
    }
    return out;
  }

  int rows_;
  std::vector<double> limits_;
  std::vector<double> perturbed_;
  std::vector<Column> columns_;
  std::vector<int> basis_;  // per row: a column, or -1 - row of a slack
  std::vector<double> inverse_;
  std::vector<double> amounts_;
  int since_renewal_ = 0;
};

}  // namespace

LinearSolution maximise(
    const std::vector<double>& limits,
    const std::function<std::optional<Column>(const std::vector<double>& prices)>& make_column,
    int max_rounds) {
  if (limits.size() > kMostRows) {
    throw Error(Errc::kInvalidArgument,
                "linear programme: {} links that are not equivalent; {} is the limit",
                limits.size(), kMostRows);
  }
  return Simplex(limits).run(make_column, max_rounds);
}

}  // namespace ropewalk::plan
