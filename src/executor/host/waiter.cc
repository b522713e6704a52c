#include "executor/host/waiter.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ropewalk::executor {
namespace {

void cpu_relax() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Turns without a look at the clock: a short wait, as for a peer that is just a cache line away,
// must not pay for reading it. No pause either: on recent x86 cores one takes 40 to 140 cycles, as
// long as the line takes to arrive.
constexpr std::uint64_t kBareTurns = 256;
constexpr std::chrono::milliseconds kStalledPeriod{1};

}  // namespace

void Waiter::idle(std::uint64_t moves) {
  if (moves != last_moves_) {
    last_moves_ = moves;
    turns_ = 0;
  }
  if (hook_.poll()) {
    turns_ = 0;
    return;
  }
  ++turns_;
  const bool impatient = policy_.spin.count() == 0;
  if (turns_ < (impatient ? kBareTurns / 8 : kBareTurns)) return;
  if (turns_ == (impatient ? kBareTurns / 8 : kBareTurns)) {
    since_ = std::chrono::steady_clock::now();
    last_stalled_ = since_;
    return;
  }
  // Reading the clock each turn costs about as much as a pause.
  const auto now = std::chrono::steady_clock::now();
  if (now - last_stalled_ >= kStalledPeriod) {
    last_stalled_ = now;
    hook_.stalled(now - since_);
  }
  pause_or_sleep(now - since_);
}

void Waiter::pause_or_sleep(std::chrono::nanoseconds waited) {
  if (waited < policy_.spin) {
    cpu_relax();
  } else if (waited < policy_.spin + policy_.yield) {
    sched_yield();
  } else {
    // Sleep an eighth of what was waited: the sleep adds at most that share to the wait.
    std::this_thread::sleep_for(std::min(policy_.sleep, waited / 8));
  }
}

}  // namespace ropewalk::executor
