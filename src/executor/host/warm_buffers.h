// Which of a rank's buffers a cache probably holds when a call begins.
//
// An output that no cache holds is best written by non-temporal stores: an ordinary store first
// reads the line that it replaces, so that each byte crosses the path to memory twice. An output
// that a cache holds is best written by ordinary stores. Only earlier calls tell which is the case:
// a program that uses the same few buffers repeatedly has them in its caches, a program that uses
// many does not. Memory accesses of the program between its calls are not known.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ropewalk::executor {

/// Threads: one at a time.
class WarmBuffers {
 public:
  /// @param cache_bytes bytes that a rank's calls may touch before the caches no longer hold the
  /// first of them
  explicit WarmBuffers(std::size_t cache_bytes) : cache_bytes_(cache_bytes) {}

  /// Notes that a call uses the buffer.
  /// @return whether one has before, by the same address, and not too much was touched since then
  bool touch(const void* data, std::size_t bytes) noexcept {
    const auto line = reinterpret_cast<std::uintptr_t>(data) / 64;
    // Fibonacci hashing (Knuth, The Art of Computer Programming, volume 3, 6.4). Buffers that share
    // an entry push each other out and count as cold, which costs speed alone.
    Entry& entry = entries_[(line * 0x9e3779b97f4a7c15U) >> (64 - kBits)];
    const bool warm = entry.data == data && touched_ - entry.at <= cache_bytes_;
    touched_ += bytes;
    entry = {data, touched_};
    return warm;
  }

  /// For the ranks of one host: the last cache, which they share.
  static std::size_t cache_bytes_of_each(int ranks) noexcept;

 private:
  static constexpr unsigned kBits = 8;
  struct Entry {
    const void* data = nullptr;
    std::uint64_t at = 0;  // of touched_, after it was used
  };
  std::array<Entry, std::size_t{1} << kBits> entries_{};
  std::uint64_t touched_ = 0;
  std::size_t cache_bytes_;
};

}  // namespace ropewalk::executor
