#include "transport/messaging/psm2/setup_threads.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "core/fork.h"

namespace ropewalk::transport::psm2 {
namespace {

using Clock = std::chrono::steady_clock;

// How often: a peer that connects waits for it.
constexpr auto kPeriod = std::chrono::microseconds(50);
// After this long nobody is in a hurry.
constexpr auto kEager = std::chrono::seconds(2);
constexpr auto kSlowPeriod = std::chrono::milliseconds(2);
constexpr unsigned kSidesPeriod = 20;

}  // namespace

class SetupThreads {
 public:
  SetupThreads() = default;
  SetupThreads(const SetupThreads&) = delete;
  SetupThreads& operator=(const SetupThreads&) = delete;
  ~SetupThreads() {
    // Threads do not survive a fork.
    if (belonging_.elsewhere()) {
      for (std::thread& each : threads_) each.detach();
      return;
    }
    {
      const std::lock_guard lock(mutex_);
      ended_ = true;
    }
    changed_.notify_all();
    for (std::thread& each : threads_) each.join();
  }
  [[nodiscard]] bool elsewhere() const noexcept { return belonging_.elsewhere(); }

  void watch(Endpoint& endpoint) {
    {
      const std::lock_guard lock(mutex_);
      if (std::find(watched_.begin(), watched_.end(), &endpoint) == watched_.end()) {
        watched_.push_back(&endpoint);
      }
      since_ = Clock::now();
      start(polls_, [this] { poll(); });
    }
    changed_.notify_all();
  }

  void connect(Endpoint& endpoint, abi::EndpointId id) {
    {
      const std::lock_guard lock(mutex_);
      to_connect_.emplace_back(&endpoint, id);
      start(connects_, [this] { connect_all(); });
    }
    changed_.notify_all();
  }

 private:
  template <typename Body>
  void start(bool& started, Body body) {
    if (std::exchange(started, true)) return;
    threads_.emplace_back(std::move(body));
  }

  void poll() {
    for (unsigned round = 0;; ++round) {
      std::vector<Endpoint*> endpoints;
      Clock::time_point since;
      {
        std::unique_lock lock(mutex_);
        std::erase_if(watched_, [](const Endpoint* endpoint) {
          return endpoint->in_setup == 0 || endpoint->retired();
        });
        changed_.wait(lock, [this] { return ended_ || !watched_.empty(); });
        if (ended_) return;
        endpoints = watched_;
        since = since_;
      }
      for (Endpoint* const endpoint : endpoints) {
        // Held by another: it is being polled.
        if (!endpoint->mutex.try_lock()) continue;
        endpoint->poll();
        if (round % kSidesPeriod == 0) endpoint->look_at_sides();
        endpoint->mutex.unlock();
      }
      const bool eager = Clock::now() - since < kEager;
      std::this_thread::sleep_for(eager ? Clock::duration(kPeriod) : kSlowPeriod);
    }
  }

  void connect_all() {
    for (;;) {
      std::pair<Endpoint*, abi::EndpointId> next;
      {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return ended_ || !to_connect_.empty(); });
        if (ended_) return;
        next = to_connect_.front();
        to_connect_.pop_front();
      }
      bool done = false;
      {
        const Spin lock(next.first->mutex);
        done = next.first->connect(next.second);
      }
      if (done) continue;
      // Others want the endpoint, too.
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      const std::lock_guard lock(mutex_);
      to_connect_.push_back(next);
    }
  }

  const Belonging belonging_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Endpoint*> watched_;
  Clock::time_point since_;
  std::deque<std::pair<Endpoint*, abi::EndpointId>> to_connect_;
  bool polls_ = false;
  bool connects_ = false;
  bool ended_ = false;
  std::vector<std::thread> threads_;
};

std::shared_ptr<SetupThreads> setup_threads() {
  static std::mutex mutex;
  static std::weak_ptr<SetupThreads> current;
  const std::lock_guard lock(mutex);
  std::shared_ptr<SetupThreads> threads = current.lock();
  if (threads == nullptr || threads->elsewhere()) {
    threads = std::make_shared<SetupThreads>();
    current = threads;
  }
  return threads;
}

void poll_while_in_setup(Endpoint& endpoint) { setup_threads()->watch(endpoint); }

void connect_in_background(Endpoint& endpoint, abi::EndpointId id) {
  setup_threads()->connect(endpoint, id);
}

}  // namespace ropewalk::transport::psm2
