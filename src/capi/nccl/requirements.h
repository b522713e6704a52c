// What a program asks of a device communicator: ncclDevCommRequirements of its version, read.
//
// Facts of nccl_device/core.h and host.h of 2.28.7 to 2.32.3. From 2.29 on the structure begins
// with its size, a magic number and the version that the program was compiled with; that of 2.28
// begins with its lists. The magic number is odd and lies where 2.28 has a pointer, so that it
// tells them apart; 2.28.3 had a shorter structure, which cannot be told from that of 2.28.7.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "capi/nccl/device_comm_layout.h"
#include "capi/nccl/nccl_api.h"

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's

/// One piece of the resource window.
struct ncclDevResourceRequirements {
  ncclDevResourceRequirements* next;
  std::size_t bufferSize, bufferAlign;
  ropewalk::nccl::ResourceHandle* outBufferHandle;  // or null
  int ginSignalCount;
  int ginCounterCount;
  std::uint32_t* outGinSignalStart;
  std::uint32_t* outGinCounterStart;
};

/// A team whose multicast memory is asked for.
struct ncclTeamRequirements {
  ncclTeamRequirements* next;
  ncclTeam_t team;
  bool multimem;
  void** outMultimemHandle;  // or null
};

/// Without the head: what 2.28 has, then what came later.
struct ncclDevCommRequirementsBody {
  ncclDevResourceRequirements* resourceRequirementsList;
  ncclTeamRequirements* teamRequirementsList;
  bool lsaMultimem;
  int barrierCount;
  int lsaBarrierCount;
  int railGinBarrierCount;
  int lsaLLA2ABlockCount, lsaLLA2ASlotCount;  // never read by NVIDIA's library
  bool ginForceEnable;
  int ginContextCount;
  int ginSignalCount;
  int ginCounterCount;
  int ginConnectionType;  // from here on 2.29.5
  bool ginExclusiveContexts;
  int ginQueueDepth;
  int ginTrafficClass;  // from here on 2.30
  int worldGinBarrierCount;
  bool ginStrongSignalsRequired;
  bool ginVaSignalsRequired;
  int ginCustomStride;  // from here on 2.31
  int ginType;
  bool useRuntimeVersion;
  int cftCaps;
  int cftBarrierCount;
};

struct ncclDevCommRequirements_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  ncclDevCommRequirementsBody body;
};
// NOLINTEND(readability-identifier-naming)

static_assert(sizeof(ncclDevResourceRequirements) == 56);
static_assert(offsetof(ncclDevResourceRequirements, outBufferHandle) == 24);
static_assert(offsetof(ncclDevResourceRequirements, outGinCounterStart) == 48);
static_assert(sizeof(ncclTeamRequirements) == 32);
static_assert(offsetof(ncclTeamRequirements, multimem) == 20);
static_assert(offsetof(ncclDevCommRequirements_t, body) == 16);
static_assert(offsetof(ncclDevCommRequirementsBody, lsaBarrierCount) == 24);
static_assert(offsetof(ncclDevCommRequirementsBody, ginForceEnable) == 40);
static_assert(offsetof(ncclDevCommRequirementsBody, ginCounterCount) == 52);
static_assert(offsetof(ncclDevCommRequirementsBody, ginConnectionType) == 56);
static_assert(offsetof(ncclDevCommRequirementsBody, worldGinBarrierCount) == 72);
static_assert(offsetof(ncclDevCommRequirementsBody, useRuntimeVersion) == 88);
static_assert(sizeof(ncclDevCommRequirements_t) == 120);

namespace ropewalk::nccl {

/// The layouts of ncclDevComm.
enum class DevCommLayout { k22807, k22907, k23000, k23100 };

/// A piece of the resource window.
struct Resource {
  std::uint64_t bytes = 0;
  std::uint64_t alignment = 1;       ///< at least 1
  ResourceHandle* handle = nullptr;  ///< where its offset is written, or null
};

struct DevCommRequest {
  unsigned version = 0;  ///< that the program was compiled with; 22807 for one that does not say
  DevCommLayout layout = DevCommLayout::k22807;
  int lsa_barriers = 0;
  std::vector<Resource> resources;  ///< of the program's list, in its order
};

/// The newest version of NVIDIA's headers whose layouts are known: as NVIDIA's library, this one
/// serves no program that was compiled with a later one.
inline constexpr unsigned kNewestHeader = 23203;

/// Of one rank's resource window: as far as handles of 32 bits reach.
inline constexpr std::uint64_t kMostResourceBytes = kResourceUnit << 32U;

/// @param given the program's structure, of any version
/// @throws Error kInvalidUsage for what is not offered (networks that GPUs drive, logical
/// endpoints, versions), kInvalidArgument for multicast memory and for what makes no sense
DevCommRequest read_requirements(const void* given);

/// A barrier for a team of `ranks`, and slots for all-to-all: words in the resource window.
constexpr std::uint64_t lsa_barrier_bytes(int barriers, int ranks) {
  return (3 + static_cast<std::uint64_t>(ranks)) * static_cast<std::uint64_t>(barriers) * 4;
}
constexpr std::uint64_t all_to_all_bytes(int blocks, int slots) {
  return static_cast<std::uint64_t>(blocks) * (1 + 2 * static_cast<std::uint64_t>(slots)) * 16;
}

}  // namespace ropewalk::nccl
