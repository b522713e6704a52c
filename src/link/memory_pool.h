// Memory of link ends, allocated ahead in large blocks.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "link/network_link.h"

namespace ropewalk::link {

/// Pieces of memory that are never freed before the pool, for which take() allocates nothing once
/// reserve() has: an allocation of CUDA's may wait for a kernel, and so must not be made while a
/// lock is held that the kernel's data needs.
///
/// Threads: one at a time.
class MemoryPool {
 public:
  /// Allocates the first block. @param make_block of a block, zeroed, page-aligned
  /// @throws Error as `make_block`
  MemoryPool(FifoMaker make_block, std::size_t block_bytes);
  /// Sees to it that a piece of so many bytes is there. @throws Error as `make_block`
  void reserve(std::size_t bytes);
  /// Page-aligned, zero. @throws Error as `make_block`
  std::byte* take(std::size_t bytes);
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  FifoMaker make_block_;
  std::size_t block_bytes_;
  std::size_t bytes_ = 0;
  std::vector<FifoMemory> blocks_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
};

}  // namespace ropewalk::link
