// The kernels of diagnose/peer_matrix.h. All are enqueued on a stream of the current device.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace ropewalk::diagnose {

/// Holds the stream until *flag (pinned memory) is not 0, at most some 0.2 s: copies that the
/// driver makes itself may wait for the stream before the host comes to set the flag.
cudaError_t launch_hold(const std::uint32_t* flag, cudaStream_t stream);

/// Copies by loads and stores of 16 bytes. Buffers are aligned to that, and `bytes` a multiple.
cudaError_t launch_copy(void* to, const void* from, std::size_t bytes, cudaStream_t stream);

/// Pointer chase: `hops` dependent loads, i = chain[i], from i = 0. Writes the last index to *end,
/// so that the compiler keeps every load.
cudaError_t launch_chase(const std::uint32_t* chain, int hops, std::uint32_t* end,
                         cudaStream_t stream);

}  // namespace ropewalk::diagnose
