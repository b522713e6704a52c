// ncclPutSignal, ncclSignal and ncclWaitSignal, over the windows of src/message.
//
// A signal of NCCL belongs to the communicator: it is counted by source, context and index,
// whatever window its data went to. So a communicator has one window of counters without data, made
// with its first ncclWindow_t, and each ncclWindow_t is a window of data without counters.
//
// Order: what one rank puts and signals to one peer takes effect in the order of the calls on one
// stream; NCCL promises as much for each context. Where a link carries the data and the counters
// are reached by stores (memory of the driver's virtual memory functions, between processes, that
// is not mapped side by side: comm/flat_memory.h) the stream waits before the signal until the data
// is there; that cannot be captured in a graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "message/operation.h"
#include "message/window.h"

namespace ropewalk::nccl {

/// How many counters each pair of ranks has: ncclConfig_t's numRmaCtx and numRmaSig.
struct SignalCounts {
  int contexts = 1;
  int indices = 1;
  static constexpr int kMost = message::kMostSlots;
};

/// Of one communicator, which outlives it. Threads: one at a time.
class OneSided {
 public:
  /// @param device of the counters, and of all windows, as CUDA numbers them
  OneSided(comm::Communicator& comm, int device, SignalCounts counts)
      : comm_(comm), device_(device), counts_(counts) {}
  ~OneSided() = default;
  OneSided(const OneSided&) = delete;
  OneSided& operator=(const OneSided&) = delete;

  /// Collective: makes the counters, if there are none yet.
  /// @throws message::Refused on all ranks, for good: refusal() says why from now on
  void open();
  /// Why there are no counters; empty where there are, or open() was not called.
  [[nodiscard]] const std::string& refusal() const noexcept { return refusal_; }

  /// Collective: `buffer` is to be put to.
  /// @param mapped by rank: where this rank's GPU reaches the buffers, if it reaches all at
  /// addresses of its own; else empty
  /// @throws message::Refused on all ranks, as open()
  message::Window& add(void* buffer, std::size_t bytes, std::vector<void*> mapped = {});
  /// Local. @throws message::Refused kInvalidUsage while a stream has operations of this rank on it
  void remove(message::Window& window) { comm_.release_window(window); }

  // Each appends to `specs` what a call does. They do not look at what peers have.
  // @throws Error kInvalidArgument for a context or an index that is none; kInvalidUsage without
  // counters

  void put(std::vector<message::OperationSpec>& specs, message::Window& window, int peer,
           std::size_t offset, const void* source, std::size_t bytes, int index, int context);
  void signal(std::vector<message::OperationSpec>& specs, int peer, int index, int context);
  void wait(std::vector<message::OperationSpec>& specs, int peer, int index, int context,
            std::uint64_t count);

  [[nodiscard]] comm::Communicator& comm() const noexcept { return comm_; }

 private:
  message::OperationSpec of_counter(message::OperationKind kind, int peer, int index, int context,
                                    std::uint64_t count) const;

  comm::Communicator& comm_;
  const int device_;
  const SignalCounts counts_;
  message::Window* counters_ = nullptr;
  std::string refusal_;
};

/// What a thread's group has collected: at its end the puts and signals of all communicators are
/// enqueued first, so that no wait of the group holds one back, then the waits.
class OneSidedCalls {
 public:
  /// Checks and enqueues at once.
  /// @throws Error as Communicator::enqueue; kInvalidArgument, kInvalidUsage with nothing done
  static void run(OneSided& whose, const std::vector<message::OperationSpec>& specs,
                  comm::DeviceStream stream);
  /// Checks, and enqueues later. @throws Error kInvalidArgument, kInvalidUsage
  void add(OneSided& whose, const std::vector<message::OperationSpec>& specs,
           comm::DeviceStream stream);
  void enqueue_puts() { enqueue(puts_); }
  void enqueue_waits() { enqueue(waits_); }
  void clear() noexcept;

 private:
  // Of one communicator and stream.
  struct Entry {
    comm::Communicator* comm = nullptr;
    comm::DeviceStream stream = nullptr;
    std::vector<message::OperationSpec> specs;
  };
  static void enqueue(std::vector<Entry>& entries);
  std::vector<Entry> puts_;
  std::vector<Entry> waits_;
};

}  // namespace ropewalk::nccl
