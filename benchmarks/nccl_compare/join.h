// Communicators of a crew's workers, one rank each.
#pragma once

#include <cstring>

#include "nccl_compare/crew.h"
#include "nccl_compare/nccl_functions.h"

/// By all workers; on the GPU that is current.
inline ncclComm_t join(Crew& crew, const NcclFunctions& nccl, int rank, int ranks) {
  ncclUniqueId id;
  if (rank == 0) {
    nccl.check(nccl.GetUniqueId(&id), "GetUniqueId");
    std::memcpy(crew.shared().unique_id, id.internal, sizeof id.internal);
  }
  crew.barrier();
  std::memcpy(id.internal, crew.shared().unique_id, sizeof id.internal);
  ncclComm_t comm = nullptr;
  nccl.check(nccl.CommInitRank(&comm, ranks, id, rank), "CommInitRank");
  return comm;
}
