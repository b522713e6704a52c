#include "core/fork.h"

#include <pthread.h>
#include <unistd.h>

#include "core/error.h"

namespace ropewalk {

std::atomic<std::uint32_t> fork_generation{0};

namespace {

void in_child() { fork_generation.fetch_add(1, std::memory_order_relaxed); }

// Registered when the library is loaded, so before anything can belong to a process.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, in_child);

}  // namespace

Belonging::Belonging() noexcept
    : generation_(fork_generation.load(std::memory_order_relaxed)), process_(getpid()) {}

void Belonging::refuse(const char* what) const {
  throw Error(Errc::kInvalidUsage,
              "{} belongs to process {}; this is process {}, forked from it, and cannot use it",
              what, process_, getpid());
}

}  // namespace ropewalk
