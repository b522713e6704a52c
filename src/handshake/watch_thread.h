// The thread that ends waits of a rank's streams which will not end by themselves: memory
// operations of streams have no deadline. It looks at the words every few milliseconds, and calls
// no function of CUDA.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <thread>

namespace ropewalk::handshake {

/// Threads: any.
class WatchThread {
 public:
  using Clock = std::chrono::steady_clock;
  /// @param limit of a wait; zero is for ever
  /// @return whether to look again at once: streams still hold calls of a rank that stops
  using Look = std::function<bool(Clock::time_point now, std::chrono::nanoseconds limit)>;

  explicit WatchThread(Look look);
  ~WatchThread();
  WatchThread(const WatchThread&) = delete;
  WatchThread& operator=(const WatchThread&) = delete;

  void set_timeout(std::chrono::nanoseconds limit) noexcept { timeout_ns_ = limit.count(); }

 private:
  void run();

  const Look look_;
  std::atomic<std::int64_t> timeout_ns_{0};
  std::atomic<bool> ends_{false};
  std::thread thread_;  // last: it uses the others
};

}  // namespace ropewalk::handshake
