// Threads that the library makes for itself, in which no code of the program runs.
#pragma once

#include <utility>

namespace ropewalk {

namespace detail {
inline thread_local bool library_thread_without_gpu = false;
}  // namespace detail

/// Says so of the calling thread, before it works on a GPU.
inline void mark_library_thread() noexcept { detail::library_thread_without_gpu = true; }

/// Whether the calling thread is one of those and begins to work on a GPU only now: there is none
/// to go back to afterwards. (CUDA's runtime names GPU 0 as a new thread's, which it has not
/// touched: going back there would take memory for a context.) Once for each thread.
inline bool begins_on_its_first_gpu() noexcept {
  return std::exchange(detail::library_thread_without_gpu, false);
}

}  // namespace ropewalk
