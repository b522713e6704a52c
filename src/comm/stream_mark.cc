#include "comm/stream_mark.h"

#include <algorithm>
#include <thread>

#include "core/interrupt.h"

namespace ropewalk::comm {
namespace {

// Short operations are waited for awake; longer ones may end this much later.
constexpr std::chrono::microseconds kAwake{50};
constexpr std::chrono::microseconds kLongestSleep{200};

}  // namespace

bool wait(StreamMark& mark, std::chrono::microseconds timeout) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point begin = Clock::now();
  std::chrono::microseconds nap{10};
  Clock::duration next_ask = kInterruptPeriod;
  while (!mark.passed()) {
    const auto waited = Clock::now() - begin;
    if (timeout.count() >= 0 && waited >= timeout) return false;
    if (waited < kAwake) {
      std::this_thread::yield();
      continue;
    }
    if (waited >= next_ask) {
      check_interrupt("waiting for a stream");
      next_ask = waited + kInterruptPeriod;
    }
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, kLongestSleep);
  }
  return true;
}

}  // namespace ropewalk::comm
