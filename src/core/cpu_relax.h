// What a thread does between two looks at memory that another one will write.
#pragma once

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace ropewalk {

/// Leaves the core's units to its other hardware thread for some ten nanoseconds.
inline void cpu_relax() noexcept {
#if defined(__x86_64__)
  _mm_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

}  // namespace ropewalk
