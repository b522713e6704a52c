// NCCL's C API, as libnccl.so.2 2.28.9 offers it.
//
// Facts of NVIDIA's nccl.h 2.28.9: names, numbers, the order and layout of structures, the
// arguments of functions. What each call does is documented by NVIDIA; what it does otherwise here
// is said where it is defined. Each function also has a name that begins with `p`: tools that
// interpose a function call the original by it.
//
// The numbers of types, operators and results equal core/types.h and rwResult_t.
#pragma once

#include <climits>
#include <cstddef>

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
extern "C" {

struct ncclComm;
using ncclComm_t = ncclComm*;
struct ncclWindow_vidmem;
using ncclWindow_t = ncclWindow_vidmem*;
struct CUstream_st;
using ncclStream_t = CUstream_st*;  // cudaStream_t; nullptr is the legacy default stream

inline constexpr int kNcclVersion = 22809;

struct ncclUniqueId {
  char internal[128];
};

// Plain ints in the ABI. A fixed type, since callers may pass any number.
enum ncclResult_t : int {
  ncclSuccess = 0,
  ncclUnhandledCudaError = 1,
  ncclSystemError = 2,
  ncclInternalError = 3,
  ncclInvalidArgument = 4,
  ncclInvalidUsage = 5,
  ncclRemoteError = 6,
  ncclInProgress = 7,
};
enum ncclRedOp_t : int {
  ncclSum = 0,
  ncclProd = 1,
  ncclMax = 2,
  ncclMin = 3,
  ncclAvg = 4,
  ncclNumOps = 5,  // the first number of an operator that was created
};
enum ncclDataType_t : int {
  ncclInt8 = 0,
  ncclUint8 = 1,
  ncclInt32 = 2,
  ncclUint32 = 3,
  ncclInt64 = 4,
  ncclUint64 = 5,
  ncclFloat16 = 6,
  ncclFloat32 = 7,
  ncclFloat64 = 8,
  ncclBfloat16 = 9,
  ncclFloat8e4m3 = 10,
  ncclFloat8e5m2 = 11,
};
enum ncclScalarResidence_t : int { ncclScalarDevice = 0, ncclScalarHostImmediate = 1 };

inline constexpr int kNcclUndefInt = INT_MIN;       // NCCL_CONFIG_UNDEF_INT
inline constexpr int kNcclNoColor = -1;             // NCCL_SPLIT_NOCOLOR
inline constexpr float kNcclUndefFloat = -1.0F;     // NCCL_UNDEF_FLOAT
inline constexpr unsigned kNcclMagic = 0xcafebeef;  // of ncclConfig_t
inline constexpr unsigned kNcclSimMagic = 0x74685283;
inline constexpr int kNcclShrinkDefault = 0;
inline constexpr int kNcclShrinkAbort = 1;

// A caller of another version has a shorter or longer one; `size` tells. New fields come last.
struct ncclConfig_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
  int cgaClusterSize;
  int minCTAs;
  int maxCTAs;
  const char* netName;
  int splitShare;
  int trafficClass;
  const char* commName;
  int collnetEnable;
  int CTAPolicy;
  int shrinkShare;
  int nvlsCTAs;
  int nChannelsPerNetPeer;
  int nvlinkCentricSched;
};

struct ncclSimInfo_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  float estimatedTime;
};

// Of the device API's header (nccl_device/core.h).
struct ncclTeam_t {
  int nRanks;
  int rank;
  int stride;
};

static_assert(sizeof(ncclUniqueId) == 128);
static_assert(sizeof(ncclRedOp_t) == 4 && sizeof(ncclDataType_t) == 4 && sizeof(ncclResult_t) == 4);
static_assert(sizeof(ncclConfig_t) == 80);
static_assert(offsetof(ncclConfig_t, blocking) == 16 && offsetof(ncclConfig_t, netName) == 32);
static_assert(offsetof(ncclConfig_t, splitShare) == 40 && offsetof(ncclConfig_t, commName) == 48);
static_assert(offsetof(ncclConfig_t, collnetEnable) == 56);
static_assert(offsetof(ncclConfig_t, nvlinkCentricSched) == 76);
static_assert(sizeof(ncclSimInfo_t) == 24 && offsetof(ncclSimInfo_t, estimatedTime) == 16);
static_assert(sizeof(ncclTeam_t) == 12);

// ---- the library ------------------------------------------------------------------------

ncclResult_t ncclGetVersion(int* version);
const char* ncclGetErrorString(ncclResult_t result);
const char* ncclGetLastError(ncclComm_t comm);
void ncclResetDebugInit();

// ---- communicators ----------------------------------------------------------------------

ncclResult_t ncclGetUniqueId(ncclUniqueId* id);
ncclResult_t ncclCommInitRank(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank);
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId id, int rank,
                                    ncclConfig_t* config);
ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int nranks, int rank, int num_ids,
                                      ncclUniqueId* ids, ncclConfig_t* config);
ncclResult_t ncclCommInitAll(ncclComm_t* comms, int num_devices, const int* devices);
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config);
ncclResult_t ncclCommShrink(ncclComm_t comm, int* excluded, int num_excluded, ncclComm_t* newcomm,
                            ncclConfig_t* config, int flags);
ncclResult_t ncclCommFinalize(ncclComm_t comm);
ncclResult_t ncclCommDestroy(ncclComm_t comm);
ncclResult_t ncclCommAbort(ncclComm_t comm);
ncclResult_t ncclCommRevoke(ncclComm_t comm, int flags);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);

// ---- memory -----------------------------------------------------------------------------

ncclResult_t ncclMemAlloc(void** pointer, std::size_t bytes);
ncclResult_t ncclMemFree(void* pointer);
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, std::size_t bytes,
                              void** handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, std::size_t bytes,
                                    ncclWindow_t* window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);

// ---- operators --------------------------------------------------------------------------

ncclResult_t ncclRedOpCreatePreMulSum(ncclRedOp_t* op, void* scalar, ncclDataType_t type,
                                      ncclScalarResidence_t residence, ncclComm_t comm);
ncclResult_t ncclRedOpDestroy(ncclRedOp_t op, ncclComm_t comm);

// ---- operations -------------------------------------------------------------------------

ncclResult_t ncclAllReduce(const void* sendbuf, void* recvbuf, std::size_t count,
                           ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                           ncclStream_t stream);
ncclResult_t ncclReduce(const void* sendbuf, void* recvbuf, std::size_t count, ncclDataType_t type,
                        ncclRedOp_t op, int root, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclBcast(void* buffer, std::size_t count, ncclDataType_t type, int root,
                       ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclBroadcast(const void* sendbuf, void* recvbuf, std::size_t count,
                           ncclDataType_t type, int root, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclReduceScatter(const void* sendbuf, void* recvbuf, std::size_t recvcount,
                               ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                               ncclStream_t stream);
ncclResult_t ncclAllGather(const void* sendbuf, void* recvbuf, std::size_t sendcount,
                           ncclDataType_t type, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclAlltoAll(const void* sendbuf, void* recvbuf, std::size_t count,
                          ncclDataType_t type, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclGather(const void* sendbuf, void* recvbuf, std::size_t count, ncclDataType_t type,
                        int root, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclScatter(const void* sendbuf, void* recvbuf, std::size_t count, ncclDataType_t type,
                         int root, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclSend(const void* sendbuf, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclRecv(void* recvbuf, std::size_t count, ncclDataType_t type, int peer,
                      ncclComm_t comm, ncclStream_t stream);

// ---- groups -----------------------------------------------------------------------------

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info);

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
