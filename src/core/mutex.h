// A mutex with annotations of what it guards, which Clang checks (-Wthread-safety).
//
//   Mutex mutex_;
//   int count_ RW_GUARDED_BY(mutex_) = 0;   // every use outside a Lock is an error
//   void grow() RW_REQUIRES(mutex_);        // callers hold it
//
// The annotations are those of Clang's Thread Safety Analysis; other compilers see nothing. The
// standard's own mutex and locks carry none with libstdc++, hence these thin forms of them.
#pragma once

#include <condition_variable>
#include <mutex>
#include <utility>

#if defined(__clang__)
#define RW_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define RW_THREAD_ANNOTATION(x)
#endif
#define RW_GUARDED_BY(mutex) RW_THREAD_ANNOTATION(guarded_by(mutex))
#define RW_REQUIRES(mutex) RW_THREAD_ANNOTATION(requires_capability(mutex))
#define RW_ACQUIRED_BEFORE(mutex) RW_THREAD_ANNOTATION(acquired_before(mutex))
#define RW_NO_THREAD_ANALYSIS RW_THREAD_ANNOTATION(no_thread_safety_analysis)

namespace ropewalk {

/// A std::mutex. It may be locked by Lock, or where that does not fit by the standard's locks,
/// which the analysis does not see.
class RW_THREAD_ANNOTATION(capability("mutex")) Mutex {
 public:
  Mutex() = default;
  ~Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;
  void lock() RW_THREAD_ANNOTATION(acquire_capability()) { mutex_.lock(); }
  void unlock() RW_THREAD_ANNOTATION(release_capability()) { mutex_.unlock(); }

 private:
  friend class Lock;
  std::mutex mutex_;
};

/// Holds a mutex from here to the end of the block.
///
/// A predicate of wait() reads what the mutex guards and says so:
/// `lock.wait(changed_, [this]() RW_REQUIRES(mutex_) { return done_; })`.
class RW_THREAD_ANNOTATION(scoped_lockable) Lock {
 public:
  explicit Lock(Mutex& mutex) RW_THREAD_ANNOTATION(acquire_capability(mutex))
      : lock_(mutex.mutex_) {}
  // Not defaulted: the annotation belongs to a body.
  ~Lock() RW_THREAD_ANNOTATION(release_capability()) {}  // NOLINT(modernize-use-equals-default)
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;

  void unlock() RW_THREAD_ANNOTATION(release_capability()) { lock_.unlock(); }
  void lock() RW_THREAD_ANNOTATION(acquire_capability()) { lock_.lock(); }

  /// Gives the mutex up while it waits, as std::condition_variable does.
  template <typename Predicate>
  void wait(std::condition_variable& changed, Predicate done) {
    changed.wait(lock_, std::move(done));
  }
  /// The same until `deadline`; meanwhile `between` is called every `period`, with the mutex given
  /// up, which stays so when it throws.
  /// @return false if the deadline passed first
  template <typename TimePoint, typename Predicate, typename Between>
  bool wait_until(std::condition_variable& changed, const TimePoint& deadline, Predicate done,
                  typename TimePoint::duration period, Between between) {
    for (;;) {
      const TimePoint now = TimePoint::clock::now();
      const TimePoint next = deadline - now > period ? now + period : deadline;
      if (changed.wait_until(lock_, next, done)) return true;
      if (next == deadline) return false;
      lock_.unlock();
      between();
      lock_.lock();
    }
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

}  // namespace ropewalk
