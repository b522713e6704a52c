// A long copy from one process to another, made by both at once.
//
// The reader of a chunk that was given by address would copy it alone (process_vm_readv), while the
// writer waits for nothing else. Here the reader posts the chunk's destination, and both ends take
// pieces when they have time: the reader from the front, by reading, the writer from the back, by
// process_vm_writev. Two cores copy 1.5 to 2.5 times as fast as one (benchmarks/data_path). If the
// writer is late, busy or not permitted to write, the reader copies everything.
//
// The post is the CopyDesk in a link's memory (executor/fifo.h). A claim of pieces and the end of
// the post are one word, changed by compare-and-swap, so the writer writes nothing that it has not
// claimed, and the reader returns only when all that was claimed is written. A writer may be
// stopped (SIGSTOP) between its claim and its system call, and the reader give up waiting for it,
// by deadline or abort: the reader then takes back the destination, and a writer that goes on looks
// at it before each call without a gap (core/guarded_write.h). A call that the system
// has begun is waited for, as the system does not stop within it. A link whose copy was given up is
// not used again.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/link_end.h"

namespace ropewalk::executor {

/// The contents of a link's desk line. Zeroed memory is an empty desk.
struct CopyDesk {
  /// The chunk's number modulo 2^32, then the free pieces: first, and one past the last (16 bits
  /// each). Opened by the reader, changed by both.
  std::uint64_t claims;
  /// The chunk's number modulo 2^32, then how many pieces from the back are written, or
  /// kWriteFailed. Changed by the writer.
  std::uint64_t written;
  /// In the reader's address space; changed by the reader. 0: given up, nothing may be written.
  std::uint64_t destination;
};
static_assert(sizeof(CopyDesk) <= kLineBytes - sizeof(std::uint64_t));  // host/lending.h

/// Whether copies of this size are shared: above this size the second core saves more than its
/// claims cost, and a desk's words can count the pieces.
constexpr bool is_shared_copy(std::size_t bytes) noexcept {
  return bytes >= (std::size_t{64} << 10U) && bytes <= (std::size_t{1} << 31U) - (1U << 15U);
}

/// The reader's side of one copy.
///
/// Threads: one.
class SharedCopy {
 public:
  /// Posts the chunk that the reader is about to take from `link`; `writer` is its other end's
  /// process.
  /// @pre is_shared_copy(bytes)
  SharedCopy(const ReceiveEnd& link, int writer, std::byte* destination, std::size_t bytes);
  /// Ends the post. If the copy was abandoned (an exception), nothing is written after this: it
  /// waits until the writer has written, has refused, was stopped or has died. Only a writer whose
  /// system call lasts more than a second may write later.
  ~SharedCopy();
  SharedCopy(const SharedCopy&) = delete;
  SharedCopy& operator=(const SharedCopy&) = delete;

  struct Range {
    std::size_t begin = 0;  ///< bytes from the chunk's start
    std::size_t bytes = 0;  ///< 0: nothing is left to claim
  };
  /// The next range for the reader to copy.
  Range claim();
  /// Once claim() gave nothing: whether the writer's part is there.
  enum class Rest { kPending, kWritten, kFailed };
  [[nodiscard]] Rest rest() const noexcept;
  /// The writer's part, for the reader to copy itself after kFailed.
  [[nodiscard]] Range writers_part() const noexcept;

 private:
  [[nodiscard]] Range range(std::uint32_t first, std::uint32_t last) const noexcept;

  CopyDesk& desk_;
  int writer_;
  std::uint32_t chunk_;
  std::size_t bytes_;
  std::uint32_t pieces_;
  std::uint32_t writer_begin_;  // valid once claim() gave nothing
  bool claimed_ = false;        // all of it
};

/// The writer's side: copies free pieces of the chunk that the reader of `link` copies now, until
/// none is left. Does not wait.
/// @return true if it wrote anything
/// @throws Error kPeerLost if the reader has died
/// @pre can_guard_writes()
bool help_copying(SendEnd& link);

}  // namespace ropewalk::executor
