#include "transport/window/sisci/clean_up.h"

#include <thread>
#include <utility>

#include "core/log.h"

namespace ropewalk::transport::window::sisci {
namespace {

// For peers that are about to disconnect, too.
constexpr auto kLastTime = std::chrono::milliseconds(500);

// @return whether all is done
bool run(std::deque<CleanUpStep>& steps) {
  while (!steps.empty()) {
    if (!steps.front()()) return false;
    steps.pop_front();
  }
  return true;
}

}  // namespace

CleanUp::~CleanUp() {
  settle();
  std::vector<std::deque<CleanUpStep>> left;
  {
    const Lock lock(mutex_);
    ended_ = true;
    left.swap(left_);
  }
  if (left.empty()) return;
  log::info(log::kNet,
            "sisci: {} objects are still in use by peers; they are freed when this process ends",
            left.size());
}

void CleanUp::add(std::deque<CleanUpStep> steps) {
  {
    const Lock lock(mutex_);
    if (ended_) return;
  }
  if (run(steps)) return;
  const Lock lock(mutex_);
  left_.push_back(std::move(steps));
}

void CleanUp::sweep() {
  // Not under the lock: steps call into the library, and may add others.
  std::vector<std::deque<CleanUpStep>> tried;
  {
    const Lock lock(mutex_);
    tried.swap(left_);
  }
  std::erase_if(tried, run);
  const Lock lock(mutex_);
  for (auto& steps : tried) left_.push_back(std::move(steps));
}

void CleanUp::settle() {
  const auto end = std::chrono::steady_clock::now() + kLastTime;
  for (;;) {
    sweep();
    {
      const Lock lock(mutex_);
      if (left_.empty()) return;
    }
    if (std::chrono::steady_clock::now() > end) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace ropewalk::transport::window::sisci
