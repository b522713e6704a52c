// Which sanitizer is active; GCC and Clang have different macros for it.
#pragma once

#if defined(__has_feature)
#define RW_HAS_FEATURE(feature) __has_feature(feature)
#else
#define RW_HAS_FEATURE(feature) 0
#endif

namespace ropewalk::testing {

#if defined(__SANITIZE_THREAD__) || RW_HAS_FEATURE(thread_sanitizer)
inline constexpr bool kThreadSanitizer = true;
#else
inline constexpr bool kThreadSanitizer = false;
#endif

#if defined(__SANITIZE_ADDRESS__) || RW_HAS_FEATURE(address_sanitizer)
inline constexpr bool kAddressSanitizer = true;
#else
inline constexpr bool kAddressSanitizer = false;
#endif

#undef RW_HAS_FEATURE

}  // namespace ropewalk::testing
