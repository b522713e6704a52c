// Chunks given by address between ranks of one process: who may touch the buffer, and until when.
//
// The reader copies straight from the writer's buffer, and the writer's call ends only when that is
// done (`consumed`). But a call that fails ends at once, and its caller may free the buffer while
// another thread still copies from it. So a reader marks that it reads; a writer that fails first
// revokes all buffers that it lent, and waits for current readers. Each stores its own word and
// then reads the other's, in one order for all threads (seq_cst), so that never both proceed.
//
// Between processes this is not needed: the kernel copies, and returns an error for memory that
// does not exist.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>

#include "executor/link_end.h"

namespace ropewalk::executor {

/// The words' offsets in a link's memory (executor/fifo.h), which is zeroed initially.
inline constexpr std::size_t kReadingOffset = sizeof(std::uint64_t);  // beside `consumed`
inline constexpr std::size_t kTakenBackOffset = 2 * kLineBytes - sizeof(std::uint64_t);

inline std::atomic_ref<std::uint64_t> lending_word(std::byte* memory, std::size_t offset) noexcept {
  return std::atomic_ref(*reinterpret_cast<std::uint64_t*>(memory + offset));
}

/// The reader, before it touches a buffer.
/// @return false when it was taken back
inline bool borrow(const ReceiveEnd& link) noexcept {
  lending_word(link.memory, kReadingOffset).store(1);
  return lending_word(link.memory, kTakenBackOffset).load() == 0;
}

/// Called by the reader when it has finished or failed. No effect without an earlier borrow().
inline void give_back(const ReceiveEnd& link) noexcept {
  lending_word(link.memory, kReadingOffset).store(0, std::memory_order_release);
}

/// The writer, for good: waits while the reader copies, which is a chunk at most. The link lends
/// nothing after that.
inline void take_back(const SendEnd& link) noexcept {
  lending_word(link.memory, kTakenBackOffset).store(1);
  while (lending_word(link.memory, kReadingOffset).load() != 0) std::this_thread::yield();
}

}  // namespace ropewalk::executor
