#include "transport/window/cuda_ipc/worker.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <exception>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::transport::window {
namespace {

template <typename Body>
void guarded(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    log::warn("{}", error.what());
  }
}

}  // namespace

Worker::~Worker() {
  bool started = false;
  {
    const Lock lock(mutex_);
    ending_ = true;
    started = started_;
  }
  if (!started) return;
  wake();
  thread_.join();
}

void Worker::start() {
  if (started_) return;
  bell_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!bell_) throw system_error(errno, "eventfd");
  thread_ = std::thread([this] { loop(); });
  started_ = true;
}

void Worker::wake() noexcept {
  const std::uint64_t one = 1;
  (void)!write(bell_.get(), &one, sizeof one);
}

void Worker::run(std::function<void()> errand) {
  {
    const Lock lock(mutex_);
    start();
    errands_.push_back(std::move(errand));
  }
  wake();
}

void Worker::watch(int descriptor, std::function<void()> readable) {
  {
    const Lock lock(mutex_);
    start();
    watched_[descriptor] = std::make_shared<std::function<void()>>(std::move(readable));
  }
  wake();
}

void Worker::unwatch(int descriptor) noexcept {
  Lock lock(mutex_);
  watched_.erase(descriptor);
  lock.wait(served_changed_,
            [&]() RW_REQUIRES(mutex_) { return descriptor < 0 || served_ != descriptor; });
}

void Worker::loop() {
  for (;;) {
    run_errands();
    std::vector<pollfd> entries = {{bell_.get(), POLLIN, 0}};
    std::vector<std::shared_ptr<std::function<void()>>> readable = {nullptr};
    {
      const Lock lock(mutex_);
      if (ending_ && errands_.empty()) return;
      for (const auto& [descriptor, function] : watched_) {
        entries.push_back({descriptor, POLLIN | POLLRDHUP, 0});
        readable.push_back(function);
      }
    }
    if (poll(entries.data(), entries.size(), -1) < 0) continue;
    std::uint64_t count = 0;
    (void)!read(bell_.get(), &count, sizeof count);
    for (std::size_t i = 1; i < entries.size(); ++i) {
      if (entries[i].revents == 0) continue;
      const bool ended = (entries[i].revents & ~POLLIN) != 0;
      serve(entries[i].fd, readable[i], ended);
    }
  }
}

void Worker::run_errands() {
  for (;;) {
    std::function<void()> errand;
    {
      const Lock lock(mutex_);
      if (errands_.empty()) return;
      errand = std::move(errands_.front());
      errands_.pop_front();
    }
    guarded(errand);
  }
}

void Worker::serve(int descriptor, const std::shared_ptr<std::function<void()>>& readable,
                   bool ended) {
  {
    const Lock lock(mutex_);
    const auto found = watched_.find(descriptor);
    if (found == watched_.end() || found->second != readable) return;  // unwatched meanwhile
    if (ended) watched_.erase(found);
    served_ = descriptor;
  }
  guarded(*readable);
  {
    const Lock lock(mutex_);
    served_ = -1;
  }
  served_changed_.notify_all();
}

}  // namespace ropewalk::transport::window
