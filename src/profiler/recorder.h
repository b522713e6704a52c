// The operations of one of NCCL's communicators, as its profiler interface tells them, and the
// report of them: the same JSON that Ropewalk's own communicators write (comm/call_report.h), so
// that `ropewalk calls` reads it.
//
// NCCL ends the event of an operation when it is enqueued. Its kernels and its network operations
// are events below it: it has started when the first of them starts, and is completed when the last
// one ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/mutex.h"
#include "profiler/descriptor.h"

namespace ropewalk::profiler {

/// Threads: any.
class Recorder {
 public:
  struct Communicator {
    std::optional<std::uint64_t> id;
    int rank = -1;       ///< -1: an operation tells it
    int num_ranks = -1;  ///< -1: it is not told (up to version 3)
  };
  /// Of a record, from 1.
  using Id = std::uint64_t;

  /// @param capacity  records that are kept, at least 1
  Recorder(const Communicator& communicator, std::size_t capacity)
      : capacity_(capacity), communicator_(communicator) {}
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;
  ~Recorder() = default;

  Id begin(const Operation& operation);
  /// Something of the operation starts: a kernel's channel, a network operation. Records that are
  /// kept no more are ignored.
  /// @param gpu_ns  the GPU's clock when it did, where it is known
  void start_part(Id id, std::optional<std::uint64_t> gpu_ns);
  /// The GPU's clock when a part ended.
  void stop_on_gpu(Id id, std::uint64_t gpu_ns);
  void stop_part(Id id);

  [[nodiscard]] int rank() const;
  /// Whether the rank is known: up to version 3 an operation tells it.
  [[nodiscard]] bool has_rank() const;
  /// The communicator's number in hexadecimal.
  [[nodiscard]] std::string communicator() const;
  /// See comm/call_report.h.
  /// @param newest  no more records than these
  [[nodiscard]] std::string report(
      std::size_t newest = std::numeric_limits<std::size_t>::max()) const;

 private:
  struct Record {
    Id id = 0;
    std::uint64_t call = 0;  // 0: a message
    Operation operation;
    std::int64_t scheduled_ns = 0;  // CLOCK_REALTIME, as are the next two; 0: not yet
    std::int64_t started_ns = 0;
    std::int64_t completed_ns = 0;
    int open_parts = 0;
    std::uint64_t gpu_start = 0;  // the GPU's clock; 0: not told
    std::uint64_t gpu_stop = 0;
  };
  Record* find(Id id) RW_REQUIRES(mutex_);

  const std::size_t capacity_;
  mutable Mutex mutex_;
  Communicator communicator_ RW_GUARDED_BY(mutex_);
  std::deque<Record> records_ RW_GUARDED_BY(mutex_);
  Id last_ RW_GUARDED_BY(mutex_) = 0;
  std::uint64_t calls_ RW_GUARDED_BY(mutex_) = 0;
};

}  // namespace ropewalk::profiler
