// Marks functions that run on GPUs too: one source for host threads and CUDA blocks.
#pragma once

#ifdef __CUDACC__
#define RW_HOST_DEVICE __host__ __device__
/// Before a loop of few turns over arrays that must live in registers.
#define RW_UNROLL _Pragma("unroll")
/// Before a loop that must stay short: a GPU fetches code that it has not run yet at the cost of a
/// memory access every few instructions.
#define RW_ROLLED _Pragma("unroll 1")
/// Before a rarely called function, so that it does not lie between code that runs often.
#define RW_NOINLINE __noinline__
#else
#define RW_HOST_DEVICE
#define RW_UNROLL
#define RW_ROLLED
#define RW_NOINLINE
#endif
