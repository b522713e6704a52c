// NCCL's C API, as libnccl.so.2 2.32.3 has it.
//
// Facts of NVIDIA's nccl.h and nccl_device/host.h 2.32.3: names, numbers, the order and layout of
// structures, the arguments of functions. NVIDIA documents what each call does; differences are
// described where the call is defined. Each function also has a name that begins with `p`: tools
// that interpose a function call the original by it.
//
// The numbers of types, operators and results equal core/types.h and rwResult_t.
#pragma once

#include <climits>
#include <cstddef>
#include <cstdint>

// NOLINTBEGIN(readability-identifier-naming): the names are NVIDIA's
extern "C" {

struct ncclComm;
using ncclComm_t = ncclComm*;
struct ncclWindow_vidmem;
using ncclWindow_t = ncclWindow_vidmem*;
struct CUstream_st;
using ncclStream_t = CUstream_st*;  // cudaStream_t; nullptr is the legacy default stream

// The result of ncclGetVersion: all of nccl.h 2.28 is here. Functions of later versions are here
// too, but programs that choose by this number (XLA, vLLM) would expect of them what is refused:
// networks that GPUs drive, multicast memory.
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
  ncclTimeout = 8,
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
enum ncclCommMemStat_t : int {
  ncclStatGpuMemSuspend = 0,
  ncclStatGpuMemSuspended = 1,
  ncclStatGpuMemPersist = 2,
  ncclStatGpuMemTotal = 3,
};

inline constexpr int kNcclUndefInt = INT_MIN;       // NCCL_CONFIG_UNDEF_INT
inline constexpr int kNcclNoColor = -1;             // NCCL_SPLIT_NOCOLOR
inline constexpr float kNcclUndefFloat = -1.0F;     // NCCL_UNDEF_FLOAT
inline constexpr unsigned kNcclMagic = 0xcafebeef;  // of every structure with a version but one
inline constexpr unsigned kNcclSimMagic = 0x74685283;
inline constexpr int kNcclShrinkDefault = 0;
inline constexpr int kNcclShrinkAbort = 1;
inline constexpr int kNcclRevokeDefault = 0;
inline constexpr int kNcclEncryptionNone = 0;
inline constexpr int kNcclEncryptionPsk = 1;
// Of a window: all ranks use it at equal offsets.
inline constexpr int kNcclWinCollSymmetric = 1;
// Flags of ncclConfig_t's CTAPolicy.
inline constexpr int kNcclCtaPolicyZero = 2;

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
  int graphUsageMode;
  int numRmaCtx;
  int maxP2pPeers;
  int graphStreamOrdering;
  int launchOrderImplicit;
  int numRmaSig;
  int rmaEagerInit;
  int hostCftMode;
  int nvlsHostMode;
};

// Of one operation.
struct ncclCollConfig_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  void* ext;  // options of other libraries
  int minCTAs;
  int maxCTAs;
  int nvlsCTAs;
  int cgaClusterSize;
  const char* algSelection;
  int forceAlgSelection;
  int CTAPolicy;
  std::uint64_t userProfilerTag;
  void* launchCompletionEvent;  // cudaEvent_t
};

struct ncclEncryptionConfig_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int mode;
  const char* psk;
};

// One of Ropewalk's settings (parameters.cc).
struct ncclParamHandle;
using ncclParamHandle_t = const ncclParamHandle*;

struct ncclSimInfo_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  float estimatedTime;
};

// Of the device API's headers (nccl_device/core.h, host.h).
struct ncclTeam_t {
  int nRanks;
  int rank;
  int stride;
};

// What one wait of ncclWaitSignal is for.
struct ncclWaitSignalDesc_t {
  int opCnt;
  int peer;
  int sigIdx;
  int ctx;
};

// A caller of another version has a shorter or longer one; `size` tells. In 2.29.2 `ginType` was
// one byte behind the flags, and `nLsaTeams` lay where it is now.
struct ncclCommProperties_t {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int rank;
  int nRanks;
  int cudaDev;
  int nvmlDev;
  bool deviceApiSupport;
  bool multimemSupport;
  int ginType;
  int nLsaTeams;
  bool hostRmaSupport;
  int railedGinType;
  std::uint64_t commHash;
  int ginMinStride;
  int ginConnectionType;
  bool ginSupport[64];
  std::size_t devCommRuntimeVersionSize;
  bool cftSupport;
  bool cftMulticastSupport;
  bool cftCountedSupport;
};

static_assert(sizeof(ncclUniqueId) == 128);
static_assert(sizeof(ncclRedOp_t) == 4 && sizeof(ncclDataType_t) == 4 && sizeof(ncclResult_t) == 4);
static_assert(sizeof(ncclConfig_t) == 120);
static_assert(offsetof(ncclConfig_t, blocking) == 16 && offsetof(ncclConfig_t, netName) == 32);
static_assert(offsetof(ncclConfig_t, splitShare) == 40 && offsetof(ncclConfig_t, commName) == 48);
static_assert(offsetof(ncclConfig_t, collnetEnable) == 56);
static_assert(offsetof(ncclConfig_t, nvlinkCentricSched) == 76);
static_assert(offsetof(ncclConfig_t, nvlsHostMode) == 112);
static_assert(sizeof(ncclCollConfig_t) == 72 && offsetof(ncclCollConfig_t, algSelection) == 40);
static_assert(offsetof(ncclCollConfig_t, userProfilerTag) == 56);
static_assert(offsetof(ncclCollConfig_t, launchCompletionEvent) == 64);
static_assert(sizeof(ncclEncryptionConfig_t) == 32 && offsetof(ncclEncryptionConfig_t, mode) == 16);
static_assert(sizeof(ncclCommProperties_t) == 152 && offsetof(ncclCommProperties_t, ginType) == 36);
static_assert(offsetof(ncclCommProperties_t, commHash) == 56);
static_assert(offsetof(ncclCommProperties_t, devCommRuntimeVersionSize) == 136);
static_assert(sizeof(ncclSimInfo_t) == 24 && offsetof(ncclSimInfo_t, estimatedTime) == 16);
static_assert(sizeof(ncclTeam_t) == 12 && sizeof(ncclWaitSignalDesc_t) == 16);

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
ncclResult_t ncclCommGetUniqueId(ncclComm_t comm, ncclUniqueId* id);
ncclResult_t ncclCommGrow(ncclComm_t comm, int nranks, const ncclUniqueId* id, int rank,
                          ncclComm_t* newcomm, ncclConfig_t* config);
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* error);
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count);
ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int* device);
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank);
ncclResult_t ncclCommMemStats(ncclComm_t comm, ncclCommMemStat_t stat, std::uint64_t* value);
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, ncclCommProperties_t* properties);
ncclTeam_t ncclTeamWorld(ncclComm_t comm);
ncclTeam_t ncclTeamLsa(ncclComm_t comm);
ncclTeam_t ncclTeamRail(ncclComm_t comm);
int ncclTeamRankToWorld(ncclComm_t comm, ncclTeam_t team, int rank);
int ncclTeamRankToLsa(ncclComm_t comm, ncclTeam_t team, int rank);

// ---- memory -----------------------------------------------------------------------------

ncclResult_t ncclMemAlloc(void** pointer, std::size_t bytes);
ncclResult_t ncclMemFree(void* pointer);
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buffer, std::size_t bytes,
                              void** handle);
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle);
ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* buffer, std::size_t bytes,
                                    ncclWindow_t* window, int flags);
ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window);
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t window, void** pointer);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t window, std::size_t offset, int peer,
                                      void** pointer);
ncclResult_t ncclGetLsaDevicePointer(ncclWindow_t window, std::size_t offset, int lsa_rank,
                                     void** pointer);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t window, std::size_t offset,
                                             void** pointer);

// ---- device communicators -----------------------------------------------------------------
//
// The structures of the program's version, which requirements.h and device_comm_layout.h describe.

ncclResult_t ncclDevCommCreate(ncclComm_t comm, const void* requirements, void* dev_comm);
ncclResult_t ncclDevCommDestroy(ncclComm_t comm, const void* dev_comm);

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

ncclResult_t ncclPutSignal(const void* localbuff, std::size_t count, ncclDataType_t type, int peer,
                           ncclWindow_t window, std::size_t offset, int index, int context,
                           unsigned flags, ncclComm_t comm, ncclStream_t stream);
ncclResult_t ncclSignal(int peer, int index, int context, unsigned flags, ncclComm_t comm,
                        ncclStream_t stream);
ncclResult_t ncclWaitSignal(int count, ncclWaitSignalDesc_t* descriptors, ncclComm_t comm,
                            ncclStream_t stream);

// The same with a wish for the one call; NULL is none.

ncclResult_t ncclAllReduceConfig(const void* sendbuf, void* recvbuf, std::size_t count,
                                 ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                 ncclStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclReduceConfig(const void* sendbuf, void* recvbuf, std::size_t count,
                              ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                              ncclStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclBroadcastConfig(const void* sendbuf, void* recvbuf, std::size_t count,
                                 ncclDataType_t type, int root, ncclComm_t comm,
                                 ncclStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclReduceScatterConfig(const void* sendbuf, void* recvbuf, std::size_t recvcount,
                                     ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                     ncclStream_t stream, const ncclCollConfig_t* config);
ncclResult_t ncclAllGatherConfig(const void* sendbuf, void* recvbuf, std::size_t sendcount,
                                 ncclDataType_t type, ncclComm_t comm, ncclStream_t stream,
                                 const ncclCollConfig_t* config);
ncclResult_t ncclAlltoAllConfig(const void* sendbuf, void* recvbuf, std::size_t count,
                                ncclDataType_t type, ncclComm_t comm, ncclStream_t stream,
                                const ncclCollConfig_t* config);
ncclResult_t ncclGatherConfig(const void* sendbuf, void* recvbuf, std::size_t count,
                              ncclDataType_t type, int root, ncclComm_t comm, ncclStream_t stream,
                              const ncclCollConfig_t* config);
ncclResult_t ncclScatterConfig(const void* sendbuf, void* recvbuf, std::size_t count,
                               ncclDataType_t type, int root, ncclComm_t comm, ncclStream_t stream,
                               const ncclCollConfig_t* config);

// ---- parameters, which are Ropewalk's settings --------------------------------------------

ncclResult_t ncclParamBind(ncclParamHandle_t* handle, const char* key);
ncclResult_t ncclParamGetI8(ncclParamHandle_t handle, std::int8_t* value);
ncclResult_t ncclParamGetI16(ncclParamHandle_t handle, std::int16_t* value);
ncclResult_t ncclParamGetI32(ncclParamHandle_t handle, std::int32_t* value);
ncclResult_t ncclParamGetI64(ncclParamHandle_t handle, std::int64_t* value);
ncclResult_t ncclParamGetU8(ncclParamHandle_t handle, std::uint8_t* value);
ncclResult_t ncclParamGetU16(ncclParamHandle_t handle, std::uint16_t* value);
ncclResult_t ncclParamGetU32(ncclParamHandle_t handle, std::uint32_t* value);
ncclResult_t ncclParamGetU64(ncclParamHandle_t handle, std::uint64_t* value);
ncclResult_t ncclParamGetStr(ncclParamHandle_t handle, const char** text);
ncclResult_t ncclParamGet(ncclParamHandle_t handle, void* value, int room, int* bytes);
ncclResult_t ncclParamGetParameter(const char* key, const char** text, int* length);
ncclResult_t ncclParamGetAllParameterKeys(const char*** keys, int* count);
void ncclParamDumpAll();

ncclResult_t ncclSetEncryption(const ncclEncryptionConfig_t* config);

// ---- groups -----------------------------------------------------------------------------

ncclResult_t ncclGroupStart();
ncclResult_t ncclGroupEnd();
ncclResult_t ncclGroupSimulateEnd(ncclSimInfo_t* info);

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
