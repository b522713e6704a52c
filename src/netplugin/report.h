// From exceptions to NCCL's result codes, and from this project's log to NCCL's.
#pragma once

#include <exception>

#include "core/error.h"
#include "netplugin/abi/common.h"

namespace ropewalk::netplugin {

/// All lines go to `logger` from here on; nullptr: to this project's log.
void log_to(abi::Logger logger) noexcept;

/// `remote_error`: whether this NCCL knows abi::kRemoteError; otherwise a lost peer is a system
/// error.
void set_remote_error_known(bool known) noexcept;

abi::Result result_of(Errc code) noexcept;

/// An error that was logged before: it is not logged again.
class KnownError : public Error {
 public:
  using Error::Error;
};

/// Logs `error`, which `call` threw, in one line.
abi::Result report(const char* call, const Error& error) noexcept;

/// For a handler of any exception: logs the current one.
abi::Result report_current(const char* call) noexcept;

/// Runs `body`; an exception becomes a logged line and a result.
template <typename Body>
abi::Result guarded(const char* call, Body&& body) noexcept {
  try {
    body();
    return abi::kSuccess;
  } catch (...) {
    return report_current(call);
  }
}

}  // namespace ropewalk::netplugin
