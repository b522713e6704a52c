#include "link/memory_pool.h"

#include <algorithm>
#include <utility>

namespace ropewalk::link {
namespace {

constexpr std::size_t kPage = 4096;

std::size_t whole_pages(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

}  // namespace

MemoryPool::MemoryPool(FifoMaker make_block, std::size_t block_bytes)
    : make_block_(std::move(make_block)), block_bytes_(whole_pages(block_bytes)) {
  reserve(block_bytes_);
}

void MemoryPool::reserve(std::size_t bytes) {
  const std::size_t needed = whole_pages(bytes);
  if (needed <= left_) return;
  const std::size_t size = std::max(needed, block_bytes_);
  blocks_.push_back(make_block_(size));
  next_ = blocks_.back().get();
  left_ = size;
  bytes_ += size;
}

std::byte* MemoryPool::take(std::size_t bytes) {
  reserve(bytes);
  const std::size_t size = whole_pages(bytes);
  left_ -= size;
  return std::exchange(next_, next_ + size);
}

}  // namespace ropewalk::link
