#include "executor/block/handshake.h"
#include "executor/cuda/cuda_block.h"
#include "executor/cuda/handshake_kernel.h"

namespace ropewalk::executor {
namespace {

__global__ void __launch_bounds__(kHandshakeThreads)
    shake_hands(const __grid_constant__ HandshakeArgs args) {
  CudaBlock block(args.links, &args.tag);
  run_handshake(block, args);
}

}  // namespace

const void* cuda_handshake_kernel() { return reinterpret_cast<const void*>(&shake_hands); }

}  // namespace ropewalk::executor
