// process_vm_writev that does not happen any more once a word has changed, even when the thread was
// stopped directly before it.
//
// A look at the word and then the call leave a gap: a thread that is stopped in it (SIGSTOP, a
// frozen container) writes when it goes on, however much later. Here both are one restartable
// sequence (rseq(2)): a thread that was stopped or moved between the look and the call begins
// again with the look. Inside the call the system finishes the copy before it stops the thread.
#pragma once

#include <sys/types.h>
#include <sys/uio.h>

#include <cstdint>

namespace ropewalk {

/// Writes happen while `*word == expected`.
struct WriteGuard {
  const std::uint64_t* word = nullptr;
  std::uint64_t expected = 0;
};

/// Whether this thread can guard writes: x86-64, and a C library that has registered restartable
/// sequences (glibc 2.35 does).
bool can_guard_writes() noexcept;

/// One call of process_vm_writev. @return bytes, or -1 and errno; ECANCELED when the word differs
/// @pre can_guard_writes()
ssize_t guarded_writev(pid_t pid, const iovec& local, const iovec& remote,
                       const WriteGuard& guard) noexcept;

}  // namespace ropewalk
