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

// A null window finds a free slot.
WindowTable::Slot WindowTable::find(const void* window) {
  for (const std::unique_ptr<Block>& block : blocks_) {
    for (std::size_t i = 0; i < WindowTableBlock::kEntries; ++i) {
      if (block->copy.entries[i].window == window) return {block.get(), i};
    }
  }
  return {};
}

void WindowTable::put(Slot slot, const Entry& entry) {
  Entry& copy = slot.block->copy.entries[slot.index];
  const std::size_t offset = offsetof(WindowTableBlock, entries) + slot.index * sizeof(Entry);
  gpu_.fill(slot.block->memory.data() + offset, &entry, sizeof entry);
  copy = entry;
}

void WindowTable::add(std::uint64_t base, std::uint64_t bytes, ncclWindow_t window) {
  Slot slot = find(nullptr);
  if (slot.block == nullptr) {
    auto more = std::make_unique<Block>(gpu_);
    Block& last = *blocks_.back();
    const std::uint64_t next = more->memory.data();
    gpu_.fill(last.memory.data() + offsetof(WindowTableBlock, next), &next, sizeof next);
    last.copy.next = next;
    slot = {more.get(), 0};
    blocks_.push_back(std::move(more));
  }
  put(slot, {base, bytes, window});
}

void WindowTable::remove(ncclWindow_t window) {
  if (window == nullptr) return;
  const Slot slot = find(window);
  if (slot.block != nullptr) put(slot, {});
}

}  // namespace ropewalk::nccl
