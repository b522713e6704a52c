// Functions that Ropewalk does not offer: they exist, so that every program that names them loads,
// and say so. Of 2.28: nccl.h and the host part of the device API (nccl_device/); of later
// versions: what nccl.h of 2.32 adds.
//
// Their arguments are not looked at, so none are named: the calling conventions of Linux (System V
// on x86-64, AAPCS64 on arm64) let a function ignore what it was passed.
#include "capi/nccl/guard.h"

using namespace ropewalk::nccl;  // NOLINT: this file is the edge

#define RW_NCCL_NOT_OFFERED(name) \
  RW_NCCL_API(ncclResult_t, name) { return not_offered(#name); }

// Declared in nccl_api.h with its arguments, as part of nccl.h of 2.28.
RW_NCCL_API(ncclResult_t, ncclCommRevoke, ncclComm_t /*comm*/, int /*flags*/) {
  return not_offered("ncclCommRevoke");
}

RW_NCCL_NOT_OFFERED(ncclDevCommCreate)
RW_NCCL_NOT_OFFERED(ncclDevCommDestroy)
RW_NCCL_NOT_OFFERED(ncclGinBarrierCreateRequirement)
RW_NCCL_NOT_OFFERED(ncclLsaBarrierCreateRequirement)
RW_NCCL_NOT_OFFERED(ncclLLA2ACreateRequirement)

RW_NCCL_NOT_OFFERED(ncclCommGetUniqueId)
RW_NCCL_NOT_OFFERED(ncclCommGrow)
RW_NCCL_NOT_OFFERED(ncclCommSuspend)
RW_NCCL_NOT_OFFERED(ncclCommResume)
RW_NCCL_NOT_OFFERED(ncclCommMemStats)
RW_NCCL_NOT_OFFERED(ncclPutSignal)
RW_NCCL_NOT_OFFERED(ncclSignal)
RW_NCCL_NOT_OFFERED(ncclWaitSignal)

// Those of the device API that return no result.
RW_NCCL_API(int, ncclLLA2ACalcSlots) {
  not_offered("ncclLLA2ACalcSlots");
  return 0;
}
RW_NCCL_API(int, ncclTeamRankToWorld) {
  not_offered("ncclTeamRankToWorld");
  return -1;
}
RW_NCCL_API(int, ncclTeamRankToLsa) {
  not_offered("ncclTeamRankToLsa");
  return -1;
}
RW_NCCL_API(ncclTeam_t, ncclTeamWorld) {
  not_offered("ncclTeamWorld");
  return {0, -1, 0};
}
RW_NCCL_API(ncclTeam_t, ncclTeamLsa) {
  not_offered("ncclTeamLsa");
  return {0, -1, 0};
}
RW_NCCL_API(ncclTeam_t, ncclTeamRail) {
  not_offered("ncclTeamRail");
  return {0, -1, 0};
}
