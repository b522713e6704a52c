// Rails: the pairs of network devices (NICs) over which two ranks of different hosts are linked.
//
// Each channel's links take one rail, so that channels together use all NICs.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace ropewalk::link {

/// A device of the transport, as its rank sees it.
struct Nic {
  std::uint64_t fabric = 0;  ///< NICs of one fabric reach each other directly; 0: not known
  double rate = 0;           ///< bytes/s, as its driver states
  friend auto operator<=>(const Nic&, const Nic&) = default;
};

/// Rails between all ranks of different hosts, equally many for every two of them. Computed by
/// every rank alike.
///
/// Two ranks' NICs are paired one to one, the fastest pairs first: within fabrics where they have
/// any in common, else each with each, as routers may join them.
///
/// Threads: immutable.
class Rails {
 public:
  /// One rail, over each rank's first device.
  Rails() = default;
  /// `nics` by rank, in the order of the transport's devices; at most `most` rails.
  Rails(std::vector<std::vector<Nic>> nics, std::span<const int> host_of_rank, int most);

  [[nodiscard]] int count() const noexcept { return static_cast<int>(order_.size()); }
  /// The device of `rank` on a rail to `peer`. @pre 0 <= rail < count()
  [[nodiscard]] int device(int rank, int peer, int rail) const;
  /// The same rails, some left out: rail i of the result is rail order[i] of this one.
  /// @pre order is not empty, its entries differ and are below count()
  [[nodiscard]] Rails reordered(std::span<const int> order) const;

 private:
  std::vector<std::vector<Nic>> nics_;
  std::vector<int> order_ = {0};
};

/// The pairs of two ranks' NICs, the best first: (a's, b's).
std::vector<std::pair<int, int>> pair_nics(std::span<const Nic> a, std::span<const Nic> b);

}  // namespace ropewalk::link
