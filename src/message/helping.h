// A thread that waits for what was started with a request makes progress itself: it sees the end
// some microseconds sooner than the messenger's thread, which takes naps, would tell it.
#pragma once

#include <chrono>
#include <functional>
#include <mutex>

namespace ropewalk::message {

class Messenger;

/// Shared by a messenger and the requests of what it started; outlives it. Threads: any.
class Helping {
 public:
  explicit Helping(Messenger& messenger) : messenger_(&messenger) {}

  /// Makes progress until `done`, which any thread may be asked, or until `last`, but at least
  /// once. Returns at once while another thread does so, and when the messenger has ended.
  void until(const std::function<bool()>& done, std::chrono::steady_clock::time_point last);
  /// The messenger ends. Waits for a thread in until(): all that was started must be done.
  void end();

 private:
  std::mutex mutex_;
  Messenger* messenger_;  // guarded by mutex_, which is also tried
};

}  // namespace ropewalk::message
