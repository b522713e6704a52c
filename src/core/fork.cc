#include "core/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <array>

#include "core/error.h"

namespace ropewalk {

std::atomic<std::uint32_t> fork_generation{0};

namespace {

std::array<std::atomic<void (*)()>, 8> child_handlers;

void in_child() {
  fork_generation.fetch_add(1, std::memory_order_relaxed);
  for (const auto& handler : child_handlers) {
    if (void (*const call)() = handler.load()) call();
  }
}

// Registered when the library is loaded, so before anything can belong to a process.
[[maybe_unused]] const int registered = pthread_atfork(nullptr, nullptr, in_child);

}  // namespace

void call_in_forked_child(void (*handler)()) {
  for (auto& entry : child_handlers) {
    void (*there)() = nullptr;
    if (entry.compare_exchange_strong(there, handler) || there == handler) return;
  }
  RW_ASSERT(false);
}

Belonging::Belonging() noexcept
    : generation_(fork_generation.load(std::memory_order_relaxed)), process_(getpid()) {}

void Belonging::refuse(const char* what) const {
  throw Error(Errc::kInvalidUsage,
              "{} belongs to process {}; this is process {}, forked from it, and cannot use it",
              what, process_, getpid());
}

}  // namespace ropewalk
