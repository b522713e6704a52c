#include <cuda_runtime.h>

#include "executor/cuda/clock_kernel.h"
#include "executor/cuda/cuda_block.h"

namespace ropewalk::executor {
namespace {

constexpr std::uint64_t kPatienceNs = 10'000'000;

__global__ void answer(volatile ClockQuestions* mailbox, unsigned questions) {
  for (std::uint64_t number = 1; number <= questions; ++number) {
    const std::uint64_t since = CudaBlock::clock_ns();
    while (mailbox->asked < number) {
      if (CudaBlock::clock_ns() - since > kPatienceNs) return;
    }
    mailbox->clock_ns = CudaBlock::clock_ns();
    __threadfence_system();
    mailbox->answered = number;
  }
}

}  // namespace

cudaError_t answer_clock_questions(ClockQuestions* mailbox, unsigned questions,
                                   cudaStream_t stream) {
  answer<<<1, 1, 0, stream>>>(mailbox, questions);
  return cudaGetLastError();
}

}  // namespace ropewalk::executor
