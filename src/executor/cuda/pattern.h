// Kernels that test a path between two GPUs: one stores a pattern over it, the other loads it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"

namespace ropewalk::executor {

/// Word `i` of the pattern of `seed`: two seeds, or two words, have nothing in common (the mixer of
/// SplitMix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
RW_HOST_DEVICE inline std::uint64_t pattern_word(std::uint64_t seed, std::uint64_t i) {
  std::uint64_t z = seed * 0x2545f4914f6cdd1dULL + (i + 1) * 0x9e3779b97f4a7c15ULL;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31U);
}

/// Enqueues a kernel that stores the pattern; visible to all GPUs and the host when it has ended.
cudaError_t store_pattern(std::uint64_t* to, std::size_t words, std::uint64_t seed,
                          cudaStream_t stream);

/// Enqueues a kernel that loads the pattern and adds the number of wrong words to `wrong`, which
/// this GPU must be able to access.
cudaError_t count_wrong_words(const std::uint64_t* from, std::size_t words, std::uint64_t seed,
                              unsigned* wrong, cudaStream_t stream);

}  // namespace ropewalk::executor
