// Marks functions that run on GPUs too: one source for host threads and CUDA blocks.
#pragma once

#ifdef __CUDACC__
#define RW_HOST_DEVICE __host__ __device__
/// Before a loop of few turns over arrays that must live in registers.
#define RW_UNROLL _Pragma("unroll")
#else
#define RW_HOST_DEVICE
#define RW_UNROLL
#endif
