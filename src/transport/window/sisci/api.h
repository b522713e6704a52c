// libsisci, the library of PCIe bridges, found at run time. No header of its vendor is needed.
//
// Functions are looked up under the prefixes that libraries export, all of one kind; constants are
// objects of the library, since their numbers are in no header. The second version of the API is
// required, whose sizes are size_t.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace ropewalk::transport::window::sisci {

// Handles point at what only the library knows.
using Descriptor = struct sci_desc*;
using LocalSegment = struct sci_local_segment*;
using RemoteSegment = struct sci_remote_segment*;
using Map = struct sci_map*;
using Sequence = struct sci_sequence*;
using DmaQueue = struct sci_dma_queue*;
using LocalDataInterrupt = struct sci_local_data_interrupt*;
using RemoteDataInterrupt = struct sci_remote_data_interrupt*;

/// The results of a call; all others are failures without a special meaning here.
enum class Status : std::uint32_t {
  kOk = 0,
  kBusy = 0x40000900,
  kNoSpace = 0x40000904,
  kApiNoSpace = 0x40000905,
  kHardwareNoSpace = 0x40000906,
  kNoSuchAdapter = 0x40000909,
  kIllegalAdapter = 0x40000908,
  kTimeout = 0x4000090A,
  kNoSuchSegment = 0x4000090C,  // or interrupt
  kConnectionRefused = 0x4000090E,
  kSegmentIdUsed = 0x40000918,
  kNotSupported = 0x40000922,
  kNoSuchNode = 0x40000A00,
  kNodeNotResponding = 0x40000A02,
  kNoRemoteLinkAccess = 0x40000A04,
  kNoLinkAccess = 0x40000A05,
  kUnset = 0xFFFFFFFF,
};

enum class QueueState : std::uint32_t { kIdle, kGather, kPosted, kDone, kAborted, kError };
enum class SequenceStatus : std::uint32_t { kOk, kRetriable, kNotRetriable, kPending };
enum class Reason : std::uint32_t {
  kConnect = 1,
  kDisconnect,
  kNotOperational,
  kOperational,
  kLost
};
enum class CallbackAction : std::uint32_t { kCancel = 1, kContinue };

using LocalCallback = CallbackAction (*)(void* arg, LocalSegment, Reason, unsigned node,
                                         unsigned adapter, Status);
using RemoteCallback = CallbackAction (*)(void* arg, RemoteSegment, Reason, Status);
using DmaCallback = CallbackAction (*)(void* arg, DmaQueue, Status);
using DataInterruptCallback = CallbackAction (*)(void* arg, LocalDataInterrupt, void* data,
                                                 unsigned length, Status);

struct AdapterQuery {
  unsigned adapter = 0;
  unsigned port = 0;
  unsigned subcommand = 0;
  void* data = nullptr;
};

struct DmaQuery {
  unsigned adapter = 0;
  unsigned subcommand = 0;
  void* data = nullptr;
};
struct DmaCapabilities {
  unsigned channels = 0;
  unsigned max_transfer_bytes = 0;
  unsigned max_vector = 0;
  unsigned memory_to_io = 0;
  unsigned io_to_memory = 0;
  unsigned io_to_io = 0;
  unsigned min_alignment = 0;
  unsigned suggested_alignment = 0;
};

/// The functions that are used, by the library's names without SCI.
struct Functions {
  void (*Initialize)(unsigned flags, Status*);
  void (*Open)(Descriptor*, unsigned flags, Status*);
  void (*Close)(Descriptor, unsigned flags, Status*);
  void (*GetLocalNodeId)(unsigned adapter, unsigned* node, unsigned flags, Status*);
  void (*Query)(unsigned command, void* data, unsigned flags, Status*);
  const char* (*GetErrorString)(Status);
  void (*CreateSegment)(Descriptor, LocalSegment*, unsigned id, std::size_t bytes, LocalCallback,
                        void* arg, unsigned flags, Status*);
  void (*PrepareSegment)(LocalSegment, unsigned adapter, unsigned flags, Status*);
  void (*SetSegmentAvailable)(LocalSegment, unsigned adapter, unsigned flags, Status*);
  void (*SetSegmentUnavailable)(LocalSegment, unsigned adapter, unsigned flags, Status*);
  void (*RemoveSegment)(LocalSegment, unsigned flags, Status*);
  void* (*MapLocalSegment)(LocalSegment, Map*, std::size_t offset, std::size_t bytes, void* address,
                           unsigned flags, Status*);
  void (*RegisterSegmentMemory)(void* address, std::size_t bytes, LocalSegment, unsigned flags,
                                Status*);
  /// Null in libraries that can attach only host memory.
  void (*AttachPhysicalMemory)(std::uint64_t bus_address, void* address, unsigned bus,
                               std::size_t bytes, LocalSegment, unsigned flags, Status*);
  void (*ConnectSegment)(Descriptor, RemoteSegment*, unsigned node, unsigned id, unsigned adapter,
                         RemoteCallback, void* arg, unsigned timeout, unsigned flags, Status*);
  void (*DisconnectSegment)(RemoteSegment, unsigned flags, Status*);
  volatile void* (*MapRemoteSegment)(RemoteSegment, Map*, std::size_t offset, std::size_t bytes,
                                     void* address, unsigned flags, Status*);
  void (*UnmapSegment)(Map, unsigned flags, Status*);
  std::size_t (*GetRemoteSegmentSize)(RemoteSegment);
  void (*CreateMapSequence)(Map, Sequence*, unsigned flags, Status*);
  void (*RemoveSequence)(Sequence, unsigned flags, Status*);
  SequenceStatus (*StartSequence)(Sequence, unsigned flags, Status*);
  SequenceStatus (*CheckSequence)(Sequence, unsigned flags, Status*);
  void (*Flush)(Sequence, unsigned flags);
  void (*MemCpy)(Sequence, void* memory, Map, std::size_t offset, std::size_t bytes, unsigned flags,
                 Status*);
  void (*CreateDMAQueue)(Descriptor, DmaQueue*, unsigned adapter, unsigned entries, unsigned flags,
                         Status*);
  void (*RemoveDMAQueue)(DmaQueue, unsigned flags, Status*);
  void (*StartDmaTransfer)(DmaQueue, LocalSegment, RemoteSegment, std::size_t local_offset,
                           std::size_t bytes, std::size_t remote_offset, DmaCallback, void* arg,
                           unsigned flags, Status*);
  void (*StartDmaTransferMem)(DmaQueue, void* source, RemoteSegment, std::size_t bytes,
                              std::size_t remote_offset, DmaCallback, void* arg, unsigned flags,
                              Status*);
  QueueState (*DMAQueueState)(DmaQueue);
  void (*AbortDMAQueue)(DmaQueue, unsigned flags, Status*);
  void (*CreateDataInterrupt)(Descriptor, LocalDataInterrupt*, unsigned adapter, unsigned* number,
                              DataInterruptCallback, void* arg, unsigned flags, Status*);
  void (*RemoveDataInterrupt)(LocalDataInterrupt, unsigned flags, Status*);
  void (*WaitForDataInterrupt)(LocalDataInterrupt, void* data, unsigned* length, unsigned timeout,
                               unsigned flags, Status*);
  void (*ConnectDataInterrupt)(Descriptor, RemoteDataInterrupt*, unsigned node, unsigned adapter,
                               unsigned number, unsigned timeout, unsigned flags, Status*);
  void (*DisconnectDataInterrupt)(RemoteDataInterrupt, unsigned flags, Status*);
  void (*TriggerDataInterrupt)(RemoteDataInterrupt, void* data, unsigned length, unsigned flags,
                               Status*);
};

/// Constants of the library; where it has no such object, the values that are known.
struct Flags {
  unsigned use_callback = 0x1;
  unsigned empty = 0x2;
  unsigned lock_user_memory = 0x400;
  unsigned cuda_buffer = 0x2000;
  unsigned dma_read = 0x10;
  unsigned fixed_map_address = 0x1;
  unsigned force_disconnect = 0;  // not known: then nothing is forced
  unsigned force_remove = 0x20;
  unsigned block_read = 0;
  unsigned flush_cpu_buffers_only = 0;
  unsigned infinite_timeout = 0xFFFFFFFF;
};

/// The library of a process, initialized. Threads: any. Lives as long as anyone holds it; it is
/// never terminated, since others in the process may use it.
class Library {
 public:
  /// What the search for it came to: a library, or why there is none.
  struct Found {
    std::shared_ptr<const Library> library;
    std::string why_not;
  };
  /// Opens and initializes it once per process. Its absence, or that of its driver, is not an
  /// error.
  static Found open(const std::string& file);

  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;
  ~Library();

  const Functions* operator->() const noexcept { return &functions_; }
  [[nodiscard]] const Flags& flags() const noexcept { return flags_; }
  /// The value of a constant.
  /// @return nothing when the library has none of that name
  [[nodiscard]] std::optional<unsigned> constant(std::string_view name) const;
  /// A number that an adapter knows about itself, as in SCI_Q_ADAPTER_`what`.
  [[nodiscard]] std::optional<unsigned> ask_adapter(unsigned adapter, std::string_view what,
                                                    unsigned port = 0) const;
  /// What addresses, offsets and sizes of transfers have to be multiples of.
  [[nodiscard]] std::size_t dma_alignment(unsigned adapter) const;
  /// The library's words for a failure, with its number.
  [[nodiscard]] std::string words(Status status) const;

 private:
  explicit Library(void* handle) : handle_(handle) {}
  std::string load();
  [[nodiscard]] Status opens() const;

  void* handle_;
  Functions functions_{};
  Flags flags_;
};

/// A failure that may pass: the other side is not there yet, or a link is down.
constexpr bool may_pass(Status status) noexcept {
  return status == Status::kNoSuchSegment || status == Status::kConnectionRefused ||
         status == Status::kTimeout || status == Status::kNodeNotResponding ||
         status == Status::kNoSuchNode || status == Status::kNoLinkAccess ||
         status == Status::kNoRemoteLinkAccess || status == Status::kBusy;
}
constexpr bool out_of_space(Status status) noexcept {
  return status == Status::kNoSpace || status == Status::kApiNoSpace ||
         status == Status::kHardwareNoSpace;
}

}  // namespace ropewalk::transport::window::sisci
