// How the calls of libmp's API fail: by a number and a text.
#pragma once

#include <ropewalk/ropewalk.h>

#include <cerrno>
#include <exception>
#include <string>
#include <utility>

namespace ropewalk::mp {

/// What an entry point returns, and why.
class Failure : public std::exception {
 public:
  Failure(int code, std::string text) : code_(code), text_(std::move(text)) {}
  /// MP_FAILURE, or a value of errno when nothing was done.
  [[nodiscard]] int code() const noexcept { return code_; }
  [[nodiscard]] const char* what() const noexcept override { return text_.c_str(); }

 private:
  int code_;
  std::string text_;
};

/// @throws Failure EINVAL
inline void require(bool right, const char* text) {
  if (!right) throw Failure(EINVAL, text);
}

/// A result of Ropewalk's API. @throws Failure with the library's text
void check(rwResult_t result);

}  // namespace ropewalk::mp
