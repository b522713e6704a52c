// Errors: one exception type with a code, thrown on failure.
//
// What is expected (no room yet, not arrived yet) is a return value, never an Error. A broken
// invariant is RW_ASSERT, which stays on in release builds outside hot loops.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace ropewalk {

/// The kind of failure, in terms that a caller can act on. The C API maps each value to an
/// rwResult_t.
enum class Errc {
  kInvalidArgument,  ///< a value that can never be right here
  kInvalidUsage,     ///< a right value at the wrong time or in the wrong combination
  kSystem,           ///< the operating system said no; the message carries its words
  kCuda,             ///< the CUDA runtime or driver said no
  kPeerLost,         ///< another rank died, left, or aborted
  kTimeout,          ///< a deadline passed
  kAborted,          ///< this communicator was aborted by its owner
  kInterrupted,      ///< the program ended a wait (core/interrupt.h)
  kInternal,         ///< a broken invariant of Ropewalk
};

std::string_view name(Errc code) noexcept;

class Error : public std::runtime_error {
 public:
  Error(Errc code, const std::string& what) : std::runtime_error(what), code_(code) {}

  /// Formats the message with fmt: `throw Error(Errc::kPeerLost, "rank {} died", rank)`.
  template <typename First, typename... Rest>
  Error(Errc code, fmt::format_string<First, Rest...> format, First&& first, Rest&&... rest)
      : Error(code, fmt::format(format, std::forward<First>(first), std::forward<Rest>(rest)...)) {}

  [[nodiscard]] Errc code() const noexcept { return code_; }

 private:
  Errc code_;
};

/// An Error of kSystem whose message ends with the system's words for `saved_errno`.
Error system_error(int saved_errno, std::string_view tried);

[[noreturn]] void assertion_failed(const char* condition, const char* file, int line);

}  // namespace ropewalk

// Throws Error(kInternal); the message names the condition, the file and the line.
#define RW_ASSERT(condition) \
  ((condition) ? void(0) : ::ropewalk::assertion_failed(#condition, __FILE__, __LINE__))
