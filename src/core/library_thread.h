// Threads that the library makes for itself, in which no code of the program runs.
#pragma once

namespace ropewalk {

inline thread_local bool in_library_thread = false;

/// Says so of the calling thread, for good. What it leaves behind, such as the GPU that CUDA's
/// runtime works on, is nobody's to miss. (Going back to GPU 0, which a new thread names without
/// having touched it, would take memory there for a context.)
inline void mark_library_thread() noexcept { in_library_thread = true; }

}  // namespace ropewalk
