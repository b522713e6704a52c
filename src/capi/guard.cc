#include "capi/guard.h"

#include <cstdlib>
#include <cstring>

#include "core/log.h"

namespace ropewalk::capi {
namespace {

std::string& text_of_thread() noexcept {
  thread_local std::string text;
  return text;
}

}  // namespace

rwResult_t to_result(Errc code) noexcept {
  switch (code) {
    case Errc::kInvalidArgument: return rwInvalidArgument;
    case Errc::kInvalidUsage: return rwInvalidUsage;
    case Errc::kSystem: return rwSystemError;
    case Errc::kCuda: return rwUnhandledCudaError;
    case Errc::kPeerLost: return rwRemoteError;
    case Errc::kTimeout: return rwTimeout;
    case Errc::kAborted: return rwInvalidUsage;
    case Errc::kInterrupted: return rwInterrupted;
    case Errc::kInternal: return rwInternalError;
  }
  return rwInternalError;
}

void report(const char* entry, const std::string& text) noexcept {
  log::info(log::kCall, "{}: {}", entry, text);
  try {
    text_of_thread() = fmt::format("{}: {}", entry, text);
  } catch (...) {
  }
}

const char* last_error() noexcept { return text_of_thread().c_str(); }

char* duplicate(const std::string& text) {
  auto* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) throw Error(Errc::kSystem, "no memory for {} bytes of text", text.size());
  std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

}  // namespace ropewalk::capi
