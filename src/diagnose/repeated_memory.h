// A long buffer of little memory: the same pages again and again.
#pragma once

#include <cstddef>

#include "core/shared_memory.h"

namespace ropewalk::diagnose {

/// `bytes` of addresses, of which each `period` shows the same memory: what is written at one
/// offset is read at all that differ from it by a multiple of `period`.
///
/// Threads: as plain memory.
class RepeatedMemory {
 public:
  /// @pre `bytes` is a multiple of `period`, that of kGranularity
  /// @throws Error kSystem
  RepeatedMemory(std::size_t bytes, std::size_t period);
  ~RepeatedMemory();
  RepeatedMemory(const RepeatedMemory&) = delete;
  RepeatedMemory& operator=(const RepeatedMemory&) = delete;

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

  /// A multiple of every page size that is in use.
  static constexpr std::size_t kGranularity = std::size_t{64} << 10;

 private:
  SharedMemory period_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

}  // namespace ropewalk::diagnose
