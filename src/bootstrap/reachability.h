// Which peers a rank does not try to connect to for now. Pure: no sockets, no clock, no threads.
//
//   kReachable -> kRetrying   it did not answer, or hung up: tried again later
//   kReachable -> kRefused    nobody listens there: lost, unless a later message refutes it in time
//   kRetrying  -> kRefused
//   kRetrying, kRefused -> kReachable
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>

namespace ropewalk::bootstrap {

enum class Reach : std::uint8_t { kReachable, kRetrying, kRefused };

/// @return whether a peer in state `from` may enter state `to`
constexpr bool may_enter(Reach from, Reach to) noexcept {
  return from != to && !(from == Reach::kRefused && to == Reach::kRetrying);
}

/// The states of all peers of a rank.
class Reachability {
 public:
  [[nodiscard]] Reach of(int peer) const {
    const auto found = states_.find(peer);
    return found == states_.end() ? Reach::kReachable : found->second;
  }
  [[nodiscard]] bool any_refused() const {
    return std::any_of(states_.begin(), states_.end(),
                       [](const auto& entry) { return entry.second == Reach::kRefused; });
  }
  /// @return whether the peer changed its state; an illegal change is none
  bool enter(int peer, Reach next) {
    if (!may_enter(of(peer), next)) return false;
    if (next == Reach::kReachable) {
      states_.erase(peer);
    } else {
      states_[peer] = next;
    }
    return true;
  }

 private:
  std::map<int, Reach> states_;  // but for kReachable
};

}  // namespace ropewalk::bootstrap
