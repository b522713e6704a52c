// What kernels compiled against NVIDIA's device header (nccl_device.h) read of a window.
//
// Facts of nccl_device/impl/core__types.h. The first 32 bytes are the same from 2.28.3 to 2.32.3,
// and all that ncclGetLocalPointer, ncclGetLsaPointer and ncclGetPeerPointer read:
//
//   address = lsaFlatBase + rank * stride4G * 2^32 + offset
//
// with the rank in the load/store (LSA) team, lsaRank + peer - worldRank for one of the world. What
// follows is for networks that GPUs drive (GIN), multicast memory and logical endpoints, of which
// windows here have none; the figures are those of 2.32.3, 2.30 and 2.31 end earlier.
#pragma once

#include <cstddef>
#include <cstdint>

#include "capi/nccl/nccl_api.h"

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
struct ncclWindow_vidmem {
  void* winHost;      // not for kernels
  char* lsaFlatBase;  // the first byte of the buffer of the team's rank 0
  int lsaRank;        // this rank in the team
  int worldRank;      // and in the communicator
  std::uint32_t stride4G;
  std::uint32_t mcOffset4K;
  std::uint32_t ginOffset4K;
  std::uint32_t winFlags;
  void* ginWins[4];
  void* ginMultiSegmentWins;
  int numSegments;
  int cftFlatRank;
  std::uint32_t ucLeIdBase;
};
// NOLINTEND(readability-identifier-naming)

static_assert(offsetof(ncclWindow_vidmem, winHost) == 0);
static_assert(offsetof(ncclWindow_vidmem, lsaFlatBase) == 8);
static_assert(offsetof(ncclWindow_vidmem, lsaRank) == 16);
static_assert(offsetof(ncclWindow_vidmem, worldRank) == 20);
static_assert(offsetof(ncclWindow_vidmem, stride4G) == 24);
static_assert(offsetof(ncclWindow_vidmem, mcOffset4K) == 28);
static_assert(offsetof(ncclWindow_vidmem, ginOffset4K) == 32);
static_assert(offsetof(ncclWindow_vidmem, winFlags) == 36);
static_assert(offsetof(ncclWindow_vidmem, ginWins) == 40);
static_assert(offsetof(ncclWindow_vidmem, ginMultiSegmentWins) == 72);
static_assert(offsetof(ncclWindow_vidmem, numSegments) == 80);
static_assert(offsetof(ncclWindow_vidmem, cftFlatRank) == 84);
static_assert(offsetof(ncclWindow_vidmem, ucLeIdBase) == 88);
static_assert(sizeof(ncclWindow_vidmem) == 96);
