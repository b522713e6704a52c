// The symbolic value of the checker: which ranks' contributions to a block have gone into it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace ropewalk::schedule {

/// A set of ranks. Copies share the set until one of them grows, so that passing a value on costs
/// nothing however many ranks there are.
class Contributions {
 public:
  Contributions() = default;
  static Contributions of(int rank);

  /// Adds all of `other`. @return a rank that was already there, if any: its contribution would
  /// count twice
  std::optional<int> merge(const Contributions& other, int num_ranks);

  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] bool contains(int rank) const noexcept;
  [[nodiscard]] bool is_only(int rank) const noexcept { return size_ == 1 && contains(rank); }
  [[nodiscard]] std::optional<int> first_missing(int num_ranks) const noexcept;
  /// Any member; nothing when empty.
  [[nodiscard]] std::optional<int> first() const noexcept;

 private:
  using Bits = std::vector<std::uint64_t>;
  Bits& own_bits(int num_ranks);

  int size_ = 0;
  int single_ = -1;             // the member, while there is one and no bits_
  std::shared_ptr<Bits> bits_;  // shared by copies; written by a sole owner only
};

}  // namespace ropewalk::schedule
