#include "executor/block/handshake.h"
#include "executor/cuda/cuda_block.h"
#include "executor/cuda/handshake_kernel.h"

namespace ropewalk::executor {
namespace {

// Few registers, since it waits beside other kernels: matrix products on Hopper have 384 threads
// with 168 registers, which leaves 1024 registers of a multiprocessor.
#if __CUDACC_VER_MAJOR__ > 12 || (__CUDACC_VER_MAJOR__ == 12 && __CUDACC_VER_MINOR__ >= 4)
#define RW_FEW_REGISTERS __maxnreg__(32)
#else
#define RW_FEW_REGISTERS __launch_bounds__(kHandshakeThreads)
#endif

__global__ void RW_FEW_REGISTERS shake_hands(const __grid_constant__ HandshakeArgs args) {
  CudaBlock block(args.links, &args.tag);
  run_handshake(block, args);
}

}  // namespace

const void* cuda_handshake_kernel() { return reinterpret_cast<const void*>(&shake_hands); }

}  // namespace ropewalk::executor
