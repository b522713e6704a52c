// The service thread of a Context: an epoll loop with timers and posted tasks.
//
// Everything marked "service thread" is called from handlers, timers and tasks only; the protocol
// objects (connection.h, listener.h, root.h, member.h) live there and need no locks among
// themselves.
#pragma once

#include <sys/epoll.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "bootstrap/socket.h"
#include "core/mutex.h"

namespace ropewalk::bootstrap {

class Service {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void()>;
  using Handler = std::function<void(std::uint32_t events)>;
  /// Of a timer; never 0.
  using TimerKey = std::pair<Clock::time_point, std::uint64_t>;

  Service();
  ~Service();
  Service(const Service&) = delete;
  Service& operator=(const Service&) = delete;

  /// Runs `task` on the service thread, which is started if it does not run. Any thread.
  void post(Task task);

  /// Random, the same for all ranks served here. Any thread.
  [[nodiscard]] const std::array<unsigned char, 16>& token() const noexcept { return token_; }

  // ---- service thread -------------------------------------------------------------------

  /// Watches a descriptor. @return the key for change() and forget()
  std::uint64_t add(int fd, std::uint32_t events, Handler handler);
  void change(std::uint64_t key, int fd, std::uint32_t events);
  /// After this the handler is not called any more.
  void forget(std::uint64_t key, int fd);

  TimerKey at(Clock::time_point when, Task task);
  TimerKey after(Clock::duration delay, Task task) {
    return at(Clock::now() + delay, std::move(task));
  }
  void cancel(const TimerKey& timer);

  /// Runs `task` after the events at hand.
  void defer(Task task) { deferred_.push_back(std::move(task)); }

  /// Keeps an object, and the thread, alive until drop(). What is kept when the Service is
  /// destroyed is destroyed on the service thread.
  void keep(std::shared_ptr<void> object);
  void drop(const void* object);

 private:
  void run() noexcept;
  [[nodiscard]] int wait_ms() const;
  static void guarded(const Task& task) noexcept;
  void run_deferred();
  void run_timers();

  std::array<unsigned char, 16> token_{};
  Socket epoll_;
  Socket wake_;

  Mutex mutex_;
  std::vector<Task> posted_ RW_GUARDED_BY(mutex_);
  bool running_ RW_GUARDED_BY(mutex_) = false;
  bool stopping_ RW_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // made and detached holding mutex_; joined once no other thread is left

  // Service thread only.
  std::uint64_t next_key_ = 1;
  std::unordered_map<std::uint64_t, std::shared_ptr<Handler>> handlers_;
  std::map<TimerKey, Task> timers_;
  std::vector<Task> deferred_;
  std::unordered_map<const void*, std::shared_ptr<void>> kept_;
};

}  // namespace ropewalk::bootstrap
