// Queries of a communicator: teams of ranks, properties, memory.
//
// Teams are sets of ranks with a stride. "Lsa" is the team whose GPUs load from and store to each
// other's memory: all ranks, or where that is not so (NCCL_P2P_DISABLE=1, PEER_ACCESS,
// DIRECT_BUFFERS) each rank by itself. "Rail" has one rank of each Lsa team.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "capi/nccl/device_api.h"
#include "capi/nccl/guard.h"
#include "capi/nccl/handle.h"
#include "capi/nccl/structures.h"
#include "comm/device_group.h"
#include "core/log.h"
#include "topology/nvml.h"
#include "topology/scan.h"

namespace ropewalk::nccl {
namespace {

constexpr ncclTeam_t kNoTeam = {0, -1, 0};

comm::DeviceGroup& group_of(Core& core) {
  if (core.comm == nullptr || core.comm->device() == nullptr) {
    throw Error(Errc::kInvalidUsage, "comm: it has no GPU");
  }
  return *core.comm->device();
}

ncclTeam_t world(Core& core) { return {core.comm->size(), core.comm->rank(), 1}; }

ncclTeam_t load_store(Core& core) {
  return group_of(core).reaches_all() ? world(core) : ncclTeam_t{1, 0, 1};
}

ncclTeam_t rail(Core& core) {
  const ncclTeam_t lsa = load_store(core);
  return {core.comm->size() / lsa.nRanks, core.comm->rank() / lsa.nRanks, lsa.nRanks};
}

int world_rank(Core& core, const ncclTeam_t& team, int rank) {
  return core.comm->rank() + (rank - team.rank) * team.stride;
}

// NVML's number of a GPU: CUDA_VISIBLE_DEVICES changes CUDA's. -1 if NVML does not report it.
int nvml_device(int device) {
  const std::string bus_id =
      nlohmann::json::parse(comm::describe_device(device)).at("bus_id").get<std::string>();
  topology::Scan scan;
  topology::add_nvml(scan, "libnvidia-ml.so.1");
  for (const topology::ScannedDevice& gpu : scan.devices) {
    if (gpu.index.has_value() && gpu.bus_id == topology::normal_bus_id(bus_id)) return *gpu.index;
  }
  return -1;
}

void query(Core& core, ncclCommProperties_t& given) {
  constexpr std::size_t kSmallest = offsetof(ncclCommProperties_t, nRanks);
  const ncclCommProperties_t head = copy_known(given, ncclCommProperties_t{}, kSmallest, "props",
                                               "NCCL_COMM_PROPERTIES_INITIALIZER");
  ncclCommProperties_t all{};
  all.size = head.size;
  all.magic = head.magic;
  all.version = head.version;
  all.rank = core.comm->rank();
  all.nRanks = core.comm->size();
  all.cudaDev = core.device;
  all.nvmlDev = nvml_device(core.device);
  all.deviceApiSupport = why_no_device_api(core).empty();
  all.nLsaTeams = core.comm->size() / load_store(core).nRanks;
  if (head.version < 22903) std::swap(all.ginType, all.nLsaTeams);
  all.hostRmaSupport = core.one_sided->refusal().empty();
  all.commHash = core.comm->identity();
  // The other fields stay zero, since these features are not offered: multicast memory, networks
  // that GPUs drive, logical endpoints, device communicators of another version than the program's.
  std::memcpy(&given, &all, std::min(given.size, sizeof all));
}

std::uint64_t memory_statistic(Core& core, ncclCommMemStat_t stat) {
  std::size_t bytes = group_of(core).memory_bytes();
  if (core.device_comms != nullptr) bytes += core.device_comms->memory_bytes();
  switch (stat) {
    case ncclStatGpuMemSuspend: return 0;    // ncclCommSuspend is not offered
    case ncclStatGpuMemSuspended: return 0;  // no
    case ncclStatGpuMemPersist:
    case ncclStatGpuMemTotal: return bytes;
  }
  throw Error(Errc::kInvalidArgument, "stat: {} is none", static_cast<int>(stat));
}

// For functions that return no result.
template <typename Value, typename Body>
Value guarded_value(const char* entry, Value fallback, Body body) noexcept {
  Value value = fallback;
  guarded(entry, [&] { value = body(); });
  return value;
}

}  // namespace
}  // namespace ropewalk::nccl

using namespace ropewalk;        // NOLINT: this file is the edge
using namespace ropewalk::nccl;  // NOLINT

RW_NCCL_API(ncclTeam_t, ncclTeamWorld, ncclComm_t comm) {
  return guarded_value("ncclTeamWorld", kNoTeam, [&] { return world(ready(comm)); });
}

RW_NCCL_API(ncclTeam_t, ncclTeamLsa, ncclComm_t comm) {
  return guarded_value("ncclTeamLsa", kNoTeam, [&] { return load_store(ready(comm)); });
}

RW_NCCL_API(ncclTeam_t, ncclTeamRail, ncclComm_t comm) {
  return guarded_value("ncclTeamRail", kNoTeam, [&] { return rail(ready(comm)); });
}

RW_NCCL_API(int, ncclTeamRankToWorld, ncclComm_t comm, ncclTeam_t team, int rank) {
  return guarded_value("ncclTeamRankToWorld", -1,
                       [&] { return world_rank(ready(comm), team, rank); });
}

RW_NCCL_API(int, ncclTeamRankToLsa, ncclComm_t comm, ncclTeam_t team, int rank) {
  return guarded_value("ncclTeamRankToLsa", -1, [&] {
    Core& core = ready(comm);
    return load_store(core).rank + world_rank(core, team, rank) - core.comm->rank();
  });
}

RW_NCCL_API(ncclResult_t, ncclCommQueryProperties, ncclComm_t comm,
            ncclCommProperties_t* properties) {
  return guarded("ncclCommQueryProperties",
                 [&] { query(ready(comm), checked(properties, "props")); });
}

RW_NCCL_API(ncclResult_t, ncclCommMemStats, ncclComm_t comm, ncclCommMemStat_t stat,
            std::uint64_t* value) {
  return guarded("ncclCommMemStats",
                 [&] { checked(value, "value") = memory_statistic(ready(comm), stat); });
}
