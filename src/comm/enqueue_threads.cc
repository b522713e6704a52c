#include "comm/enqueue_threads.h"

#include <algorithm>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "core/cpu_relax.h"
#include "core/library_thread.h"
#include "core/mutex.h"

namespace ropewalk::comm {
namespace {

// Looks at the clock once in so many looks for work.
constexpr int kLooks = 64;

}  // namespace

// The state says whose turn it is; what is beside it belongs to that thread.
//
//   caller: awake -> given, given -> awake (takes the part back)
//   helper: given -> running -> awake, awake -> asleep -> awake
class EnqueueThreads::Helper {
 public:
  /// @throws std::system_error
  Helper() : thread_([this] { loop(); }) {}
  ~Helper() {
    wake(true);
    thread_.join();
  }
  Helper(const Helper&) = delete;
  Helper& operator=(const Helper&) = delete;

  /// Nothing happens if it sleeps.
  void give(const std::function<void(std::size_t)>& part, std::size_t number) {
    given_ = false;
    if (state_.load(std::memory_order_acquire) != State::kAwake) return;
    part_ = &part;
    number_ = number;
    State expected = State::kAwake;
    given_ = state_.compare_exchange_strong(expected, State::kGiven, std::memory_order_acq_rel);
  }
  /// @return whether the caller has to run the part: it was not given, or has not begun
  bool take_back() {
    if (!given_) return true;
    State expected = State::kGiven;
    const bool taken =
        state_.compare_exchange_strong(expected, State::kAwake, std::memory_order_acq_rel);
    given_ = !taken;
    return taken;
  }
  /// Returns when a part that could not be taken back has ended, with what it threw.
  std::exception_ptr result() {
    if (!given_) return nullptr;
    while (state_.load(std::memory_order_acquire) == State::kRunning) cpu_relax();
    return std::move(thrown_);
  }
  [[nodiscard]] bool asleep() const noexcept {
    return state_.load(std::memory_order_relaxed) == State::kAsleep;
  }
  void wake(bool to_end = false) {
    const Lock lock(mutex_);
    wanted_ = true;
    ending_ |= to_end;
    changed_.notify_one();
  }

 private:
  enum class State : std::uint8_t { kAsleep, kAwake, kGiven, kRunning };

  void loop() {
    mark_library_thread();
    while (sleep()) {
      state_.store(State::kAwake, std::memory_order_release);
      while (look()) {
      }
    }
  }

  // @return false at the end
  bool sleep() {
    Lock lock(mutex_);
    lock.wait(changed_, [this]() RW_REQUIRES(mutex_) { return wanted_; });
    wanted_ = false;
    return !ending_;
  }

  // Runs the next part. @return false when it sleeps
  bool look() {
    const auto until = std::chrono::steady_clock::now() + kAwake;
    for (int looks = 1;; ++looks) {
      State expected = State::kGiven;
      if (state_.load(std::memory_order_relaxed) == State::kGiven &&
          state_.compare_exchange_strong(expected, State::kRunning, std::memory_order_acq_rel)) {
        break;
      }
      cpu_relax();
      if (looks % kLooks != 0 || std::chrono::steady_clock::now() < until) continue;
      expected = State::kAwake;
      if (state_.compare_exchange_strong(expected, State::kAsleep, std::memory_order_acq_rel)) {
        return false;
      }
    }
    thrown_ = nullptr;
    try {
      (*part_)(number_);
    } catch (...) {
      thrown_ = std::current_exception();
    }
    state_.store(State::kAwake, std::memory_order_release);
    return true;
  }

  alignas(64) std::atomic<State> state_ = State::kAsleep;
  const std::function<void(std::size_t)>* part_ = nullptr;
  std::size_t number_ = 0;
  std::exception_ptr thrown_;
  bool given_ = false;  // the caller's
  alignas(64) Mutex mutex_;
  std::condition_variable changed_;
  bool wanted_ RW_GUARDED_BY(mutex_) = false;
  bool ending_ RW_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last: it uses the others
};

EnqueueThreads::EnqueueThreads() = default;

EnqueueThreads::~EnqueueThreads() {
  if (!belonging_.elsewhere()) return;
  // Their threads are not in this process: nothing of them may be waited for.
  for (std::unique_ptr<Helper>& helper : helpers_) (void)helper.release();
}

void EnqueueThreads::wake(std::size_t number) {
  for (std::size_t i = 0; i < number; ++i) {
    if (i == helpers_.size()) {
      try {
        helpers_.push_back(std::make_unique<Helper>());
      } catch (const std::system_error&) {
        return;  // the calling thread does without
      }
    }
    if (helpers_[i]->asleep()) helpers_[i]->wake();
  }
}

void EnqueueThreads::run(std::size_t parts, const std::function<void(std::size_t)>& part) {
  if (parts == 0) return;
  const bool here = !belonging_.elsewhere();
  if (here) {
    const bool closely = std::chrono::steady_clock::now() - last_end_ < kClosely;
    in_a_row_ = closely ? in_a_row_ + 1 : 0;
    if (in_a_row_ >= kCallsInARow) {
      in_a_row_ = 0;
      wake(parts - 1);
    }
  }
  const std::size_t helped = here ? std::min(parts - 1, helpers_.size()) : 0;
  for (std::size_t i = 0; i < helped; ++i) helpers_[i]->give(part, i + 1);
  std::exception_ptr first;
  std::size_t lowest = parts;
  const auto keep = [&](std::size_t number, std::exception_ptr thrown) {
    if (!thrown || number > lowest) return;
    first = std::move(thrown);
    lowest = number;
  };
  for (std::size_t i = 0; i < parts; ++i) {
    if (i > 0 && i <= helped && !helpers_[i - 1]->take_back()) continue;
    try {
      part(i);
    } catch (...) {
      keep(i, std::current_exception());
    }
  }
  for (std::size_t i = 0; i < helped; ++i) keep(i + 1, helpers_[i]->result());
  last_end_ = std::chrono::steady_clock::now();
  if (first) std::rethrow_exception(first);
}

}  // namespace ropewalk::comm
