// Where a measurement works: host memory, or the memory of the rank's GPU.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "comm/communicator.h"
#include "comm/group.h"

namespace ropewalk::diagnose {

/// Memory, and calls upon it. Threads: one at a time. Lifetime: within the communicator's; a thread
/// that has several destroys the last made first.
class MeasureSite {
 public:
  virtual ~MeasureSite() = default;

  /// Memory for a buffer, `offset` bytes after the start of a page (of a host; of what CUDA aligns
  /// to on a GPU), every byte written; lives as long as this.
  /// @throws Error kSystem, kCuda
  virtual std::byte* take(std::size_t bytes, std::size_t offset) = 0;
  /// A buffer of which each `period` bytes are the same memory; lives as long as this.
  /// @pre as RepeatedMemory @throws Error kSystem; kInvalidUsage on a GPU
  virtual std::byte* take_repeated(std::size_t bytes, std::size_t period) = 0;
  /// Collective: lets the other ranks read all memory taken so far where it lies, while this lives.
  /// @throws Error kInvalidUsage on the host, which needs no such thing; as
  /// Communicator::register_buffer
  virtual void register_buffers() = 0;
  virtual void write(std::byte* to, std::span<const std::byte> from) = 0;
  virtual void read(std::span<std::byte> to, const std::byte* from) = 0;
  /// Fills `bytes` from `begin` on with copies of the first `period` of them.
  virtual void repeat(std::byte* begin, std::size_t period, std::size_t bytes) = 0;

  /// Runs or enqueues.
  virtual void run(const comm::CollectiveCall& call) = 0;
  /// Adds the call to a group, whose end runs or enqueues it.
  virtual void add(const comm::CollectiveCall& call, comm::Group& group) = 0;
  /// Whether all that was run is done. Does not wait.
  /// @throws Error as Communicator::run
  [[nodiscard]] virtual bool finished() = 0;
  /// Returns when finished().
  /// @throws Error as Communicator::run
  virtual void finish() = 0;

  /// Notes the calls from here to end_capture(), without running them. Several sites of a thread
  /// may capture at once.
  /// @throws Error kInvalidUsage where that cannot be
  virtual void begin_capture() = 0;
  virtual void end_capture() = 0;
  /// Instantiates the captured graph, when no site of this thread captures any more.
  virtual void load_captured() = 0;
  /// Enqueues the captured graph.
  virtual void replay() = 0;

  /// What the call runs with.
  [[nodiscard]] virtual std::string algorithm_of(const comm::CollectiveCall& call) = 0;
};

std::unique_ptr<MeasureSite> host_site(comm::Communicator& comm);
/// On a stream of its own.
/// @throws Error kInvalidUsage when the rank has no GPU; kCuda
std::unique_ptr<MeasureSite> device_site(comm::Communicator& comm);

}  // namespace ropewalk::diagnose
