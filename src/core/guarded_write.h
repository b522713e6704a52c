// process_vm_writev that no longer happens once a word has changed, even if the thread was stopped
// directly before the call.
//
// A check of the word followed by the call leaves a gap: a thread that is stopped in it (SIGSTOP, a
// frozen container) writes when it continues, however much later. Here both are one restartable
// sequence (rseq(2)): a thread that was stopped or moved between the check and the call repeats the
// check. Inside the call the system finishes the copy before it stops the thread.
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
