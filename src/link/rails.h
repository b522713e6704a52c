// Rails: the pairs of network devices (NICs) over which two ranks of different hosts are linked.
//
// Each channel's links take one rail, so that channels together use all NICs.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

namespace ropewalk::link {

/// A device of the transport, as its rank sees it.
struct Nic {
  std::uint64_t fabric = 0;   ///< NICs of one fabric reach each other directly; 0: not known
  double rate = 0;            ///< bytes/s, as its driver states
  std::uint64_t address = 0;  ///< within its fabric; 0: not known
  friend auto operator<=>(const Nic&, const Nic&) = default;
};

/// Where a NIC is, seen from one rank.
struct NicPosition {
  std::int32_t node = -1;     ///< of the machine that is planned for; -1: not known
  std::int32_t distance = 0;  ///< from the rank's GPU or cores, to compare with others of the rank
};

/// Rails between all ranks of different hosts, equally many for every two of them. Every rank
/// computes the same.
///
/// Two ranks' NICs are paired one to one, the fastest pairs first: within fabrics where they have
/// any in common, else each with each, as routers may join them. NICs of one address are no pair
/// where there are others: each is of a network of its own host's, as containers have them.
///
/// Of rails with equal rates, each two ranks have those first that are nearest to both: ranks that
/// use few rails then use different ones, and those that use all of them lose nothing.
///
/// Threads: immutable.
class Rails {
 public:
  /// One rail, over each rank's first device.
  Rails() = default;
  /// `nics` by rank, in the order of the transport's devices; at most `most` rails. `positions` by
  /// rank, too; empty: all are equally near.
  Rails(std::vector<std::vector<Nic>> nics, std::span<const int> host_of_rank, int most,
        std::vector<std::vector<NicPosition>> positions = {});

  [[nodiscard]] int count() const noexcept { return static_cast<int>(order_.size()); }
  /// Devices of a rank and its peer that reach each other.
  struct Pair {
    int own = 0;
    int peers = 0;
    friend bool operator==(const Pair&, const Pair&) = default;
  };
  /// Those of `rank` and `peer` on a rail.
  /// @pre 0 <= rail < count()
  [[nodiscard]] Pair pair(int rank, int peer, int rail) const;
  [[nodiscard]] int device(int rank, int peer, int rail) const {
    return pair(rank, peer, rail).own;
  }
  /// How far the two NICs of such a pair are from their ranks, together; 0: near, or not known.
  [[nodiscard]] int distance(int rank, int peer, int rail) const;
  /// The same rails, some left out: rail i of the result is rail order[i] of this one.
  /// @param alike  numbers of rails, one after the other, that carry alike; those behind carry each
  ///               another rate
  /// @pre order is not empty, its entries differ and are below count(); the sum of `alike` is at
  ///      most their number
  [[nodiscard]] Rails reordered(std::span<const int> order, std::span<const int> alike = {}) const;

  /// The same rails with other distances of the ranks' NICs, by rank and device.
  /// @pre each rank has one for each of its NICs, or more
  [[nodiscard]] Rails placed(std::vector<std::vector<NicPosition>> positions) const;

  /// Those at these nodes of the machine that is planned for (NicPosition::node). Where they do not
  /// reach each other: the rail of `sender`'s, the one of the two ranks that sends.
  /// Nothing where that is not known, or left out.
  [[nodiscard]] std::optional<Pair> through(int rank, int peer, int own_node, int peer_node,
                                            int sender) const;

 private:
  [[nodiscard]] std::vector<Pair> pairs_of(int rank, int peer) const;
  [[nodiscard]] int distance_of(int rank, int peer, const Pair& pair) const;

  std::vector<std::vector<Nic>> nics_;
  std::vector<std::vector<NicPosition>> positions_;
  std::vector<int> order_ = {0};
  std::vector<int> alike_;
  bool all_ = true;  // no rail was left out
};

/// The pairs of two ranks' NICs that may be used, the best first: (a's, b's). All of them, or one
/// for each NIC.
std::vector<std::pair<int, int>> possible_pairs(std::span<const Nic> a, std::span<const Nic> b);
std::vector<std::pair<int, int>> pair_nics(std::span<const Nic> a, std::span<const Nic> b);

}  // namespace ropewalk::link
