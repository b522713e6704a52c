#include "core/file_descriptor.h"

#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cstddef>

#include "core/mutex.h"

namespace ropewalk {
namespace {

// The descriptors that a forked child closes, a bit for each. Fork handlers are process-wide, and
// so must be the set that they work on. It has neither constructor, destructor nor other memory:
// descriptors may be closed while static objects are being destroyed, and a plugin is unloaded.
constexpr std::size_t kBits = 64;
constexpr std::size_t kMost = std::size_t{1} << 20U;  // what systems allow a process at most
constinit Mutex mutex;
constinit std::array<std::uint64_t, kMost / kBits> closed_in_child RW_GUARDED_BY(mutex){};

std::uint64_t bit_of(std::size_t fd) noexcept { return std::uint64_t{1} << (fd % kBits); }

// Locked in one function and unlocked in another, which the analysis does not follow.
void before_fork() RW_NO_THREAD_ANALYSIS { mutex.lock(); }
void in_parent() RW_NO_THREAD_ANALYSIS { mutex.unlock(); }
void in_forked_child() RW_NO_THREAD_ANALYSIS {
  for (std::size_t word = 0; word < closed_in_child.size(); ++word) {
    for (; closed_in_child[word] != 0; closed_in_child[word] &= closed_in_child[word] - 1) {
      ::close(static_cast<int>(word * kBits) + std::countr_zero(closed_in_child[word]));
    }
  }
  mutex.unlock();
}

}  // namespace

FileDescriptor::FileDescriptor(int fd, InForkedChild in_child) : fd_(fd), in_child_(in_child) {
  if (fd_ < 0 || in_child_ == InForkedChild::kKept) return;
  const auto bit = static_cast<std::size_t>(fd_);
  if (bit >= kMost) {
    in_child_ = InForkedChild::kKept;
    return;
  }
  static const int handled = pthread_atfork(before_fork, in_parent, in_forked_child);
  (void)handled;
  const Lock lock(mutex);
  closed_in_child[bit / kBits] |= bit_of(bit);
}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
    in_child_ = other.in_child_;
  }
  return *this;
}

void FileDescriptor::close() noexcept {
  if (fd_ < 0) return;
  const int fd = std::exchange(fd_, -1);
  if (in_child_ == InForkedChild::kKept) {
    ::close(fd);
    return;
  }
  const auto bit = static_cast<std::size_t>(fd);
  const Lock lock(mutex);
  // Not in the set: this is a forked child, and the number may be another file's by now.
  if ((closed_in_child[bit / kBits] & bit_of(bit)) == 0) return;
  closed_in_child[bit / kBits] &= ~bit_of(bit);
  ::close(fd);
}

bool raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= limit.rlim_max) return false;
  limit.rlim_cur = limit.rlim_max;
  return setrlimit(RLIMIT_NOFILE, &limit) == 0;
}

}  // namespace ropewalk
