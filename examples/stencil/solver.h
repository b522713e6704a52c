// What the program needs of a library: ranks, and ways to iterate, by name.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "domain.h"

namespace stencil {

/// The ranks that run together. Failures end the program with a text.
class Ranks {
 public:
  virtual ~Ranks() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;
  virtual void barrier() = 0;
  /// `count` numbers of each rank, to rank 0, where `all` has room for them by rank.
  virtual void gather(const double* mine, std::size_t count, double* all) = 0;
};

/// Iterates on one rank's block. All ranks make and call alike.
class Solver {
 public:
  virtual ~Solver() = default;
  /// To begin with; `field` has its frame.
  virtual void load(const Field& field) = 0;
  /// Returns when they are done.
  virtual void run(int iterations) = 0;
  /// Copies the block, whose frame does not matter.
  virtual void store(Field& field) = 0;
};

/// Joins the others as the launcher says. Once.
std::unique_ptr<Ranks> join(int* argc, char*** argv);

/// The forms that this program was built with.
std::vector<std::string> forms();
/// Whether the form can launch many iterations by one call.
bool has_many_at_once(const std::string& form);
/// `at_once`: iterations that one call launches, an even number; 1 where the form has no others.
std::unique_ptr<Solver> make_solver(const std::string& form, Ranks& ranks, const Domain& domain,
                                    int at_once);

}  // namespace stencil
