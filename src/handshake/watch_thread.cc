#include "handshake/watch_thread.h"

#include <utility>

namespace ropewalk::handshake {
namespace {

// Waits that end by themselves are mostly over before the second look.
constexpr std::chrono::milliseconds kWordsPeriod{5};
constexpr std::chrono::microseconds kReleasePause{50};

}  // namespace

WatchThread::WatchThread(Look look) : look_(std::move(look)), thread_([this] { run(); }) {}

WatchThread::~WatchThread() {
  ends_ = true;
  thread_.join();
}

void WatchThread::run() {
  while (!ends_) {
    if (look_(Clock::now(), std::chrono::nanoseconds(timeout_ns_.load()))) {
      std::this_thread::sleep_for(kReleasePause);
    } else {
      std::this_thread::sleep_for(kWordsPeriod);
    }
  }
}

}  // namespace ropewalk::handshake
