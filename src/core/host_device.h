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
/// Before a function that works on arrays in registers. A compiler that finds it in two kernels may
/// call it, and then they lie in memory.
#define RW_INLINE __forceinline__
#else
#define RW_HOST_DEVICE
#define RW_UNROLL
#define RW_ROLLED
#define RW_NOINLINE
#define RW_INLINE
#endif
