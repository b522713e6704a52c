#include <cuda_runtime.h>

#include "executor/cuda/pattern.h"

namespace ropewalk::executor {
namespace {

constexpr unsigned kThreads = 128;

// Volatile: this GPU's caches must neither hold back nor serve words that a peer loads or stores.
__global__ void store_words(volatile std::uint64_t* to, std::size_t words, std::uint64_t seed) {
  for (std::size_t i = threadIdx.x; i < words; i += kThreads) to[i] = pattern_word(seed, i);
  __threadfence_system();
}

__global__ void count_words(const volatile std::uint64_t* from, std::size_t words,
                            std::uint64_t seed, unsigned* wrong) {
  unsigned own = 0;
  for (std::size_t i = threadIdx.x; i < words; i += kThreads) {
    if (from[i] != pattern_word(seed, i)) ++own;
  }
  if (own != 0) atomicAdd_system(wrong, own);
}

}  // namespace

cudaError_t store_pattern(std::uint64_t* to, std::size_t words, std::uint64_t seed,
                          cudaStream_t stream) {
  store_words<<<1, kThreads, 0, stream>>>(to, words, seed);
  return cudaGetLastError();
}

cudaError_t count_wrong_words(const std::uint64_t* from, std::size_t words, std::uint64_t seed,
                              unsigned* wrong, cudaStream_t stream) {
  count_words<<<1, kThreads, 0, stream>>>(from, words, seed, wrong);
  return cudaGetLastError();
}

}  // namespace ropewalk::executor
