#include "transport/messaging/psm2/setup_threads.h"

#include <algorithm>
#include <atomic>
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
constexpr unsigned kLookPeriod = 20;

// Threads do not survive a fork: each process has its own, and never frees them.
class Threads {
 public:
  static Threads& of_process() {
    static std::atomic<Threads*> current = nullptr;
    static std::mutex making;
    Threads* threads = current.load(std::memory_order_acquire);
    if (threads != nullptr && !threads->belonging_.elsewhere()) return *threads;
    const std::lock_guard lock(making);
    threads = current.load(std::memory_order_acquire);
    if (threads == nullptr || threads->belonging_.elsewhere()) {
      threads = new Threads;
      current.store(threads, std::memory_order_release);
    }
    return *threads;
  }

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
    std::thread(std::move(body)).detach();
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
        changed_.wait(lock, [this] { return !watched_.empty(); });
        endpoints = watched_;
        since = since_;
      }
      for (Endpoint* const endpoint : endpoints) {
        // Held by another: it is being polled.
        if (!endpoint->mutex.try_lock()) continue;
        endpoint->poll();
        if (round % kLookPeriod == 0) endpoint->look_at_sides();
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
        changed_.wait(lock, [this] { return !to_connect_.empty(); });
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
};

}  // namespace

void poll_while_in_setup(Endpoint& endpoint) { Threads::of_process().watch(endpoint); }

void connect_in_background(Endpoint& endpoint, abi::EndpointId id) {
  Threads::of_process().connect(endpoint, id);
}

}  // namespace ropewalk::transport::psm2
