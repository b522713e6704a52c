#include "executor/host/warm_buffers.h"

#include <unistd.h>

#include <algorithm>

namespace ropewalk::executor {

std::size_t WarmBuffers::cache_bytes_of_each(int ranks) noexcept {
  // Where the system does not say: that of most servers' cores.
  constexpr long kOwn = long{1} << 20;
  constexpr long kShared = long{16} << 20;
  // Some systems report the size of a cache that many cores share; the part of one core has not
  // been larger so far.
  constexpr long kMostShared = long{32} << 20;
  const auto known = [](int name, long otherwise) {
    const long bytes = sysconf(name);
    return bytes > 0 ? bytes : otherwise;
  };
  const long own = known(_SC_LEVEL2_CACHE_SIZE, kOwn);
  const long shared = std::min(known(_SC_LEVEL3_CACHE_SIZE, kShared), kMostShared);
  return static_cast<std::size_t>(std::max(own, shared / std::max(ranks, 1)));
}

}  // namespace ropewalk::executor
