// The edge of NCCL's API: no exception passes it, errors become NCCL's numbers and leave a text.
#pragma once

#include <string>
#include <utility>

#include "capi/nccl/nccl_api.h"
#include "core/error.h"

// Defines one function of the API under both of its names. The one without `p` is weak, so that a
// tool may define its own.
#define RW_NCCL_API(result, name, ...)                                      \
  extern "C" __attribute__((visibility("default"), weak, alias("p" #name))) \
  result name(__VA_ARGS__);                                                 \
  extern "C" __attribute__((visibility("default"))) result p##name(__VA_ARGS__)

namespace ropewalk::nccl {

/// A switch with no default, so that -Wswitch finds a forgotten value. A timeout is a lost peer to
/// a program of 2.28, which has no number for it.
ncclResult_t to_nccl(Errc code) noexcept;

/// Reads NCCL_DEBUG and related variables before anything may log. Every entry point calls it.
void read_environment() noexcept;
/// Reads them again.
void reread_environment() noexcept;

/// Keeps the text for ncclGetLastError and logs it at level WARN, as NCCL does.
void report(const char* entry, const std::string& text) noexcept;
/// The process's last text; valid until the calling thread asks again.
const char* last_error() noexcept;

/// The line that NCCL_DEBUG=VERSION asks for.
void log_version() noexcept;

/// Reports that `entry` is not offered, and why.
/// @return ncclInvalidUsage
ncclResult_t not_offered(const char* entry, const char* reason) noexcept;

/// The exception being handled, reported.
ncclResult_t report_current(const char* entry) noexcept;

/// Runs `body`, which returns a result or nothing, for an entry point. An error inside a group is
/// also remembered for the group's end.
template <typename Body>
ncclResult_t guarded(const char* entry, Body&& body) noexcept {
  read_environment();
  try {
    if constexpr (std::is_same_v<decltype(body()), void>) {
      std::forward<Body>(body)();
      return ncclSuccess;
    } else {
      return std::forward<Body>(body)();
    }
  } catch (...) {
    return report_current(entry);
  }
}

/// A pointer that the caller must give.
template <typename T>
T& checked(T* pointer, const char* name) {
  if (pointer == nullptr) throw Error(Errc::kInvalidArgument, "{}: NULL", name);
  return *pointer;
}

}  // namespace ropewalk::nccl
