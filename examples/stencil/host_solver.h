// The iteration on host memory, whatever carries the edges.
#pragma once

#include <array>
#include <utility>
#include <vector>

#include "solver.h"

namespace stencil {

/// The edges leave before the cells inside are computed, and are needed for those at the edges.
class HostSolver : public Solver {
 public:
  explicit HostSolver(const Domain& domain)
      : domain_(domain), now_(domain.nx(), domain.ny()), next_(domain.nx(), domain.ny()) {}

  void load(const Field& field) final { now_ = next_ = field; }
  void store(Field& field) final { field = now_; }

  void run(int iterations) final {
    for (int k = 0; k < iterations; ++k) {
      start(now_);
      relax_inside(now_, next_);
      finish(now_);
      relax_edges(now_, next_);
      std::swap(now_, next_);
    }
  }

 protected:
  [[nodiscard]] const Domain& domain() const { return domain_; }
  /// Sends the edges of `field`.
  virtual void start(const Field& field) = 0;
  /// Waits for the neighbours' edges, which then are in the frame of `field`.
  virtual void finish(Field& field) = 0;

 private:
  Domain domain_;
  Field now_;
  Field next_;
};

}  // namespace stencil
