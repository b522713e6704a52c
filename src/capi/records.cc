// rwCommCallRecords.
#include "capi/guard.h"
#include "capi/handles.h"
#include "comm/call_report.h"
#include "ropewalk/diagnostics.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::capi;  // NOLINT

extern "C" {

RW_API rwResult_t rwCommCallRecords(rwComm_t comm, char** json) {
  return guarded("rwCommCallRecords", [&] {
    // Also from within an interrupt check: no call is waited for.
    if (comm == nullptr) throw Error(Errc::kInvalidArgument, "comm: NULL");
    comm->comm->belonging().require_here("the communicator");
    checked(json, "json");
    *json = duplicate(comm::call_report(*comm->comm));
  });
}

}  // extern "C"
