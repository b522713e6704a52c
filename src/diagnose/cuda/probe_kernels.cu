#include "diagnose/cuda/probe_kernels.h"

namespace ropewalk::diagnose::probe {
namespace {

constexpr unsigned kThreads = 256;

__device__ std::uint64_t now() {
  std::uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__device__ void store_release(std::uint32_t* flag, std::uint32_t value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(flag), "r"(value) : "memory");
}

__device__ std::uint32_t load_acquire(const std::uint32_t* flag) {
  std::uint32_t value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(flag) : "memory");
  return value;
}

__global__ void __launch_bounds__(kThreads)
    exchange(Inbox* own, Inbox* peer, std::uint32_t id, std::uint32_t peer_id, std::uint32_t rounds,
             std::uint64_t limit_ns, ExchangeResult* result) {
  __shared__ bool lost;
  __shared__ unsigned wrong;
  if (threadIdx.x == 0) {
    lost = false;
    wrong = 0;
  }
  __syncthreads();
  std::uint64_t begin = 0;
  for (std::uint32_t round = 1; round <= rounds; ++round) {
    std::uint32_t* out = peer->data[round % 2];
    for (std::uint32_t i = threadIdx.x; i < kExchangeWords; i += kThreads) {
      out[i] = exchange_word(id, round, i);
    }
    // Each thread's words before the flag that one thread raises for all of them.
    __threadfence_system();
    __syncthreads();
    if (threadIdx.x == 0) {
      store_release(&peer->flag, round);
      const std::uint64_t since = now();
      while (load_acquire(&own->flag) < round) {
        if (now() - since > limit_ns) {
          lost = true;
          break;
        }
      }
      if (round == 1) begin = now();
    }
    __syncthreads();
    if (lost) break;
    // The peer writes this half again only after it saw the flag of the next round.
    unsigned bad = 0;
    const volatile std::uint32_t* in = own->data[round % 2];
    for (std::uint32_t i = threadIdx.x; i < kExchangeWords; i += kThreads) {
      if (in[i] != exchange_word(peer_id, round, i)) ++bad;
    }
    if (bad != 0) atomicAdd(&wrong, bad);
    __syncthreads();
    if (threadIdx.x == 0) result->rounds = round;
  }
  if (threadIdx.x == 0) {
    result->wrong = wrong;
    result->timed_out = lost ? 1 : 0;
    result->nanoseconds = begin == 0 ? 0 : now() - begin;
    __threadfence_system();
  }
}

}  // namespace

cudaError_t launch_exchange(Inbox* own, Inbox* peer, std::uint32_t id, std::uint32_t peer_id,
                            std::uint32_t rounds, std::uint64_t limit_ns, ExchangeResult* result,
                            cudaStream_t stream) {
  exchange<<<1, kThreads, 0, stream>>>(own, peer, id, peer_id, rounds, limit_ns, result);
  return cudaGetLastError();
}

}  // namespace ropewalk::diagnose::probe
