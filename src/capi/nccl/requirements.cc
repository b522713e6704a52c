#include "capi/nccl/requirements.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "core/error.h"

namespace ropewalk::nccl {
namespace {

constexpr std::size_t kHead = offsetof(ncclDevCommRequirements_t, body);
constexpr std::size_t kBodyOf22807 = offsetof(ncclDevCommRequirementsBody, ginConnectionType);
// No program asks for so many; a list that is longer is a circle.
constexpr std::size_t kMostResources = 1 << 16;

std::string version_text(unsigned version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

DevCommLayout layout_of(unsigned version) {
  if (version > kNewestHeader) {
    throw Error(Errc::kInvalidUsage,
                "reqs: the program was compiled with NCCL {}, later than {}, the newest whose "
                "device communicators are known here",
                version_text(version), version_text(kNewestHeader));
  }
  if (version >= 23100) return DevCommLayout::k23100;
  if (version >= 23000) return DevCommLayout::k23000;
  if (version >= 22905) return DevCommLayout::k22907;
  if (version == 22902 || version == 22903) return DevCommLayout::k22807;
  throw Error(Errc::kInvalidUsage,
              "reqs: the program was compiled with NCCL {}, whose device communicators are not "
              "known here",
              version_text(version));
}

// A list that could be one: null, or an address that is aligned.
bool plausible(const void* list) {
  const auto address = reinterpret_cast<std::uintptr_t>(list);
  return address == 0 || (address % alignof(void*) == 0 && address >= 4096);
}

// As a program of 2.28 fills it, and not a later structure without its head.
bool plausible(const ncclDevCommRequirementsBody& body) {
  unsigned char flags[2];
  std::memcpy(flags, &body.lsaMultimem, 1);
  std::memcpy(flags + 1, &body.ginForceEnable, 1);
  const int counts[] = {body.barrierCount,       body.lsaBarrierCount,   body.railGinBarrierCount,
                        body.lsaLLA2ABlockCount, body.lsaLLA2ASlotCount, body.ginContextCount,
                        body.ginSignalCount,     body.ginCounterCount};
  return plausible(body.resourceRequirementsList) && plausible(body.teamRequirementsList) &&
         flags[0] <= 1 && flags[1] <= 1 &&
         std::ranges::all_of(counts, [](int n) { return n >= 0; });
}

struct Given {
  unsigned version = 0;
  DevCommLayout layout = DevCommLayout::k22807;
  ncclDevCommRequirementsBody body{};
};

Given take_given(const void* given) {
  Given taken;
  ncclDevCommRequirements_t head{};
  std::memcpy(&head, given, kHead);
  if (head.magic == kNcclMagic) {
    taken.version = head.version;
    taken.layout = layout_of(head.version);
    if (head.size < kHead + kBodyOf22807) {
      throw Error(Errc::kInvalidArgument, "reqs: a size of {} bytes is too small", head.size);
    }
    std::memcpy(&taken.body, static_cast<const std::byte*>(given) + kHead,
                std::min(head.size - kHead, sizeof taken.body));
    return taken;
  }
  taken.version = 22807;
  std::memcpy(&taken.body, given, kBodyOf22807);
  if (!plausible(taken.body)) {
    throw Error(
        Errc::kInvalidUsage,
        "reqs: not made by NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER, nor zeroed and filled as "
        "in 2.28");
  }
  return taken;
}

[[noreturn]] void refuse_gin(const std::string& what) {
  throw Error(Errc::kInvalidUsage,
              "reqs: {}: there are no networks that GPUs drive (GIN) here; ginConnectionType none, "
              "with barriers of the LSA team alone (lsaBarrierCount), is served",
              what);
}

void refuse_gin_count(int count, const char* field) {
  if (count != 0) refuse_gin(fmt::format("{} is {}", field, count));
}

// Up to 2.29.3 barriers between hosts were not asked for where there was one host: the counts were
// ignored. Later versions refuse them without a connection of GIN.
void require_no_gin(const Given& given) {
  const ncclDevCommRequirementsBody& body = given.body;
  if (body.ginForceEnable) refuse_gin("ginForceEnable is set");
  if (body.ginConnectionType != 0) {
    refuse_gin(fmt::format("ginConnectionType is {}", body.ginConnectionType));
  }
  refuse_gin_count(body.ginSignalCount, "ginSignalCount");
  refuse_gin_count(body.ginCounterCount, "ginCounterCount");
  if (given.layout == DevCommLayout::k22807) return;
  refuse_gin_count(body.barrierCount, "barrierCount");
  refuse_gin_count(body.railGinBarrierCount, "railGinBarrierCount");
  refuse_gin_count(body.worldGinBarrierCount, "worldGinBarrierCount");
}

void require_not_negative(int count, const char* field) {
  if (count < 0) throw Error(Errc::kInvalidArgument, "reqs: {} is {}", field, count);
}

void require_offered(const Given& given) {
  const ncclDevCommRequirementsBody& body = given.body;
  require_not_negative(body.lsaBarrierCount, "lsaBarrierCount");
  require_not_negative(body.barrierCount, "barrierCount");
  require_no_gin(given);
  // NVIDIA's code where GPUs have no multicast memory.
  if (body.lsaMultimem) {
    throw Error(Errc::kInvalidArgument,
                "reqs: lsaMultimem is set, and windows have no multicast "
                "memory");
  }
  if (body.cftCaps != 0 || body.cftBarrierCount != 0) {
    throw Error(Errc::kInvalidUsage,
                "reqs: cftCaps is {}, cftBarrierCount {}: windows have no logical endpoints (CFT)",
                body.cftCaps, body.cftBarrierCount);
  }
  if (body.useRuntimeVersion) {
    throw Error(Errc::kInvalidUsage,
                "reqs: useRuntimeVersion is set, and only the version of the program's own header "
                "is served");
  }
}

std::vector<Resource> resources_of(const ncclDevResourceRequirements* list) {
  std::vector<Resource> resources;
  std::uint64_t total = 0;
  for (; list != nullptr; list = list->next) {
    if (resources.size() == kMostResources) {
      throw Error(Errc::kInvalidArgument, "reqs: resourceRequirementsList has more than {} entries",
                  kMostResources);
    }
    refuse_gin_count(list->ginSignalCount, "resourceRequirementsList: ginSignalCount");
    refuse_gin_count(list->ginCounterCount, "resourceRequirementsList: ginCounterCount");
    const std::uint64_t alignment = std::max<std::uint64_t>(list->bufferAlign, 1);
    if (list->bufferSize > kMostResourceBytes || alignment > kMostResourceBytes ||
        (total += list->bufferSize + alignment) > kMostResourceBytes) {
      throw Error(Errc::kInvalidArgument,
                  "reqs: resourceRequirementsList[{}]: {} bytes, aligned to {}: the resources of a "
                  "device communicator have {} bytes at most",
                  resources.size(), list->bufferSize, alignment, kMostResourceBytes);
    }
    resources.push_back({list->bufferSize, alignment, list->outBufferHandle});
  }
  return resources;
}

void require_no_multicast(const ncclTeamRequirements* list) {
  for (std::size_t n = 0; list != nullptr; list = list->next, ++n) {
    if (list->multimem || n == kMostResources) {
      throw Error(Errc::kInvalidArgument,
                  "reqs: teamRequirementsList[{}]: multimem is set, and windows have no multicast "
                  "memory",
                  n);
    }
  }
}

}  // namespace

DevCommRequest read_requirements(const void* given) {
  const Given taken = take_given(given);
  require_offered(taken);
  require_no_multicast(taken.body.teamRequirementsList);
  DevCommRequest request;
  request.version = taken.version;
  request.layout = taken.layout;
  request.lsa_barriers = taken.body.lsaBarrierCount;
  // Barriers of all ranks, which are those of the LSA team.
  if (taken.layout == DevCommLayout::k22807) {
    request.lsa_barriers = std::max(request.lsa_barriers, taken.body.barrierCount);
  }
  request.resources = resources_of(taken.body.resourceRequirementsList);
  return request;
}

}  // namespace ropewalk::nccl
