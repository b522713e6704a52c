#include "bootstrap/ring.h"

namespace ropewalk::bootstrap {

void Ring::keep() {
  if (context_.phase() != RankPhase::kJoined) return;
  const int next = successor();
  if (next >= 0 && !links_.connecting_to(next)) links_.connect(next);
}

int Ring::successor() const {
  int candidate = context_.options.rank;
  for (int step = 0; step < context_.options.size; ++step) {
    candidate = context_.membership().next_alive(candidate);
    if (candidate < 0 || reachability_.of(candidate) == Reach::kReachable) return candidate;
  }
  return -1;
}

int Ring::next_alive() const { return context_.membership().next_alive(context_.options.rank); }

int Ring::previous_alive() const {
  const int size = context_.options.size;
  for (int step = 1; step < size; ++step) {
    const int candidate = (context_.options.rank + size - step) % size;
    if (context_.alive(candidate)) return candidate;
  }
  return -1;
}

}  // namespace ropewalk::bootstrap
