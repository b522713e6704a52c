// What this machine can do at best: the limits that tables show beside results, and the constants
// of the tuner's cost model.
//
// Everything is measured, on the cores that the calling thread may use. Times are the smallest of
// many short runs and rates the largest: a busy machine makes a run slower, never faster.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <vector>

namespace ropewalk::executor {

/// Rates at one working set. The working set is the sum of all buffers that are read or written;
/// rates count the bytes of one buffer (as the size of a message does), not the traffic.
struct BandwidthPoint {
  std::size_t working_set = 0;            ///< bytes
  double memcpy_bytes_per_second = 0;     ///< the C library's, 1 source to 1 destination
  double streaming_bytes_per_second = 0;  ///< the same with non-temporal stores
  double combine_bytes_per_second = 0;    ///< float32 sum, 2 sources to 1 destination
};

/// One-way time of a cache line that two threads hand to each other, from `first` to `second` and
/// back, halved.
struct LineLatency {
  int first_core = 0;
  int second_core = 0;
  double seconds = 0;
};

/// process_vm_readv from another process on another core (the same one if there is only one).
struct ProcessRead {
  double seconds_per_call = 0;        ///< of a read of 8 bytes
  double small_bytes_per_second = 0;  ///< 64 KiB at a time, source and destination in cache
  double large_bytes_per_second = 0;  ///< 8 MiB at a time
  double fresh_bytes_per_second = 0;  ///< 128 KiB at a time, from memory into the cache
  double moved_bytes_per_second = 0;  ///< 128 KiB at a time, from memory into memory
};

struct Limits {
  std::vector<int> cores;  ///< that the calling thread may use
  /// Sizes in ascending order, from one that fits the first-level cache to one that fits none.
  std::vector<BandwidthPoint> bandwidth;
  /// Each pair of the first 8 cores. Empty when there is one core only: two threads on one core do
  /// not share a line, they take turns.
  std::vector<LineLatency> line_latency;
  /// Nothing where reading another process's memory is not permitted.
  std::optional<ProcessRead> process_read;
  /// One-way time of 8 bytes through a TCP connection over loopback; empty without a loopback
  /// interface.
  std::optional<double> tcp_latency_seconds;
  /// Time that a short message over loopback takes of a core that both sends and receives it.
  std::optional<double> tcp_message_seconds;

  /// The smallest line latency; nothing with one core.
  [[nodiscard]] std::optional<double> best_line_latency_seconds() const;
  /// memcpy, and combine, of the smallest and of the largest working set.
  [[nodiscard]] double cached_copy_bytes_per_second() const;
  [[nodiscard]] double uncached_copy_bytes_per_second() const;
  [[nodiscard]] double cached_combine_bytes_per_second() const;
  [[nodiscard]] double uncached_combine_bytes_per_second() const;
};

/// Measures for about `budget` (at least some 20 ms) and takes up to 256 MiB of memory meanwhile.
/// The calling thread's core set is changed and restored. Starts threads and a child process, which
/// have ended when it returns.
/// @throws Error kSystem if memory or threads cannot be had
Limits measure_limits(std::chrono::milliseconds budget);

/// The part of it that the cost model asks for, and a process's first join waits for: cores,
/// process_read and the times of TCP. The others stay empty: they touch much memory.
Limits measure_path_costs(std::chrono::milliseconds budget);

}  // namespace ropewalk::executor
