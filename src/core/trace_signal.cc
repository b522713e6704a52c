#include "core/trace_signal.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>

#include "core/log.h"
#include "core/mutex.h"

namespace ropewalk::trace_signal {
namespace {

// For the handler. It stays open for the rest of the process, as the handler stays.
std::atomic<int> event{-1};
static_assert(std::atomic<int>::is_always_lock_free);

// Only what is safe in a handler of a signal.
void handle(int /*number*/) {
  const int saved = errno;
  const std::uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = ::write(event.load(), &one, sizeof one);
  errno = saved;
}

}  // namespace

int watch(std::string_view name) noexcept {
  static Mutex mutex;
  const int number = name == "USR1" ? SIGUSR1 : name == "USR2" ? SIGUSR2 : 0;
  if (number == 0) return -1;
  const Lock lock(mutex);
  struct sigaction before {};
  if (sigaction(number, nullptr, &before) != 0) return -1;
  const bool ours = (before.sa_flags & SA_SIGINFO) == 0 && before.sa_handler == handle;
  if (!ours && ((before.sa_flags & SA_SIGINFO) != 0 || before.sa_handler != SIG_DFL)) {
    log::warn("setting ROPEWALK_TRACE_SIGNAL: the program has a handler for SIG{} already", name);
    return -1;
  }
  if (event.load() < 0) event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  if (event.load() < 0) {
    log::warn("setting ROPEWALK_TRACE_SIGNAL: eventfd: {}", std::strerror(errno));
    return -1;
  }
  if (!ours) {
    struct sigaction action {};
    action.sa_handler = handle;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(number, &action, nullptr) != 0) return -1;
  }
  return event;
}

bool take(int fd) noexcept {
  std::uint64_t count = 0;
  return read(fd, &count, sizeof count) == sizeof count && count != 0;
}

}  // namespace ropewalk::trace_signal
