// Physical links that are not there: token buckets in memory that the processes of one host share.
//
// A link carries one byte each `ns_per_byte`. What is sent over it enters a queue: `free_at` says
// when the last byte of all that was promised will have left. That is a token bucket of depth zero,
// in which each sender waits for its own tokens: two flows that keep the link busy get half of it
// each, since their messages stand in one queue.
//
// A message that passes several links is in all of their queues at once, as one that is cut into
// packets is (cut-through): the slowest of them says when its last byte arrives.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ropewalk::transport::emulated {

/// Nanoseconds of CLOCK_MONOTONIC, which all processes of a host share.
using Instant = std::uint64_t;

/// Lies in shared memory; all zero is a link that was never used.
struct LinkClock {
  alignas(64) std::atomic<Instant> free_at;
};
static_assert(std::atomic<Instant>::is_always_lock_free);

/// What one rank has seen arrive on a channel: what it sends there follows from that, not from what
/// other channels bring meanwhile. Lies in shared memory, all zero at first.
struct RankClock {
  alignas(64) std::atomic<Instant> arrived;
};

/// The links that a connection's messages pass, in order.
struct Path {
  struct Hop {
    LinkClock* link = nullptr;
    double ns_per_byte = 0;
  };
  std::vector<Hop> hops;
  Instant latency = 0;  ///< of all hops together
  RankClock* source = nullptr;
  RankClock* destination = nullptr;
};

/// Takes `bytes` of every link of the path. @return when the last byte arrives at its end
///
/// `ready` is when the message could have been sent: a thread that the system let run late does not
/// make the links slower than they are, since the queues begin at `ready`, not now.
inline Instant reserve(const Path& path, std::size_t bytes, Instant ready) noexcept {
  Instant last = ready;
  for (const Path::Hop& hop : path.hops) {
    const auto takes = static_cast<Instant>(static_cast<double>(bytes) * hop.ns_per_byte);
    Instant free_at = hop.link->free_at.load(std::memory_order_relaxed);
    Instant leaves = 0;
    do {
      leaves = std::max(free_at, ready) + takes;
    } while (!hop.link->free_at.compare_exchange_weak(free_at, leaves, std::memory_order_relaxed));
    last = std::max(last, leaves);
  }
  return last + path.latency;
}

}  // namespace ropewalk::transport::emulated
