// What the C API's handles point to.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/made_operators.h"
#include "comm/request.h"
#include "comm/stream_mark.h"
#include "core/error.h"
#include "core/fork.h"
#include "core/interrupt.h"

struct rwMessageWindow;

struct rwComm {
  std::unique_ptr<ropewalk::comm::Communicator> comm;
  std::string last_error;  // holds the text that rwGetLastError(comm) returned
  ropewalk::comm::MadeOperators operators;
  std::vector<std::shared_ptr<rwMessageWindow>> windows;  // also those that were freed
};

namespace ropewalk::capi {

/// A communicator that the caller must give. Not from within an interrupt check: a call of the same
/// communicator may be what asks, and would wait for itself.
///
/// For operations, which see by themselves whether it belongs to this process.
inline rwComm& checked_for_use(rwComm* comm, const char* name) {
  if (comm == nullptr) throw Error(Errc::kInvalidArgument, "{}: NULL", name);
  if (in_interrupt_check()) {
    throw Error(Errc::kInvalidUsage,
                "{}: not from within an interrupt check, or a signal's handler that it runs; end "
                "the call that waits first",
                name);
  }
  return *comm;
}

/// The same for all else.
inline rwComm& checked(rwComm* comm, const char* name) {
  rwComm& given = checked_for_use(comm, name);
  given.comm->belonging().require_here("the communicator");
  return given;
}

}  // namespace ropewalk::capi

struct rwRequest {
  ropewalk::Belonging belonging;
  std::shared_ptr<ropewalk::comm::Request> request;       // of an operation on host memory, or
  std::unique_ptr<ropewalk::comm::StreamMark> on_stream;  // a position in a stream
  std::string error;
};
