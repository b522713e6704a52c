#include "diagnose/cuda/peer_kernels.h"

namespace ropewalk::diagnose {
namespace {

constexpr unsigned kThreads = 512;
constexpr unsigned kBlocks = 264;  // two for each processor of the largest GPUs
constexpr unsigned long long kLongestHold = 200'000'000;  // nanoseconds

__device__ unsigned long long now() {
  unsigned long long time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
}

__global__ void hold(const volatile std::uint32_t* flag) {
  const unsigned long long begin = now();
  while (*flag == 0 && now() - begin < kLongestHold) {
  }
}

__global__ void __launch_bounds__(kThreads) copy(uint4* to, const uint4* from, std::size_t packs) {
  const std::size_t step = std::size_t{gridDim.x} * blockDim.x;
  std::size_t i = std::size_t{blockIdx.x} * blockDim.x + threadIdx.x;
  // Four loads in flight at once.
  for (; i + 3 * step < packs; i += 4 * step) {
    const uint4 a = from[i];
    const uint4 b = from[i + step];
    const uint4 c = from[i + 2 * step];
    const uint4 d = from[i + 3 * step];
    to[i] = a;
    to[i + step] = b;
    to[i + 2 * step] = c;
    to[i + 3 * step] = d;
  }
  for (; i < packs; i += step) to[i] = from[i];
}

__global__ void chase(const volatile std::uint32_t* chain, int hops, std::uint32_t* end) {
  std::uint32_t index = 0;
  for (int hop = 0; hop < hops; ++hop) index = chain[index];
  *end = index;
}

}  // namespace

cudaError_t launch_hold(const std::uint32_t* flag, cudaStream_t stream) {
  hold<<<1, 1, 0, stream>>>(flag);
  return cudaGetLastError();
}

cudaError_t launch_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream) {
  copy<<<kBlocks, kThreads, 0, stream>>>(static_cast<uint4*>(to), static_cast<const uint4*>(from),
                                         bytes / sizeof(uint4));
  return cudaGetLastError();
}

cudaError_t launch_chase(const std::uint32_t* chain, int hops, std::uint32_t* end,
                         cudaStream_t stream) {
  chase<<<1, 1, 0, stream>>>(chain, hops, end);
  return cudaGetLastError();
}

}  // namespace ropewalk::diagnose
