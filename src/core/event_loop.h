// A thread that waits for descriptors (epoll), timers and posted tasks.
//
// Everything marked "loop thread" is called from handlers, timers and tasks only; objects that live
// there need no locks among themselves.
#pragma once

#include <sys/epoll.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/file_descriptor.h"
#include "core/mutex.h"

namespace ropewalk {

/// The thread runs while objects are kept (keep()) or tasks are left. Signals are blocked in it:
/// they are the application's.
class EventLoop {
 public:
  using Clock = std::chrono::steady_clock;
  using Task = std::function<void()>;
  using Handler = std::function<void(std::uint32_t events)>;
  /// Of a timer; never 0.
  using TimerKey = std::pair<Clock::time_point, std::uint64_t>;

  /// `name` is in messages, and in the thread's name after "rw-"; at most 12 characters.
  explicit EventLoop(std::string name);
  /// As stop().
  ~EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;

  /// Runs `task` on the loop thread, which is started if it does not run. Any thread.
  void post(Task task);

  /// Destroys the kept objects on the loop thread, and ends the thread. Not to be called from it;
  /// no use after it.
  void stop();

  // ---- loop thread ----------------------------------------------------------------------

  /// Watches a descriptor.
  /// @return the key for change() and forget()
  std::uint64_t add(int fd, std::uint32_t events, Handler handler);
  void change(std::uint64_t key, int fd, std::uint32_t events);
  /// After this the handler is not called any more.
  void forget(std::uint64_t key, int fd);

  TimerKey at(Clock::time_point when, Task task);
  TimerKey after(Clock::duration delay, Task task) {
    return at(Clock::now() + delay, std::move(task));
  }
  void cancel(const TimerKey& timer);

  /// Runs `task` after the current events.
  void defer(Task task) { deferred_.push_back(std::move(task)); }

  /// Keeps an object, and the thread, alive until drop().
  void keep(std::shared_ptr<void> object);
  void drop(const void* object);

 private:
  void run() noexcept;
  [[nodiscard]] int wait_ms() const;
  void guarded(const Task& task) const noexcept;
  void run_deferred();
  void run_timers();

  const std::string name_;
  FileDescriptor epoll_;
  FileDescriptor wake_;

  Mutex mutex_;
  std::vector<Task> posted_ RW_GUARDED_BY(mutex_);
  bool running_ RW_GUARDED_BY(mutex_) = false;
  bool stopping_ RW_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // made and detached holding mutex_; joined once no other thread is left

  // Loop thread only.
  std::uint64_t next_key_ = 1;
  std::unordered_map<std::uint64_t, std::shared_ptr<Handler>> handlers_;
  std::map<TimerKey, Task> timers_;
  std::vector<Task> deferred_;
  std::unordered_map<const void*, std::shared_ptr<void>> kept_;
};

}  // namespace ropewalk
