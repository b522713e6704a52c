// The functions of NVIDIA's driver library that device memory needs, found at run time.
//
// Nothing is linked and no toolkit is needed to build: the types and signatures below are those of
// CUDA 12's documented driver interface, under the versioned names that fix their shapes. The
// library's name is the setting CUDA_LIBRARY.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ropewalk::transport::window {

using CuResult = int;
using CuDevice = int;
using CuContext = struct CuContextObject*;
using CuStream = struct CuStreamObject*;
using CuEvent = struct CuEventObject*;
using CuPointer = std::uint64_t;     ///< an address in device memory
using CuAllocation = std::uint64_t;  ///< a handle of virtual-memory management

struct CuUuid {
  std::array<unsigned char, 16> bytes{};
  bool operator==(const CuUuid&) const = default;
};
static_assert(sizeof(CuUuid) == 16);

struct CuIpcHandle {
  std::array<unsigned char, 64> bytes{};
};
static_assert(sizeof(CuIpcHandle) == 64);

struct CuLocation {
  int type = 0;
  int id = 0;
};
struct CuAllocationProperties {
  int type = 0;
  int handle_types = 0;
  CuLocation location;
  void* windows_only = nullptr;
  unsigned char compression = 0;
  unsigned char rdma_capable = 0;
  unsigned short usage = 0;
  std::array<unsigned char, 4> reserved{};
};
static_assert(sizeof(CuAllocationProperties) == 32);
static_assert(offsetof(CuAllocationProperties, location) == 8);
static_assert(offsetof(CuAllocationProperties, rdma_capable) == 25);
struct CuAccess {
  CuLocation location;
  int flags = 0;
};
static_assert(sizeof(CuAccess) == 12);

/// One operation of a stream on a word of memory.
struct CuStreamOperation {
  int operation = 0;
  int unused = 0;
  CuPointer address = 0;
  std::uint64_t value = 0;
  unsigned flags = 0;
  unsigned unused_too = 0;
  CuPointer alias = 0;
  std::uint64_t reserved = 0;
};
static_assert(sizeof(CuStreamOperation) == 48);
static_assert(offsetof(CuStreamOperation, value) == 16);

inline constexpr CuResult kCuSuccess = 0;
inline constexpr CuResult kCuInvalidValue = 1;
inline constexpr CuResult kCuOutOfMemory = 2;
inline constexpr CuResult kCuInvalidContext = 201;
inline constexpr CuResult kCuNotReady = 600;
inline constexpr CuResult kCuPeerAccessAlreadyEnabled = 704;
inline constexpr CuResult kCuNotSupported = 801;

inline constexpr int kCuAttributeCapabilityMajor = 75;
inline constexpr int kCuAttributeCapabilityMinor = 76;
inline constexpr int kCuAttributeHostPageTables = 100;  ///< the GPU uses the host's page tables
/// How other PCIe devices' writes into the GPU's memory are ordered: 0 not at all, 100 for itself,
/// 200 for all devices.
inline constexpr int kCuAttributeWritesOrdering = 118;
inline constexpr int kCuAttributeWrite64 = 122;  ///< of a device: 64-bit stream memory operations
inline constexpr int kCuAttributeVirtualRdma = 110;  ///< virtual memory for other PCIe devices
inline constexpr int kCuAttributeDmaBuf = 124;       ///< memory can be handed over by dma-buf
inline constexpr int kCuPointerContext = 1;          ///< attributes of a pointer
inline constexpr int kCuPointerMemoryType = 2;
inline constexpr int kCuPointerSyncMemops = 6;
inline constexpr int kCuPointerBufferId = 7;
inline constexpr int kCuPointerOrdinal = 9;
inline constexpr int kCuPointerIpcCapable = 10;
inline constexpr unsigned kCuMemoryIsDevice = 2;
inline constexpr int kCuLocationDevice = 1;
inline constexpr int kCuAllocationPinned = 1;
inline constexpr int kCuHandleFileDescriptor = 1;
inline constexpr int kCuAccessReadWrite = 3;
inline constexpr int kCuGranularityMinimum = 0;
inline constexpr unsigned kCuIpcLazyPeerAccess = 1;
inline constexpr unsigned kCuHostPortable = 1;
inline constexpr unsigned kCuHostDeviceMap = 2;
inline constexpr unsigned kCuStreamNonBlocking = 1;
inline constexpr unsigned kCuEventNoTiming = 2;
inline constexpr int kCuCaptureRelaxed = 2;
inline constexpr int kCuLazyLoading = 2;
inline constexpr int kCuRangeDmaBuf = 1;                   ///< kind of handle of an address range
inline constexpr unsigned long long kCuRangeOverPcie = 1;  ///< flag of CUDA 12.8 and later
inline constexpr int kCuStreamWait64 = 4;  ///< until the word is at least the value, as int64
inline constexpr int kCuStreamWrite64 = 5;
inline constexpr unsigned kCuStreamWaitEqual = 1;  ///< flag of a wait: until it is the value
/// Operations that one call of stream_batch takes.
inline constexpr std::size_t kCuMostStreamOperations = 255;

/// The library, open. It stays open, since it has threads and exit handlers of its own; a copy is
/// of the same one, for what outlives the original. Threads: any; the functions are thread-safe as
/// CUDA documents them.
class CudaApi {
 public:
  /// Opens `library` and initializes it.
  /// @throws Error kCuda in words: not there, functions missing, no driver, no GPU
  explicit CudaApi(const std::string& library);

  /// @throws Error kCuda: "`tried`: CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  void check(CuResult result, const char* tried) const;
  /// "CUDA_ERROR_OUT_OF_MEMORY (out of memory)"
  [[nodiscard]] std::string words(CuResult result) const;
  /// For destructors: logs what failed, unless the process is ending anyway.
  void warn(CuResult result, const char* tried) const noexcept;

  CuResult (*init)(unsigned) = nullptr;
  CuResult (*error_name)(CuResult, const char**) = nullptr;
  CuResult (*error_string)(CuResult, const char**) = nullptr;
  CuResult (*device_count)(int*) = nullptr;
  CuResult (*device_get)(CuDevice*, int) = nullptr;
  CuResult (*device_name)(char*, int, CuDevice) = nullptr;
  CuResult (*device_uuid)(CuUuid*, CuDevice) = nullptr;
  CuResult (*device_attribute)(int*, int, CuDevice) = nullptr;
  CuResult (*primary_retain)(CuContext*, CuDevice) = nullptr;
  CuResult (*primary_release)(CuDevice) = nullptr;
  CuResult (*context_current)(CuContext*) = nullptr;
  CuResult (*context_push)(CuContext) = nullptr;
  CuResult (*context_pop)(CuContext*) = nullptr;
  CuResult (*enable_peer)(CuContext, unsigned) = nullptr;
  CuResult (*exchange_capture_mode)(int*) = nullptr;
  CuResult (*pointer_attribute)(void*, int, CuPointer) = nullptr;
  CuResult (*address_range)(CuPointer*, std::size_t*, CuPointer) = nullptr;
  CuResult (*allocate)(CuPointer*, std::size_t) = nullptr;
  CuResult (*free)(CuPointer) = nullptr;
  CuResult (*host_allocate)(void**, std::size_t, unsigned) = nullptr;
  CuResult (*host_free)(void*) = nullptr;
  CuResult (*host_register)(void*, std::size_t, unsigned) = nullptr;
  CuResult (*host_unregister)(void*) = nullptr;
  CuResult (*host_pointer)(CuPointer*, void*, unsigned) = nullptr;
  CuResult (*copy_to_device)(CuPointer, const void*, std::size_t, CuStream) = nullptr;
  CuResult (*copy_to_host)(void*, CuPointer, std::size_t, CuStream) = nullptr;
  CuResult (*copy_on_device)(CuPointer, CuPointer, std::size_t, CuStream) = nullptr;
  CuResult (*copy_peer)(CuPointer, CuContext, CuPointer, CuContext, std::size_t,
                        CuStream) = nullptr;
  CuResult (*stream_priorities)(int* least, int* greatest) = nullptr;
  CuResult (*stream_create)(CuStream*, unsigned, int priority) = nullptr;
  CuResult (*stream_destroy)(CuStream) = nullptr;
  CuResult (*stream_query)(CuStream) = nullptr;
  CuResult (*event_create)(CuEvent*, unsigned) = nullptr;
  CuResult (*event_destroy)(CuEvent) = nullptr;
  CuResult (*event_record)(CuEvent, CuStream) = nullptr;
  CuResult (*event_query)(CuEvent) = nullptr;
  CuResult (*ipc_export)(CuIpcHandle*, CuPointer) = nullptr;
  CuResult (*ipc_open)(CuPointer*, CuIpcHandle, unsigned) = nullptr;
  CuResult (*ipc_close)(CuPointer) = nullptr;
  // Not in every library; null where they are missing.
  CuResult (*stream_write64)(CuStream, CuPointer, std::uint64_t, unsigned) = nullptr;
  CuResult (*stream_batch)(CuStream, unsigned, CuStreamOperation*, unsigned) = nullptr;
  CuResult (*stream_capturing)(CuStream, int*) = nullptr;
  CuResult (*stream_context)(CuStream, CuContext*) = nullptr;
  CuResult (*copy)(CuPointer, CuPointer, std::size_t, CuStream) = nullptr;  ///< any kinds of memory
  /// A CUlaunchConfig, a kernel, addresses of its arguments, and null.
  CuResult (*launch)(const void*, void*, void**, void**) = nullptr;
  CuResult (*loading_mode)(int*) = nullptr;
  CuResult (*primary_state)(CuDevice, unsigned* flags, int* active) = nullptr;
  CuResult (*range_handle)(void*, CuPointer, std::size_t, int, unsigned long long) = nullptr;
  CuResult (*set_pointer_attribute)(const void*, int, CuPointer) = nullptr;
  CuResult (*retain_allocation)(CuAllocation*, void*) = nullptr;
  CuResult (*release_allocation)(CuAllocation) = nullptr;
  CuResult (*allocation_properties)(CuAllocationProperties*, CuAllocation) = nullptr;
  CuResult (*export_allocation)(void*, CuAllocation, int, unsigned long long) = nullptr;
  CuResult (*import_allocation)(CuAllocation*, void*, int) = nullptr;
  CuResult (*reserve_addresses)(CuPointer*, std::size_t, std::size_t, CuPointer,
                                unsigned long long) = nullptr;
  CuResult (*free_addresses)(CuPointer, std::size_t) = nullptr;
  CuResult (*map)(CuPointer, std::size_t, std::size_t, CuAllocation, unsigned long long) = nullptr;
  CuResult (*unmap)(CuPointer, std::size_t) = nullptr;
  CuResult (*set_access)(CuPointer, std::size_t, const CuAccess*, std::size_t) = nullptr;
  CuResult (*create_allocation)(CuAllocation*, std::size_t, const CuAllocationProperties*,
                                unsigned long long) = nullptr;
  CuResult (*granularity)(std::size_t*, const CuAllocationProperties*, int) = nullptr;

  /// Whether virtual-memory management is there as a whole.
  [[nodiscard]] bool has_virtual_memory() const noexcept { return virtual_memory_; }
  /// Whether a kernel's code comes to the GPU at its first launch, and not with its module.
  [[nodiscard]] bool loads_lazily() const noexcept;

 private:
  bool virtual_memory_ = false;
};

/// Makes `context` current in this thread while it lives, and lets the thread call what a stream
/// capture under way in another thread would forbid: nothing here belongs to the program's graphs.
class CurrentContext {
 public:
  CurrentContext(const CudaApi& cuda, CuContext context);
  ~CurrentContext();
  CurrentContext(const CurrentContext&) = delete;
  CurrentContext& operator=(const CurrentContext&) = delete;

 private:
  const CudaApi& cuda_;
  bool pushed_ = false;
  int capture_mode_ = kCuCaptureRelaxed;
};

}  // namespace ropewalk::transport::window
