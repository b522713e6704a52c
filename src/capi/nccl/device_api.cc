// NVIDIA's device API, its host's side: device communicators, and what resources they are to have.
// What needs networks that GPUs drive, multicast memory or logical endpoints is refused, there and
// in not_offered.cc.
#include "capi/nccl/device_api.h"

#include <memory>
#include <optional>
#include <utility>

#include "capi/nccl/device_comms.h"
#include "capi/nccl/group.h"
#include "capi/nccl/guard.h"
#include "capi/nccl/handle.h"
#include "capi/nccl/requirements.h"
#include "comm/device_group.h"

namespace ropewalk::nccl {
namespace {

struct ReadRequest {
  DevCommRequest request;
  std::optional<Error> refusal;
};

ReadRequest try_to_read(const void* given) {
  ReadRequest read;
  try {
    read.request = read_requirements(given);
  } catch (const Error& error) {
    read.refusal = error;
  }
  return read;
}

void require_given(const void* pointer, const char* name) {
  if (pointer == nullptr) throw Error(Errc::kInvalidArgument, "{}: NULL", name);
}

// What this rank alone may lack is told to the others, who would wait for it.
void create_in(Core& core, const ReadRequest& read, void* out) {
  std::optional<Error> refusal = read.refusal;
  if (!refusal.has_value()) {
    if (const std::string why_not = why_no_device_api(core); !why_not.empty()) {
      refusal = Error(Errc::kInvalidUsage, "there are no device communicators: {}", why_not);
    }
  }
  if (!refusal.has_value() && core.device_comms == nullptr) {
    try {
      core.device_comms = std::make_unique<DeviceComms>(*core.comm, core.device, core);
    } catch (const Error& error) {
      refusal = error;
    }
  }
  if (refusal.has_value()) return DeviceComms::refuse(*core.comm, *refusal);
  core.device_comms->create(read.request, out);
}

// The lists are read at once: the program may free them before the group ends. Where handles are
// written to is to stay until then.
ncclResult_t create_dev_comm(ncclComm_t comm, const void* requirements, void* out) {
  require_given(requirements, "reqs");
  require_given(out, "outDevComm");
  require_unrevoked(core_of(comm));
  return run_on(comm->core, [core = comm->core, read = try_to_read(requirements), out] {
    create_in(*core, read, out);
  });
}

void destroy_dev_comm(ncclComm_t comm, const void* dev_comm) {
  Core& core = ready(comm);
  require_given(dev_comm, "devComm");
  if (core.device_comms == nullptr) {
    throw Error(Errc::kInvalidArgument, "devComm: the communicator has no device communicators");
  }
  core.device_comms->destroy(dev_comm);
}

void require_count(int count, const char* name) {
  if (count < 0) throw Error(Errc::kInvalidArgument, "{}: {} is negative", name, count);
}

void ask_for_barriers(const ncclTeam_t& team, int barriers, LsaBarrierHandle& handle,
                      ncclDevResourceRequirements& requirement) {
  require_count(barriers, "nBarriers");
  require_count(team.nRanks, "team.nRanks");
  requirement = {};
  requirement.bufferSize = lsa_barrier_bytes(barriers, team.nRanks);
  requirement.bufferAlign = 4;
  requirement.outBufferHandle = &handle.bufHandle;
  handle.nBarriers = barriers;
}

void ask_for_all_to_all(int blocks, int slots, LLA2AHandle& handle,
                        ncclDevResourceRequirements& requirement) {
  require_count(blocks, "nBlocks");
  require_count(slots, "nSlots");
  requirement = {};
  requirement.bufferSize = all_to_all_bytes(blocks, slots);
  requirement.bufferAlign = 16;
  requirement.outBufferHandle = &handle.bufHandle;
  handle.nSlots = static_cast<std::uint32_t>(slots);
}

}  // namespace

std::string why_no_device_api(Core& core) {
  if (core.comm->device() == nullptr) return "the communicator has no GPU";
  if (!core.comm->device()->reaches_all()) {
    return "they need all ranks on one host, and GPUs that access each other's memory "
           "(settings PEER_ACCESS, DIRECT_BUFFERS; NCCL_P2P_DISABLE)";
  }
  if (!core.comm->runtime().gpus().cuda().has_virtual_memory()) {
    return "CUDA's driver has no virtual-memory management";
  }
  if (core.comm->config().text(Setting::kMemAlloc) != "pages") {
    return "kernels can read no window of ncclMemAlloc's memory without ROPEWALK_MEM_ALLOC=pages "
           "(or TORCH_SYMMMEM=NCCL) in the environment";
  }
  return {};
}

}  // namespace ropewalk::nccl

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::nccl;  // NOLINT

RW_NCCL_API(ncclResult_t, ncclDevCommCreate, ncclComm_t comm, const void* requirements,
            void* dev_comm) {
  return guarded("ncclDevCommCreate",
                 [&] { return create_dev_comm(comm, requirements, dev_comm); });
}

RW_NCCL_API(ncclResult_t, ncclDevCommDestroy, ncclComm_t comm, const void* dev_comm) {
  return guarded("ncclDevCommDestroy", [&] { destroy_dev_comm(comm, dev_comm); });
}

RW_NCCL_API(ncclResult_t, ncclLsaBarrierCreateRequirement, ncclTeam_t team, int barriers,
            LsaBarrierHandle* handle, ncclDevResourceRequirements* requirement) {
  return guarded("ncclLsaBarrierCreateRequirement", [&] {
    ask_for_barriers(team, barriers, checked(handle, "outHandle"), checked(requirement, "outReq"));
  });
}

RW_NCCL_API(int, ncclLLA2ACalcSlots, int elements, int element_bytes) {
  return elements * ((element_bytes + 7) / 8);
}

RW_NCCL_API(ncclResult_t, ncclLLA2ACreateRequirement, int blocks, int slots, LLA2AHandle* handle,
            ncclDevResourceRequirements* requirement) {
  return guarded("ncclLLA2ACreateRequirement", [&] {
    ask_for_all_to_all(blocks, slots, checked(handle, "outHandle"), checked(requirement, "outReq"));
  });
}
