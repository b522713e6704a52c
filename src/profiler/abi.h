// NCCL's profiler plugin interface, versions 1 to 6 (NCCL 2.23 to 2.30), as far as it is used here.
//
// The interface is binary: NCCL finds objects called ncclProfiler_vN and calls the functions that
// they point to. Descriptors of events differ between versions in their layout alone, so they are
// read by offsets (descriptor.h). All of it is for 64-bit Linux.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ropewalk::profiler::abi {

inline constexpr int kOldestVersion = 1;
inline constexpr int kNewestVersion = 6;

enum Result : int { kSuccess = 0 };

/// Kinds of events: bits of the activation mask, and a descriptor's type.
enum EventKind : std::uint64_t {
  kCollective = 1U << 1U,
  kPointToPoint = 1U << 2U,
  kProxyOperation = 1U << 3U,
  kKernelChannel = 1U << 6U,
};

/// Of kKernelChannel, from version 4: the GPU's clock when the channel ended comes with it.
inline constexpr int kKernelChannelStop = 22;

/// NCCL's log; not used.
using Logger = void (*)(int level, unsigned long subsystems, const char* file, int line,
                        const char* format, ...);

using StartEvent = int (*)(void* context, void** event, const void* descriptor);
using StopEvent = int (*)(void* event);
using RecordState = int (*)(void* event, int state, const void* arguments);
using Finalize = int (*)(void* context);

/// Versions 1 to 3, 4, and 5 to 6 differ in init alone.
template <typename Init>
struct Table {
  const char* name;
  Init init;
  StartEvent start_event;
  StopEvent stop_event;
  RecordState record_state;
  Finalize finalize;
};
using InitV1 = int (*)(void** context, int* mask);
using InitV4 = int (*)(void** context, int* mask, const char* name, std::uint64_t id, int num_nodes,
                       int num_ranks, int rank, Logger logger);
using InitV5 = int (*)(void** context, std::uint64_t id, int* mask, const char* name, int num_nodes,
                       int num_ranks, int rank, Logger logger);

}  // namespace ropewalk::profiler::abi
