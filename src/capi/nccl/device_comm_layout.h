// What kernels compiled against NVIDIA's device header (nccl_device.h) are passed as `ncclDevComm`,
// for each version that laid it out differently.
//
// Facts of nccl_device/impl/comm__types.h and core__types.h of the releases named below. A program
// has the layout of the header that it was compiled with, and says which in the request
// (requirements.h). From version to version fields of networks that GPUs drive (GIN) and of logical
// endpoints (CFT) came, went and changed their meaning; they stay zero here, and have no names.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace ropewalk::nccl {

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's

/// Offsets in the resource window, in units of 128 bytes.
using ResourceHandle = std::uint32_t;
inline constexpr std::uint64_t kResourceUnit = 128;

struct LsaBarrierHandle {
  ResourceHandle bufHandle;
  std::int32_t nBarriers;
};

struct LLA2AHandle {
  ResourceHandle bufHandle;
  std::uint32_t nSlots;
};

/// ncclFindWindow() walks blocks until it has found the address; behind the last it faults.
struct WindowTableBlock {
  struct Entry {
    std::uint64_t base;  ///< 0 with `size` and `window`: a free slot
    std::uint64_t size;
    void* window;
  };
  static constexpr std::size_t kEntries = 32;
  std::array<Entry, kEntries> entries;
  std::uint64_t next;  ///< a block in the GPU's memory
};

/// The first 32 bytes of ncclWindow_vidmem.
struct WindowHead {
  void* winHost;
  char* lsaFlatBase;
  std::int32_t lsaRank;
  std::int32_t worldRank;
  std::uint32_t stride4G;
  std::uint32_t mcOffset4K;
};

/// 2.28.7 to 2.29.3. It does not say its version.
struct DevComm22807 {
  std::int32_t rank, nRanks;
  std::uint32_t nRanks_rcp32;
  std::int32_t lsaRank, lsaSize;
  std::uint32_t lsaSize_rcp32;
  std::uint64_t windowTable;
  void* resourceWindow;
  WindowHead resourceWindow_inlined;
  std::array<std::byte, 40> inlined_gin;
  void* lsaMultimem;
  LsaBarrierHandle lsaBarrier;
  std::array<std::byte, 72> gin;
};

/// 2.29.5 to 2.29.7, which add to it.
struct DevComm22907 {
  DevComm22807 older;
  std::array<std::byte, 16> gin;
  std::uint64_t abortFlag;
};

/// 2.30.
struct DevComm23000 {
  std::uint32_t magic, version;
  std::int32_t rank, nRanks;
  std::uint32_t nRanks_rcp32;
  std::int32_t lsaRank, lsaSize;
  std::uint32_t lsaSize_rcp32;
  std::uint64_t windowTable;
  void* resourceWindow;
  struct {
    std::array<std::byte, 8> reserved1;
    char* lsaFlatBase;
    std::array<std::byte, 8> reserved2;
    std::uint32_t stride4G;
    std::uint32_t mcOffset4K;
    std::array<std::byte, 40> reserved3;  // in 2.30.7 the last 8 are a barrier of GIN
  } resourceWindow_inlined;
  void* lsaMultimem;
  LsaBarrierHandle lsaBarrier;
  std::array<std::byte, 72> gin;
  std::uint64_t abortFlag;
  LsaBarrierHandle hybridLsaBarrier;
  std::array<std::byte, 16> gin_barriers;
};

/// 2.31 and 2.32.
struct DevComm23100 {
  std::uint32_t magic, version;
  std::int32_t rank, nRanks;
  std::uint32_t nRanks_rcp32;
  std::int32_t lsaRank, lsaSize;
  std::uint32_t lsaSize_rcp32;
  std::uint64_t windowTable;
  void* resourceWindow;
  struct {
    char* lsaFlatBase;
    std::uint32_t stride4G;
    std::uint32_t mcOffset4K;
  } resourceWindow_inlined;
  std::array<std::byte, 8> hybridDenseGinBarrier;
  void* lsaMultimem;
  LsaBarrierHandle lsaBarrier;
  std::array<std::byte, 80> gin;
  std::uint64_t abortFlag;
  LsaBarrierHandle hybridLsaBarrier;
  std::array<std::byte, 64> gin_barriers_and_cft;
};

// NOLINTEND(readability-identifier-naming)

static_assert(sizeof(WindowTableBlock) == 776 && offsetof(WindowTableBlock, next) == 768);
static_assert(sizeof(WindowHead) == 32 && offsetof(WindowHead, stride4G) == 24);
static_assert(sizeof(LsaBarrierHandle) == 8 && sizeof(LLA2AHandle) == 8);

static_assert(offsetof(DevComm22807, lsaSize_rcp32) == 20);
static_assert(offsetof(DevComm22807, windowTable) == 24);
static_assert(offsetof(DevComm22807, resourceWindow) == 32);
static_assert(offsetof(DevComm22807, resourceWindow_inlined) == 40);
static_assert(offsetof(DevComm22807, lsaMultimem) == 112);
static_assert(offsetof(DevComm22807, lsaBarrier) == 120);
static_assert(sizeof(DevComm22807) == 200);

static_assert(offsetof(DevComm22907, abortFlag) == 216);
static_assert(sizeof(DevComm22907) == 224);

static_assert(offsetof(DevComm23000, lsaSize_rcp32) == 28);
static_assert(offsetof(DevComm23000, windowTable) == 32);
static_assert(offsetof(DevComm23000, resourceWindow) == 40);
static_assert(offsetof(DevComm23000, resourceWindow_inlined.lsaFlatBase) == 56);
static_assert(offsetof(DevComm23000, resourceWindow_inlined.stride4G) == 72);
static_assert(offsetof(DevComm23000, lsaMultimem) == 120);
static_assert(offsetof(DevComm23000, lsaBarrier) == 128);
static_assert(offsetof(DevComm23000, abortFlag) == 208);
static_assert(offsetof(DevComm23000, hybridLsaBarrier) == 216);
static_assert(sizeof(DevComm23000) == 240);

static_assert(offsetof(DevComm23100, windowTable) == 32);
static_assert(offsetof(DevComm23100, resourceWindow) == 40);
static_assert(offsetof(DevComm23100, resourceWindow_inlined.lsaFlatBase) == 48);
static_assert(offsetof(DevComm23100, resourceWindow_inlined.stride4G) == 56);
static_assert(offsetof(DevComm23100, lsaMultimem) == 72);
static_assert(offsetof(DevComm23100, lsaBarrier) == 80);
static_assert(offsetof(DevComm23100, abortFlag) == 168);
static_assert(offsetof(DevComm23100, hybridLsaBarrier) == 176);
static_assert(sizeof(DevComm23100) == 248);

}  // namespace ropewalk::nccl
