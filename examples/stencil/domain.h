// The problem: Jacobi iterations of Laplace's equation on a rectangle, cut into blocks by ranks.
//
// A cell becomes the mean of its four neighbours; the rectangle's border has fixed values. Sums are
// in one order everywhere, so that every form gives the bits that one rank alone computes.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <vector>

namespace stencil {

enum Side : int { kLeft = 0, kRight = 1, kUp = 2, kDown = 3 };
inline constexpr std::array<Side, 4> kSides{kLeft, kRight, kUp, kDown};
/// How the neighbour on `side` calls the side on which this rank is.
constexpr Side opposite(Side side) { return static_cast<Side>(side ^ 1); }

/// What is `k` of `parts` of [0, whole).
struct Range {
  int begin = 0;
  int end = 0;
  [[nodiscard]] int size() const { return end - begin; }
};
inline Range part_of(int whole, int parts, int k) {
  const auto at = [=](int i) {
    return static_cast<int>(static_cast<long long>(whole) * i / parts);
  };
  return {at(k), at(k + 1)};
}

/// The fixed values of the border and the first ones inside, by place in the rectangle (-1 and
/// `width`, `height` are the border).
inline double initial(int x, int y, int width, int height) {
  if (x < 0) return 1.0;
  if (x >= width) return -1.0;
  if (y < 0) return 0.5;
  if (y >= height) return -0.25;
  return static_cast<double>((x * 7 + y * 13) % 32) / 32.0;
}

/// One rank's block, of a grid of blocks that is as square as the number of ranks allows.
class Domain {
 public:
  Domain(int width, int height, int rank, int size) : width_(width), height_(height), rank_(rank) {
    for (int c = 1; c * c <= size; ++c) {
      if (size % c == 0) columns_ = c;
    }
    rows_ = size / columns_;
    x_ = part_of(width, columns_, rank % columns_);
    y_ = part_of(height, rows_, rank / columns_);
  }

  [[nodiscard]] int width() const { return width_; }
  [[nodiscard]] int height() const { return height_; }
  [[nodiscard]] int columns() const { return columns_; }
  [[nodiscard]] int rows() const { return rows_; }
  [[nodiscard]] Range x() const { return x_; }
  [[nodiscard]] Range y() const { return y_; }
  [[nodiscard]] int nx() const { return x_.size(); }
  [[nodiscard]] int ny() const { return y_.size(); }

  /// The rank on that side; -1 for the border.
  [[nodiscard]] int neighbor(Side side) const {
    const int column = rank_ % columns_;
    const int row = rank_ / columns_;
    switch (side) {
      case kLeft: return column > 0 ? rank_ - 1 : -1;
      case kRight: return column + 1 < columns_ ? rank_ + 1 : -1;
      case kUp: return row > 0 ? rank_ - columns_ : -1;
      case kDown: return row + 1 < rows_ ? rank_ + columns_ : -1;
    }
    return -1;
  }
  /// Cells of the edge on that side, which is also the neighbour's.
  [[nodiscard]] int edge(Side side) const { return side <= kRight ? ny() : nx(); }
  /// The longest edge of any rank: halos lie at multiples of it.
  [[nodiscard]] int longest_edge() const {
    return std::max((width_ + columns_ - 1) / columns_, (height_ + rows_ - 1) / rows_);
  }

 private:
  int width_;
  int height_;
  int rank_;
  int columns_ = 1;
  int rows_ = 1;
  Range x_;
  Range y_;
};

/// A block with a frame of one cell around it, which has the neighbours' edges or the border.
class Field {
 public:
  Field(int nx, int ny)
      : nx_(nx),
        ny_(ny),
        cells_((static_cast<std::size_t>(nx) + 2) * (static_cast<std::size_t>(ny) + 2)) {}

  [[nodiscard]] int nx() const { return nx_; }
  [[nodiscard]] int ny() const { return ny_; }
  /// x from -1 to nx, y from -1 to ny.
  double* row(int y) { return cells_.data() + (static_cast<std::size_t>(y) + 1) * stride() + 1; }
  [[nodiscard]] const double* row(int y) const {
    return cells_.data() + (static_cast<std::size_t>(y) + 1) * stride() + 1;
  }
  [[nodiscard]] std::size_t stride() const { return static_cast<std::size_t>(nx_) + 2; }
  [[nodiscard]] const std::vector<double>& cells() const { return cells_; }
  std::vector<double>& cells() { return cells_; }

  void set_initial(const Domain& domain) {
    for (int y = -1; y <= ny_; ++y) {
      for (int x = -1; x <= nx_; ++x) {
        row(y)[x] =
            initial(domain.x().begin + x, domain.y().begin + y, domain.width(), domain.height());
      }
    }
  }

  /// The cells at this block's edge on `side`, copied out.
  void pack(Side side, double* out) const {
    if (side <= kRight) {
      const int x = side == kLeft ? 0 : nx_ - 1;
      for (int y = 0; y < ny_; ++y) out[y] = row(y)[x];
    } else {
      const double* const from = row(side == kUp ? 0 : ny_ - 1);
      std::copy(from, from + nx_, out);
    }
  }
  /// The neighbour's edge on `side`, copied into the frame.
  void unpack(Side side, const double* in) {
    if (side <= kRight) {
      const int x = side == kLeft ? -1 : nx_;
      for (int y = 0; y < ny_; ++y) row(y)[x] = in[y];
    } else {
      std::copy(in, in + nx_, row(side == kUp ? -1 : ny_));
    }
  }

 private:
  int nx_;
  int ny_;
  std::vector<double> cells_;
};

/// `next` in the range of cells, from `now`.
inline void relax(const Field& now, Field& next, Range x, Range y) {
  for (int j = y.begin; j < y.end; ++j) {
    const double* const above = now.row(j - 1);
    const double* const here = now.row(j);
    const double* const below = now.row(j + 1);
    double* const out = next.row(j);
    for (int i = x.begin; i < x.end; ++i) {
      out[i] = 0.25 * ((above[i] + below[i]) + (here[i - 1] + here[i + 1]));
    }
  }
}

/// The cells that need no neighbour's edge...
inline void relax_inside(const Field& now, Field& next) {
  relax(now, next, {1, now.nx() - 1}, {1, now.ny() - 1});
}

/// ...and those that do.
inline void relax_edges(const Field& now, Field& next) {
  const int nx = now.nx();
  const int ny = now.ny();
  relax(now, next, {0, nx}, {0, 1});
  if (ny > 1) relax(now, next, {0, nx}, {ny - 1, ny});
  relax(now, next, {0, 1}, {1, ny - 1});
  if (nx > 1) relax(now, next, {nx - 1, nx}, {1, ny - 1});
}

}  // namespace stencil
