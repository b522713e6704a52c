// What tests of several processes, or of errors, have in common.
#pragma once

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <functional>
#include <string>

#include "core/error.h"

namespace ropewalk::testing {

/// The result of a body if the system does not permit the test.
constexpr int kSkipped = 77;

/// Runs `body` in a forked child and returns its result, 128 and the signal's number when one ended
/// it, 99 after an exception, whose words go to standard error, or 98 where an expectation failed
/// in the child alone, which this process would not know of.
inline int in_child(const std::function<int()>& body) {
  const bool failed_before = ::testing::Test::HasFailure();
  const pid_t pid = fork();
  if (pid == 0) {
    int status = 99;
    try {
      status = body();
      if (status == 0 && ::testing::Test::HasFailure() && !failed_before) status = 98;
    } catch (const std::exception& error) {
      fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(status);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

/// The words of the error that `body` throws, which must have the code `expected`.
inline std::string message_of(const std::function<void()>& body, Errc expected) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

/// The words of the error that `body` throws, which must be kInvalidArgument; empty if it throws
/// none.
inline std::string complaint(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument) << error.what();
    return error.what();
  }
  return {};
}

}  // namespace ropewalk::testing
