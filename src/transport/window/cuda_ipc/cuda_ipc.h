// GPU memory of processes on one host: the window driver whose copy queues are GPUs' copy engines.
//
// A connection is one over shared memory (../shm), and host memory goes as it does there: NCCL
// keeps what the CPU writes in host memory and the rest in GPU memory, on one connection.
// Registered GPU memory goes
//
//   GPU to GPU   pulled: the receiver opens the sender's memory, once for each registration, and
//                its GPU's copy engine reads it, a few pieces at once on streams of their own.
//                Memory of the ordinary allocator is opened by CUDA IPC, that of virtual-memory
//                management by a descriptor over the connection's Unix socket
//   otherwise    staged: a copy engine at the sender (or its CPU) writes the bounce ring, one at
//                the receiver (or its CPU) reads it; both pin the ring. Also where memory cannot
//                be opened: no peer access, or an allocation that cannot be handed over
//
// Each method is tried with a pattern when it is first needed, from a GPU's memory of the same
// kind, and compared at the CPU. What fails is named in the log and, if it was a pull, staged
// instead.
//
// Pinned memory, streams and patterns are allocated when memory is registered. Allocating them
// later could deadlock: an allocation may wait for kernels, which may wait for the messages. For
// the same reason a separate thread (worker.h) opens what a sender offers, and closes it when the
// sender ends the registration (at the receiver's next call) or leaves.
//
// CUDA's library is opened at run time (cuda_api.h). Without it this is a driver of host memory.
// Small messages from host memory arrive in GPU memory in units of whole 8-byte words, as LL needs;
// for LL128, whose lines must arrive in order, CUDA promises nothing of its copy engines.
#pragma once

#include <memory>

#include "core/settings.h"
#include "transport/provider.h"
#include "transport/transport.h"
#include "transport/window/driver.h"

namespace ropewalk::transport::window {

std::unique_ptr<Driver> make_cuda_ipc_driver(const Config& config);

/// The engine over that driver.
std::unique_ptr<Transport> make_cuda_ipc_transport(const Config& config);

/// A copy by a GPU is started in some 5 us, in which NVLink moves 2 MiB. Measured on two H200 with
/// NCCL 2.28.9 (benchmarks/results/nccl-net-*).
inline constexpr Provider kCudaIpcProvider{
    .name = "cuda_ipc",
    .make = make_cuda_ipc_transport,
    .channel_use = ChannelUse{.flagged_bytes = 4 << 10,
                              .channel_bytes = std::size_t{1} << 20,
                              .fewest_channels = 2,
                              .most_channels = 12,
                              .long_gpu_messages = true},
};

}  // namespace ropewalk::transport::window
