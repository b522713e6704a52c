// NVIDIA's device API, its host's side: whether a communicator offers it.
#pragma once

#include <string>

#include "capi/nccl/requirements.h"

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
extern "C" {
// What NVIDIA's header declares besides ncclDevCommCreate: they fill entries for its lists.
ncclResult_t ncclLsaBarrierCreateRequirement(ncclTeam_t team, int barriers,
                                             ropewalk::nccl::LsaBarrierHandle* handle,
                                             ncclDevResourceRequirements* requirement);
int ncclLLA2ACalcSlots(int elements, int element_bytes);
ncclResult_t ncclLLA2ACreateRequirement(int blocks, int slots, ropewalk::nccl::LLA2AHandle* handle,
                                        ncclDevResourceRequirements* requirement);
}
// NOLINTEND(readability-identifier-naming)

namespace ropewalk::nccl {

struct Core;

/// What kernels with NVIDIA's device header need that this communicator does not have: GPUs that
/// all reach each other's memory, and windows that kernels can read (setting MEM_ALLOC).
/// @return empty where device communicators are offered
/// @pre the communicator is ready
std::string why_no_device_api(Core& core);

}  // namespace ropewalk::nccl
