#include "core/event_loop.h"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk {

EventLoop::EventLoop(std::string name) : name_(std::move(name)) {
  // A forked child, which has no such thread, must not share these with its parent.
  constexpr auto kInChild = FileDescriptor::InForkedChild::kClosed;
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC), kInChild);
  if (!epoll_) throw system_error(errno, "epoll_create1");
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), kInChild);
  if (!wake_) throw system_error(errno, "eventfd");
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = 0;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, wake_.get(), &event) != 0) {
    throw system_error(errno, "epoll_ctl");
  }
}

EventLoop::~EventLoop() { stop(); }

void EventLoop::stop() {
  {
    const Lock lock(mutex_);
    stopping_ = true;
    const std::uint64_t one = 1;
    if (running_) (void)!::write(wake_.get(), &one, sizeof one);
  }
  if (thread_.joinable()) thread_.join();
}

void EventLoop::post(Task task) {
  const Lock lock(mutex_);
  posted_.push_back(std::move(task));
  if (running_) {
    const std::uint64_t one = 1;
    // The counter cannot overflow: EAGAIN only when the thread is awake anyway.
    if (posted_.size() == 1) (void)!::write(wake_.get(), &one, sizeof one);
    return;
  }
  // Signals are the application's; its handlers must not run here.
  sigset_t all{};
  sigset_t before{};
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  try {
    running_ = true;
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    running_ = false;
    posted_.pop_back();
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(Errc::kSystem, "cannot start the {} thread: {}", name_, error.what());
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

std::uint64_t EventLoop::add(int fd, std::uint32_t events, Handler handler) {
  const std::uint64_t key = next_key_++;
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw system_error(errno, "epoll_ctl");
  }
  handlers_.emplace(key, std::make_shared<Handler>(std::move(handler)));
  return key;
}

void EventLoop::change(std::uint64_t key, int fd, std::uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = key;
  if (epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, fd, &event) != 0) {
    throw system_error(errno, "epoll_ctl");
  }
}

void EventLoop::forget(std::uint64_t key, int fd) {
  handlers_.erase(key);
  epoll_event event{};
  (void)epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, &event);
}

EventLoop::TimerKey EventLoop::at(Clock::time_point when, Task task) {
  const TimerKey key(when, next_key_++);
  timers_.emplace(key, std::move(task));
  return key;
}

void EventLoop::cancel(const TimerKey& timer) { timers_.erase(timer); }

void EventLoop::keep(std::shared_ptr<void> object) {
  const void* key = object.get();
  kept_.emplace(key, std::move(object));
}

void EventLoop::drop(const void* object) {
  const auto found = kept_.find(object);
  if (found == kept_.end()) return;
  // Destroyed later, so that an object may drop itself from one of its own functions; forgotten at
  // once, for another object may soon have its address.
  defer([gone = std::move(found->second)] {});
  kept_.erase(found);
}

int EventLoop::wait_ms() const {
  if (timers_.empty()) return -1;
  const auto left = timers_.begin()->first.first - Clock::now();
  if (left <= Clock::duration::zero()) return 0;
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(std::min<std::int64_t>(ms, 60'000));
}

// One object's failure must not affect the events of others. Handlers deal with the errors of their
// connections; exceptions here are lack of memory or descriptors, or a defect.
void EventLoop::guarded(const Task& task) const noexcept {
  try {
    task();
  } catch (const std::exception& error) {
    log::warn("{} thread: {}", name_, error.what());
  }
}

void EventLoop::run_deferred() {
  while (!deferred_.empty()) {
    std::vector<Task> tasks;
    tasks.swap(deferred_);
    for (const Task& task : tasks) guarded(task);
  }
}

void EventLoop::run_timers() {
  // Only timers that were due at the start: a timer that sets itself again must not starve sockets.
  const auto now = Clock::now();
  while (!timers_.empty() && timers_.begin()->first.first <= now) {
    const Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    guarded(task);
  }
}

void EventLoop::run() noexcept {
  pthread_setname_np(pthread_self(), ("rw-" + name_).c_str());
  std::array<epoll_event, 128> events{};
  for (;;) {
    std::vector<Task> tasks;
    bool stopping = false;
    {
      const Lock lock(mutex_);
      tasks.swap(posted_);
      stopping = stopping_;
      if (tasks.empty() && (stopping || kept_.empty())) {
        handlers_.clear();
        timers_.clear();
        kept_.clear();
        deferred_.clear();
        running_ = false;
        // Nobody may ever come to join it; stop() joins when it asked for the end.
        if (!stopping) thread_.detach();
        return;
      }
    }
    for (const Task& task : tasks) guarded(task);
    run_deferred();
    run_timers();
    run_deferred();
    // The event that announced the end may have been read with an earlier one: do not wait for it.
    if (stopping || kept_.empty()) continue;
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms());
    for (int i = 0; i < count; ++i) {
      const epoll_event& event = events[static_cast<std::size_t>(i)];
      const std::uint64_t key = event.data.u64;  // a copy: the event is packed, its parts unaligned
      if (key == 0) {
        std::uint64_t value = 0;
        (void)!::read(wake_.get(), &value, sizeof value);
        continue;
      }
      const auto found = handlers_.find(key);
      if (found == handlers_.end()) continue;  // forgotten by an earlier event of this batch
      const std::shared_ptr<Handler> handler = found->second;
      guarded([&] { (*handler)(event.events); });
    }
    run_deferred();
  }
}

}  // namespace ropewalk
