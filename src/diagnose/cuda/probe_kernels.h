// A kernel that exchanges flags and data with its like, or with the host, while both run.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ropewalk::diagnose::probe {

constexpr std::size_t kExchangeWords = 4096;  ///< of data in each round
constexpr std::uint32_t kExchangeRounds = 500;

/// One end's inbox, which the other end writes: data of odd and of even rounds, and the number of
/// the last round that is complete.
struct Inbox {
  std::uint32_t data[2][kExchangeWords];
  std::uint32_t flag;
};

/// What the kernel leaves. Cleared by the caller.
struct ExchangeResult {
  std::uint32_t rounds;       ///< completed
  std::uint32_t wrong;        ///< words that were not what the other end wrote
  std::uint32_t timed_out;    ///< 1: the other end's flag did not come
  std::uint64_t nanoseconds;  ///< of all rounds but the first, in which the ends find each other
};

/// Word `i` that end `id` sends in a round.
__host__ __device__ constexpr std::uint32_t exchange_word(std::uint32_t id, std::uint32_t round,
                                                          std::uint32_t i) {
  return (id + 1) * 0x9e3779b9U + round * 0x85ebca6bU + i * 0xc2b2ae35U;
}

/// Runs end `id`: in each round it writes the peer's inbox, raises the peer's flag, and waits for
/// its own, at most `limit_ns`. Both inboxes start cleared, and both ends must run at the same
/// time.
cudaError_t launch_exchange(Inbox* own, Inbox* peer, std::uint32_t id, std::uint32_t peer_id,
                            std::uint32_t rounds, std::uint64_t limit_ns, ExchangeResult* result,
                            cudaStream_t stream);

}  // namespace ropewalk::diagnose::probe
