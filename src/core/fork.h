// Forked children: they have the memory of their parent, and one of its threads.
#pragma once

#include <atomic>
#include <cstdint>

namespace ropewalk {

/// Calls `handler` in every forked child, in its one thread. Once for each handler; at most 8 of
/// them. It must not wait for locks, which another thread may have held.
void call_in_forked_child(void (*handler)());

/// How many forks lie between the first process and this one. For Belonging alone.
extern std::atomic<std::uint32_t> fork_generation;

/// Which process something belongs to: the one that constructed it, and none of its children.
///
/// Threads: any.
class Belonging {
 public:
  Belonging() noexcept;

  /// Whether this process is a forked child of the one that it belongs to, at any depth. One load:
  /// asking the system for the process's number at every call would cost as much as a short one.
  [[nodiscard]] bool elsewhere() const noexcept {
    return generation_ != fork_generation.load(std::memory_order_relaxed);
  }
  /// @throws Error kInvalidUsage if so; `what` begins its text
  void require_here(const char* what) const {
    if (elsewhere()) refuse(what);
  }

 private:
  [[noreturn]] void refuse(const char* what) const;

  std::uint32_t generation_;
  int process_;
};

}  // namespace ropewalk
