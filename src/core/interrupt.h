// How a program ends its own long waits in the library: a person's Ctrl-C, a runtime's own wish.
//
// A thread that waits in a call asks the check that it has set, if it has, now and then. Per
// thread, since what there is to ask belongs to one as a rule: interpreters run the handlers of
// signals in their main thread alone.
#pragma once

#include <atomic>
#include <chrono>
#include <string_view>

namespace ropewalk {

/// @return non-zero to end the call that waits. Throws nothing.
using InterruptCheck = int (*)(void* user);

/// How long a wait lasts before the program is asked, and how often from then on.
inline constexpr std::chrono::milliseconds kInterruptPeriod{100};

/// This thread's waits ask `check(user)` from now on; null: nobody, as in the beginning.
/// @throws Error kInvalidUsage from within a check
void set_interrupt_check(InterruptCheck check, void* user);

/// Whether the program wants this thread's wait to end: for waits to call about every
/// kInterruptPeriod. The check may run any code of the program, which may wait for anything.
[[nodiscard]] bool interrupted();
/// @throws Error kInterrupted if so; `what` begins its text
void check_interrupt(std::string_view what);

namespace detail {
// Threads in their checks. Nearly always 0, and read by one load, while a thread-local takes a
// call.
extern std::atomic<int> num_in_checks;
bool this_thread_checks() noexcept;
}  // namespace detail
/// Whether this thread is in its check, and so within another call already.
[[nodiscard]] inline bool in_interrupt_check() noexcept {
  return detail::num_in_checks.load(std::memory_order_relaxed) != 0 && detail::this_thread_checks();
}

/// Between the steps of long calculations, which may be many: cheap, and asks no program.
/// @throws Error kInterrupted where another thread that this one works for ends it; `what` begins
/// its text
void check_stopped(std::string_view what);

/// While one lives, this thread works for another one, which asks: its waits end when `stop` is
/// set.
class InterruptedBy {
 public:
  explicit InterruptedBy(const std::atomic<bool>& stop);
  ~InterruptedBy();
  InterruptedBy(const InterruptedBy&) = delete;
  InterruptedBy& operator=(const InterruptedBy&) = delete;
};

}  // namespace ropewalk
