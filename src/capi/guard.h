// The edge of the C API: no exception passes it, and every error leaves its text.
#pragma once

#include <new>
#include <string>
#include <utility>

#include "core/error.h"
#include "ropewalk/ropewalk.h"

namespace ropewalk::capi {

/// A switch with no default, so that -Wswitch finds a forgotten value.
rwResult_t to_result(Errc code) noexcept;

/// Keeps the text for rwGetLastError(NULL), after the name of the entry point, and logs it.
void report(const char* entry, const std::string& text) noexcept;
const char* last_error() noexcept;

/// Runs `body` for a C entry point.
template <typename Body>
rwResult_t guarded(const char* entry, Body&& body) noexcept {
  try {
    std::forward<Body>(body)();
    return rwSuccess;
  } catch (const Error& error) {
    report(entry, error.what());
    return to_result(error.code());
  } catch (const std::bad_alloc&) {
    report(entry, "memory ran out");
    return rwSystemError;
  } catch (const std::exception& error) {
    report(entry, error.what());
  } catch (...) {
    report(entry, "unknown exception");
  }
  return rwInternalError;
}

/// A pointer that the caller must give.
template <typename T>
T& checked(T* pointer, const char* name) {
  if (pointer == nullptr) throw Error(Errc::kInvalidArgument, "{}: NULL", name);
  return *pointer;
}

/// A text for the caller to free with rwFreeText.
char* duplicate(const std::string& text);

}  // namespace ropewalk::capi
