#include "link/progress_thread.h"

#include <utility>

#include "core/cpu_list.h"
#include "core/log.h"

namespace ropewalk::link {

using Clock = std::chrono::steady_clock;

ProgressThread::ProgressThread(std::unique_ptr<NetworkLinks> links, Policy policy,
                               std::function<void(const Error&)> on_error)
    : policy_(std::move(policy)), on_error_(std::move(on_error)), links_(std::move(links)) {
  thread_ = std::thread([this] { run(); });
}

ProgressThread::~ProgressThread() {
  stop_ = true;
  wake();
  thread_.join();
}

void ProgressThread::wake() noexcept {
  if (awake_.exchange(true, std::memory_order_relaxed)) return;
  const std::lock_guard lock(sleep_mutex_);
  sleep_.notify_one();
}

std::optional<Error> ProgressThread::failure() const {
  if (!failed_.load(std::memory_order_acquire)) return std::nullopt;
  const Lock lock(mutex_);
  return failure_;
}

bool ProgressThread::poll_once() {
  std::optional<Error> failed;
  {
    const Lock lock(mutex_);
    if (failure_.has_value()) return false;
    try {
      return links_->poll();
    } catch (const Error& error) {
      failure_ = failed = error;
      failed_.store(true, std::memory_order_release);
    }
  }
  log::info(log::kNet, "the progress thread stops: {}", failed->what());
  on_error_(*failed);
  return false;
}

void ProgressThread::rest(std::chrono::microseconds idle) {
  if (idle < policy_.busy) {
    std::this_thread::yield();
    return;
  }
  const bool naps = idle < policy_.busy + policy_.naps_for;
  std::unique_lock lock(sleep_mutex_);
  sleep_.wait_for(lock, naps ? policy_.nap : policy_.sleep,
                  [&] { return awake_.load(std::memory_order_relaxed) || stop_.load(); });
}

void ProgressThread::run() {
  if (!policy_.cpus.empty() && !stay_on(policy_.cpus)) {
    log::info(log::kNet, "the progress thread may use none of {} processors near the GPU",
              policy_.cpus.size());
  }
  Clock::time_point last_moved = Clock::now();
  while (!stop_) {
    while (wanted_.load(std::memory_order_relaxed) > 0) std::this_thread::yield();
    const bool moved = poll_once();
    const Clock::time_point now = Clock::now();
    if (awake_.exchange(false, std::memory_order_relaxed) || moved) last_moved = now;
    if (moved) continue;
    rest(std::chrono::duration_cast<std::chrono::microseconds>(now - last_moved));
  }
}

}  // namespace ropewalk::link
