// Which GPUs of a communicator have access to each other's memory, pair by pair. The others of a
// host are linked through the host's memory. The same on all ranks.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace ropewalk::link {

/// Two ranks, the lower one first.
using RankPair = std::pair<int, int>;

/// "0-3,1-2": pairs of ranks, in any order. For settings.
/// @throws Error kInvalidArgument naming `setting` and what is no pair
std::vector<RankPair> parse_rank_pairs(std::string_view setting, std::string_view text);

class PeerAccess {
 public:
  /// A rank's view of another one, as it is exchanged.
  struct View {
    std::uint8_t has_access = 0;   ///< its GPU reads and writes the other's memory
    std::uint8_t whole_lines = 0;  ///< lines of 128 bytes arrive whole
  };

  /// @param views  [rank][peer], of all ranks; what ranks of different hosts say does not count
  /// @param host_of_rank empty: one host
  PeerAccess(std::span<const View> views, std::vector<int> host_of_rank);

  /// Either GPU has access to the other's memory; always between a rank and itself, never between
  /// hosts.
  [[nodiscard]] bool between(int a, int b) const noexcept {
    return between_[static_cast<std::size_t>(a) * num_ranks_ + static_cast<std::size_t>(b)];
  }
  /// Pairs of one host without access, in order.
  [[nodiscard]] const std::vector<RankPair>& missing() const noexcept { return missing_; }
  /// Two ranks of a host have access.
  [[nodiscard]] bool any() const noexcept { return any_; }
  /// Lines of 128 bytes arrive whole between all that have access, and some have.
  [[nodiscard]] bool whole_lines() const noexcept { return any_ && whole_lines_; }

 private:
  std::size_t num_ranks_;
  std::vector<bool> between_;
  std::vector<RankPair> missing_;
  bool any_ = false;
  bool whole_lines_ = true;
};

}  // namespace ropewalk::link
