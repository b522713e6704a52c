// Groups.
#include "capi/nccl/group.h"
#include "capi/nccl/guard.h"

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::nccl;  // NOLINT

RW_NCCL_API(ncclResult_t, ncclGroupStart) {
  return guarded("ncclGroupStart", [] { Group::of_thread().start(); });
}

RW_NCCL_API(ncclResult_t, ncclGroupEnd) {
  return guarded("ncclGroupEnd", [] { return Group::of_thread().end(); });
}

// Starts nothing. The time stays undefined: no estimate is better than a wrong one.
RW_NCCL_API(ncclResult_t, ncclGroupSimulateEnd, ncclSimInfo_t* info) {
  return guarded("ncclGroupSimulateEnd", [&] {
    const ncclResult_t result = Group::of_thread().forget();
    if (info == nullptr) return result;
    if (info->magic != kNcclSimMagic || info->size < sizeof(ncclSimInfo_t)) {
      throw Error(Errc::kInvalidArgument, "simInfo: not made by NCCL_SIM_INFO_INITIALIZER");
    }
    if (result == ncclSuccess) info->estimatedTime = kNcclUndefFloat;
    return result;
  });
}
