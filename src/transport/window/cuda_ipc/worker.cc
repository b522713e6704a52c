#include "transport/window/cuda_ipc/worker.h"

#include <exception>
#include <utility>

#include "core/log.h"

namespace ropewalk::transport::window {

Worker::~Worker() {
  bool started = false;
  {
    const Lock lock(mutex_);
    ending_ = true;
    started = started_;
  }
  changed_.notify_one();
  if (started) thread_.join();
}

void Worker::run(std::function<void()> errand) {
  {
    const Lock lock(mutex_);
    errands_.push_back(std::move(errand));
    if (!started_) {
      started_ = true;
      thread_ = std::thread([this] { loop(); });
    }
  }
  changed_.notify_one();
}

void Worker::loop() {
  for (;;) {
    std::function<void()> errand;
    {
      Lock lock(mutex_);
      lock.wait(changed_, [this]() RW_REQUIRES(mutex_) { return ending_ || !errands_.empty(); });
      if (errands_.empty()) return;
      errand = std::move(errands_.front());
      errands_.pop_front();
    }
    try {
      errand();
    } catch (const std::exception& error) {
      log::warn("{}", error.what());
    }
  }
}

}  // namespace ropewalk::transport::window
