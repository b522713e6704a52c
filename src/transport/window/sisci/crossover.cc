#include "transport/window/sisci/crossover.h"

#include <algorithm>

namespace ropewalk::transport::window::sisci {

std::size_t crossover(std::span<const TimedCopies> timed) {
  if (timed.empty()) return kUsualCrossover;
  std::size_t first = timed.size();
  while (first > 0 && timed[first - 1].transfer_us <= timed[first - 1].stores_us) --first;
  if (first < timed.size()) return timed[first].bytes;
  const TimedCopies& last = timed.back();
  if (timed.size() < 2) return std::min(2 * last.bytes, kMostStored);
  // By how much a transfer is slower at the last size, and by how much it gains with each byte.
  const TimedCopies& before = timed[timed.size() - 2];
  const double behind = last.transfer_us - last.stores_us;
  const double gained = (before.transfer_us - before.stores_us - behind) /
                        static_cast<double>(last.bytes - before.bytes);
  const auto most = static_cast<double>(kMostStored);
  if (gained * (most - static_cast<double>(last.bytes)) <= behind) return kMostStored;
  return last.bytes + static_cast<std::size_t>(behind / gained);
}

}  // namespace ropewalk::transport::window::sisci
