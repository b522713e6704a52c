#include "core/guarded_write.h"

#include <sys/syscall.h>

#include <cerrno>
#include <cstddef>

#if defined(__x86_64__) && __has_include(<sys/rseq.h>)
#include <sys/rseq.h>
#define RW_HAVE_RSEQ 1
#endif

namespace ropewalk {

#ifdef RW_HAVE_RSEQ

namespace {

// The thread's area, which glibc has registered: at a fixed offset from the thread pointer.
struct rseq* area() noexcept {
  std::uintptr_t thread = 0;
  asm("movq %%fs:0, %0" : "=r"(thread));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): the thread pointer
  return reinterpret_cast<struct rseq*>(thread + static_cast<std::uintptr_t>(__rseq_offset));
}

}  // namespace

bool can_guard_writes() noexcept {
  return __rseq_size > 0 && static_cast<std::int32_t>(area()->cpu_id) >= 0;
}

ssize_t guarded_writev(pid_t pid, const iovec& local, const iovec& remote,
                       const WriteGuard& guard) noexcept {
  auto* const sequence = reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::byte*>(area()) +
                                                          offsetof(struct rseq, rseq_cs));
  std::int64_t result = SYS_process_vm_writev;
  register const iovec* remote_ranges asm("r10") = &remote;
  register std::uint64_t num_remote asm("r8") = 1;
  register std::uint64_t flags asm("r9") = 0;
  // From 1 up to 2 the system restarts at 3. The call is the last instruction: a thread that is in
  // it, or behind it, is at 2 already. 3 stands behind the mark by which the system knows that it
  // may go there.
  asm volatile(
      ".pushsection __rseq_cs, \"aw\"\n\t"
      ".balign 32\n"
      "4:\n\t"
      ".long 0, 0\n\t"
      ".quad 1f, 2f - 1f, 3f\n\t"
      ".popsection\n\t"
      ".pushsection .text.rseq_restart, \"ax\"\n\t"
      ".byte 0x0f, 0xb9, 0x3d\n\t"
      ".long 0x53053053\n"
      "3:\n\t"
      "jmp 5f\n\t"
      ".popsection\n"
      "5:\n\t"
      "leaq 4b(%%rip), %%rcx\n\t"
      "movq %%rcx, (%[sequence])\n"
      "1:\n\t"
      "cmpq %[expected], (%[word])\n\t"
      "jne 6f\n\t"
      "syscall\n"
      "2:\n\t"
      "jmp 7f\n"
      "6:\n\t"
      "movq %[cancelled], %%rax\n"
      "7:\n\t"
      "movq $0, (%[sequence])\n"
      : "+a"(result)
      : "D"(static_cast<std::int64_t>(pid)), "S"(&local), "d"(std::uint64_t{1}), "r"(remote_ranges),
        "r"(num_remote), "r"(flags), [sequence] "r"(sequence), [word] "r"(guard.word),
        [expected] "r"(guard.expected), [cancelled] "i"(-ECANCELED)
      : "rcx", "r11", "cc", "memory");
  if (result >= 0) return result;
  errno = static_cast<int>(-result);
  return -1;
}

#else

bool can_guard_writes() noexcept { return false; }

ssize_t guarded_writev(pid_t, const iovec&, const iovec&, const WriteGuard&) noexcept {
  errno = ENOSYS;
  return -1;
}

#endif

}  // namespace ropewalk
