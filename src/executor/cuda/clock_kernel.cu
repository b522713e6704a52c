#include <cuda_runtime.h>

#include "executor/cuda/clock_kernel.h"
#include "executor/cuda/cuda_block.h"

namespace ropewalk::executor {
namespace {

constexpr std::uint64_t kPatienceNs = 10'000'000;

__global__ void answer(volatile ClockQuestions* place, unsigned questions) {
  for (std::uint64_t number = 1; number <= questions; ++number) {
    const std::uint64_t since = CudaBlock::clock_ns();
    while (place->asked < number) {
      if (CudaBlock::clock_ns() - since > kPatienceNs) return;
    }
    place->clock_ns = CudaBlock::clock_ns();
    __threadfence_system();
    place->answered = number;
  }
}

}  // namespace

cudaError_t answer_clock_questions(ClockQuestions* place, unsigned questions, cudaStream_t stream) {
  answer<<<1, 1, 0, stream>>>(place, questions);
  return cudaGetLastError();
}

}  // namespace ropewalk::executor
