#include "core/interrupt.h"

#include "core/error.h"

namespace ropewalk {
namespace {

struct OfThread {
  InterruptCheck check = nullptr;
  void* user = nullptr;
  bool in_check = false;
  const std::atomic<bool>* stop = nullptr;
};
thread_local OfThread of_thread;

}  // namespace

std::atomic<int> detail::num_in_checks{0};

void set_interrupt_check(InterruptCheck check, void* user) {
  OfThread& here = of_thread;
  if (here.in_check) {
    throw Error(Errc::kInvalidUsage, "the interrupt check cannot be changed from within it");
  }
  here.check = check;
  here.user = user;
}

bool interrupted() {
  OfThread& here = of_thread;
  if (here.stop != nullptr && here.stop->load(std::memory_order_acquire)) return true;
  if (here.check == nullptr || here.in_check) return false;
  detail::num_in_checks.fetch_add(1, std::memory_order_relaxed);
  here.in_check = true;
  const bool end = here.check(here.user) != 0;
  here.in_check = false;
  detail::num_in_checks.fetch_sub(1, std::memory_order_relaxed);
  return end;
}

void check_interrupt(std::string_view what) {
  if (interrupted()) throw Error(Errc::kInterrupted, "{}: interrupted by the program", what);
}

void check_stopped(std::string_view what) {
  const std::atomic<bool>* stop = of_thread.stop;
  if (stop != nullptr && stop->load(std::memory_order_relaxed)) {
    throw Error(Errc::kInterrupted, "{}: it is no longer needed", what);
  }
}

bool detail::this_thread_checks() noexcept { return of_thread.in_check; }

InterruptedBy::InterruptedBy(const std::atomic<bool>& stop) { of_thread.stop = &stop; }

InterruptedBy::~InterruptedBy() { of_thread.stop = nullptr; }

}  // namespace ropewalk
