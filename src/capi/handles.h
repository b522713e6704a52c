// What the C API's handles point to.
#pragma once

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/made_operators.h"
#include "comm/request.h"
#include "comm/stream_mark.h"

struct rwComm {
  std::unique_ptr<ropewalk::comm::Communicator> comm;
  std::string last_error;  // holds the text that rwGetLastError(comm) returned
  ropewalk::comm::MadeOperators operators;
};

struct rwRequest {
  std::shared_ptr<ropewalk::comm::Request> request;       // of an operation on host memory, or
  std::unique_ptr<ropewalk::comm::StreamMark> on_stream;  // a place in a stream
  std::string error;
};
