#include "executor/host/waiter.h"

#include <sched.h>

#include <algorithm>
#include <thread>

#include "core/cpu_relax.h"

namespace ropewalk::executor {
namespace {

constexpr std::chrono::milliseconds kStalledPeriod{1};

// A yield without another runnable thread takes 0.2 to 0.6 us; one to another thread takes two
// context switches and that thread's time.
constexpr std::chrono::nanoseconds kYieldToNobody{1'500};
constexpr std::chrono::microseconds kTimedPeriod{20};
// A thread that yields back at once has not moved to another core.
constexpr int kQuickYields = 16;

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
  // No pause in between: on recent x86 cores one takes 40 to 140 cycles, as long as a line takes to
  // arrive.
  if (turns_ <= bare_turns()) return;
  if (turns_ == bare_turns() + 1) {
    since_ = std::chrono::steady_clock::now();
    last_stalled_ = since_;
  }
  // Reading the clock each turn costs about as much as a pause.
  const auto now = std::chrono::steady_clock::now();
  if (now - last_stalled_ >= kStalledPeriod) {
    last_stalled_ = now;
    hook_.stalled(now - since_);
  }
  if (now - since_ < policy_.spin && (crowded() || now - last_timed_ >= kTimedPeriod)) {
    timed_yield(now);
  } else {
    pause_or_sleep(now - since_);
  }
}

void Waiter::timed_yield(std::chrono::steady_clock::time_point now) {
  sched_yield();
  last_timed_ = std::chrono::steady_clock::now();
  if (last_timed_ - now > kYieldToNobody) {
    yields_to_time_ = kQuickYields;
  } else if (yields_to_time_ > 0) {
    --yields_to_time_;
  }
}

void Waiter::pause_or_sleep(std::chrono::nanoseconds waited) {
  if (waited >= policy_.hook_sleeps && hook_.sleep(policy_.sleep)) return;
  if (waited < policy_.spin) {
    cpu_relax();
  } else if (waited < policy_.spin + policy_.yield) {
    sched_yield();
  } else {
    // Sleep an eighth of the time waited so far: the sleep adds at most that share to the wait.
    std::this_thread::sleep_for(std::min(policy_.sleep, waited / 8));
  }
}

}  // namespace ropewalk::executor
