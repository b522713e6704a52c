#include "core/error.h"

#include <cstring>

namespace ropewalk {

std::string_view name(Errc code) noexcept {
  switch (code) {
    case Errc::kInvalidArgument: return "invalid argument";
    case Errc::kInvalidUsage: return "invalid usage";
    case Errc::kSystem: return "system error";
    case Errc::kCuda: return "CUDA error";
    case Errc::kPeerLost: return "peer lost";
    case Errc::kTimeout: return "timeout";
    case Errc::kAborted: return "aborted";
    case Errc::kInterrupted: return "interrupted";
    case Errc::kInternal: return "internal error";
  }
  return "unknown error";
}

Error system_error(int saved_errno, std::string_view tried) {
  char buffer[128];
  // GNU strerror_r may return a static string instead of filling the buffer.
  const char* words = strerror_r(saved_errno, buffer, sizeof buffer);
  return Error(Errc::kSystem, "{}: {}", tried, words);
}

void assertion_failed(const char* condition, const char* file, int line) {
  throw Error(Errc::kInternal, "internal error: {} is false at {}:{}", condition, file, line);
}

}  // namespace ropewalk
