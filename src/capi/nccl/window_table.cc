#include "capi/nccl/window_table.h"

namespace ropewalk::nccl {

namespace gpus = transport::window;

WindowTable::Block::Block(gpus::Gpu& gpu)
    : memory(gpu, sizeof(WindowTableBlock), gpus::DeviceBuffer::From::kAllocator) {
  gpu.fill(memory.data(), &copy, sizeof copy);
}

WindowTable::WindowTable(gpus::Gpu& gpu) : gpu_(gpu) {
  blocks_.push_back(std::make_unique<Block>(gpu));
}

// A null window is a free place.
WindowTable::Place WindowTable::find(const void* window) {
  for (const std::unique_ptr<Block>& block : blocks_) {
    for (std::size_t i = 0; i < WindowTableBlock::kEntries; ++i) {
      if (block->copy.entries[i].window == window) return {block.get(), i};
    }
  }
  return {};
}

void WindowTable::put(Place place, const Entry& entry) {
  Entry& copy = place.block->copy.entries[place.index];
  const std::size_t offset = offsetof(WindowTableBlock, entries) + place.index * sizeof(Entry);
  gpu_.fill(place.block->memory.data() + offset, &entry, sizeof entry);
  copy = entry;
}

void WindowTable::add(std::uint64_t base, std::uint64_t bytes, ncclWindow_t window) {
  Place place = find(nullptr);
  if (place.block == nullptr) {
    auto more = std::make_unique<Block>(gpu_);
    Block& last = *blocks_.back();
    const std::uint64_t next = more->memory.data();
    gpu_.fill(last.memory.data() + offsetof(WindowTableBlock, next), &next, sizeof next);
    last.copy.next = next;
    place = {more.get(), 0};
    blocks_.push_back(std::move(more));
  }
  put(place, {base, bytes, window});
}

void WindowTable::remove(ncclWindow_t window) {
  if (window == nullptr) return;
  const Place place = find(window);
  if (place.block != nullptr) put(place, {});
}

}  // namespace ropewalk::nccl
