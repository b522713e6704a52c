// What all versions of NCCL's network plugin interface have in common: codes, limits, callbacks.
//
// The interface is binary: NCCL finds objects called ncclNetPlugin_vN in a plugin and calls the
// functions that they point to. properties.h and tables.h have what differs between versions;
// layout.cc holds sizes and offsets. All of it is for 64-bit Linux.
#pragma once

#include <cstddef>
#include <cstdint>

namespace ropewalk::netplugin::abi {

inline constexpr int kOldestVersion = 4;
inline constexpr int kNewestVersion = 12;

/// Bytes of a connection handle: NCCL up to 2.11, which knows version 4 alone, has fewer.
inline constexpr std::size_t kShortHandleBytes = 64;
inline constexpr std::size_t kHandleBytes = 128;

/// Requests that NCCL may have in flight on a connection, from 2.19; 8 before.
inline constexpr int kMaxRequests = 32;

/// What every function returns.
enum Result : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,  ///< known to NCCL from 2.13, which is where version 6 begins
};

/// Kinds of memory: bits of `ptr_support`, single values for reg_mr.
enum PointerType : int { kHostPointer = 1, kCudaPointer = 2, kDmaBufPointer = 4 };

/// `*request` on entry of irecv, version 9 and later: NCCL itself sees the data come.
inline constexpr std::uintptr_t kOptionalCompletion = 1;

/// A value that is not given: traffic class, rail, plane.
inline constexpr int kUndefined = -1;

/// NCCL refuses limits of messages above it.
inline constexpr std::size_t kLargestMessageLimit = std::size_t{1} << 40;

enum LogLevel : int { kLogVersion = 1, kLogWarn = 2, kLogInfo = 3, kLogAbort = 4, kLogTrace = 5 };
inline constexpr unsigned long kLogInit = 1;
inline constexpr unsigned long kLogNet = 0x10;
inline constexpr unsigned long kLogAll = ~0UL;

/// NCCL's log, in the manner of printf. Valid as long as NCCL is loaded.
using Logger = void (*)(int level, unsigned long subsystems, const char* file, int line,
                        const char* format, ...);

/// Version 10 and later; the plugin need not call it.
using ProfilerCallback = Result (*)(void** event, int type, void* parent, std::int64_t plugin_id,
                                    void* extra);

/// What connect and accept may fill in for plugins that GPUs drive. Version 7 and later.
struct DeviceHandle {
  int type;
  int version;
  void* handle;
  std::size_t size;
  int needs_proxy_progress;
};

/// Version 10 and later.
struct CommConfig {
  int traffic_class;
};

/// Versions 11 and 12: hints of what is to come.
struct CommAttributes {
  std::int32_t max_concurrent_peers;
  std::int32_t min_concurrent_peers;
  std::int32_t max_flows_per_peer;
  std::int32_t min_flows_per_peer;
};
struct NetAttributes {
  CommAttributes send;
  CommAttributes receive;
  std::uint32_t operations;  // bit masks
  std::uint32_t algorithms;
  std::uint32_t protocols;
};

/// The members of a virtual device.
struct VirtualDeviceV9 {
  int count;
  int devices[4];
};
struct VirtualDeviceV12 {
  int count;
  int devices[8];
};

}  // namespace ropewalk::netplugin::abi
