// The kernel of the handshakes around copies between GPUs.
#pragma once

namespace ropewalk::executor {

/// One block of kHandshakeThreads threads; its only parameter is a HandshakeArgs
/// (block/handshake.h).
const void* cuda_handshake_kernel();

/// One warp: it fits on a multiprocessor beside the blocks of most other kernels.
inline constexpr unsigned kHandshakeThreads = 32;

}  // namespace ropewalk::executor
