// Functions that Ropewalk does not offer: they exist, so that every program that names them loads
// (Python binds all names of an extension at once), and say what is missing.
//
// They do not read their arguments, so none are named: the calling conventions of Linux (System V
// on x86-64, AAPCS64 on arm64) let a function ignore what it was passed. docs/nccl.md has the list.
#include "capi/nccl/guard.h"

using namespace ropewalk::nccl;  // NOLINT: this file is the edge

#define RW_NCCL_NOT_OFFERED(name, reason) \
  RW_NCCL_API(ncclResult_t, name) { return not_offered(#name, reason); }
// For functions that return no result code: an empty team.
#define RW_NCCL_NO_VALUE(type, name, value, reason) \
  RW_NCCL_API(type, name) {                         \
    not_offered(#name, reason);                     \
    return value;                                   \
  }

namespace {

constexpr const char* kNoGin =
    "there are no networks that GPUs drive (GIN), and so no barriers and boxes that go by them";
constexpr const char* kNoMulticast = "windows have no multicast memory";
constexpr const char* kNoEndpoints = "windows have no logical endpoints (CFT)";
constexpr const char* kKeepsMemory =
    "a communicator keeps its memory until it is destroyed (ncclCommMemStats: how much)";

}  // namespace

RW_NCCL_NOT_OFFERED(ncclGinBarrierCreateRequirement, kNoGin)
RW_NCCL_NOT_OFFERED(ncclGinInboxA2ACreateRequirement, kNoGin)
RW_NCCL_NOT_OFFERED(ncclGinOutboxCreateRequirement, kNoGin)

RW_NCCL_NOT_OFFERED(ncclCommSuspend, kKeepsMemory)
RW_NCCL_NOT_OFFERED(ncclCommResume, kKeepsMemory)

RW_NCCL_NOT_OFFERED(ncclGetMultimemDevicePointer, kNoMulticast)
RW_NCCL_NOT_OFFERED(ncclGetMultimemDeviceLeInfo, kNoEndpoints)
RW_NCCL_NOT_OFFERED(ncclGetCftDeviceLeInfo, kNoEndpoints)
RW_NCCL_NOT_OFFERED(ncclGetPeerDeviceLeInfo, kNoEndpoints)
RW_NCCL_NO_VALUE(ncclTeam_t, ncclTeamCft, (ncclTeam_t{0, -1, 0}), kNoEndpoints)
RW_NCCL_NO_VALUE(ncclTeam_t, ncclTeamCftMultimem, (ncclTeam_t{0, -1, 0}), kNoEndpoints)
