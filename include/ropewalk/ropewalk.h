/* Ropewalk's C API: collective communication between the ranks of a communicator.
 *
 * The calls, their arguments and the numbers of types and operators follow NCCL's, with the prefix
 * `rw` instead of `nccl`. Differences: a call on host memory blocks unless it is given a request,
 * and every error has a text (rwGetLastError).
 *
 * topology.h has machines as graphs, plan.h plans for them, diagnostics.h the measurements, probes
 * and computations of tools.
 *
 * Threads: a communicator may be used by one thread at a time; different communicators by different
 * threads at once. A call while another thread is in one gets rwInvalidUsage, and the communicator
 * stays whole. (Two calls that begin within the same few nanoseconds may both run; the communicator
 * is broken then, and says why.) rwCommAbort and rwCommGetAsyncError may be called at any time by
 * any thread.
 *
 * Processes: a communicator, and a request, belong to the process that made them. In a forked child
 * calls with them get rwInvalidUsage; rwCommDestroy and rwRequestFree do nothing, and what they
 * would free stays. No other rank notices. The child may make communicators of its own. */
#ifndef ROPEWALK_ROPEWALK_H_
#define ROPEWALK_ROPEWALK_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(RW_BUILDING_LIBRARY)
#define RW_API __attribute__((visibility("default")))
#else
#define RW_API
#endif

#define RW_MAJOR 0
#define RW_MINOR 1
#define RW_PATCH 0
#define RW_VERSION_CODE (RW_MAJOR * 10000 + RW_MINOR * 100 + RW_PATCH)

/* ---- results -------------------------------------------------------------------------------- */

/* The numbers equal ncclResult_t's. */
typedef enum {
  rwSuccess = 0,
  rwUnhandledCudaError = 1,
  rwSystemError = 2,
  rwInternalError = 3,
  rwInvalidArgument = 4,
  rwInvalidUsage = 5,
  rwRemoteError = 6, /* another rank died, left or aborted; the text names it */
  rwInProgress = 7,  /* an asynchronous operation has not finished */
  rwTimeout = 8,     /* a deadline passed; the text names the ranks that did not answer */
  rwInterrupted = 9  /* the program's interrupt check ended the wait (rwSetInterruptCheck) */
} rwResult_t;

/* MAJOR * 10000 + MINOR * 100 + PATCH of the library. */
RW_API rwResult_t rwGetVersion(int* version);

/* A constant string for a result. Never NULL. */
RW_API const char* rwGetErrorString(rwResult_t result);

/* The last error: on `comm` if it is not NULL, else in the calling thread, beginning with the
 * function that failed ("rwAllReduce: count: ..."). "" if there was none. Valid until the next call
 * on `comm`, or of the thread. */
struct rwComm;
typedef struct rwComm* rwComm_t;
RW_API const char* rwGetLastError(rwComm_t comm);

/* ---- types and operators -------------------------------------------------------------------- */

/* The numbers equal ncclDataType_t's up to rwNumTypes. Those after it have no operators, but
 * for rwSum and rwAvg of the complex ones: they can be moved (broadcast, all-gather, all-to-all,
 * gather, scatter, sends and receives), on host memory and GPUs. */
typedef enum {
  rwInt8 = 0,
  rwUint8 = 1,
  rwInt32 = 2,
  rwUint32 = 3,
  rwInt64 = 4,
  rwUint64 = 5,
  rwFloat16 = 6,
  rwFloat32 = 7,
  rwFloat64 = 8,
  rwBfloat16 = 9,
  rwFloat8e4m3 = 10,
  rwFloat8e5m2 = 11,
  rwNumTypes = 12, /* of those above */
  rwBool = 16,     /* one byte */
  rwInt16 = 17,
  rwUint16 = 18,
  rwComplex64 = 19,  /* two float32 */
  rwComplex128 = 20, /* two float64 */
  rwByte = 21        /* a byte of an element of any type; counts are in bytes */
} rwDataType_t;

/* The numbers equal ncclRedOp_t's. Larger values come from rwRedOpCreatePreMulSum. */
typedef enum {
  rwSum = 0,
  rwProd = 1,
  rwMax = 2,
  rwMin = 3,
  rwAvg = 4, /* sum divided by the number of ranks; integers truncate towards zero */
  rwNumOps = 5,
  rwMaxRedOp = 0x7fffffff
} rwRedOp_t;

/* An operator that multiplies this rank's input by *scalar (one element of `type`, read now) and
 * sums the products. Belongs to `comm`; for `type` only. */
RW_API rwResult_t rwRedOpCreatePreMulSum(rwRedOp_t* op, const void* scalar, rwDataType_t type,
                                         rwComm_t comm);
RW_API rwResult_t rwRedOpDestroy(rwRedOp_t op, rwComm_t comm);

/* ---- communicators -------------------------------------------------------------------------- */

/* Address of the first rank and a random secret that every joining rank must prove to hold. Hand it
 * to the other ranks over a private channel. Serves one communicator. */
#define RW_UNIQUE_ID_BYTES 128
typedef struct {
  char internal[RW_UNIQUE_ID_BYTES];
} rwUniqueId;
RW_API rwResult_t rwGetUniqueId(rwUniqueId* id);

/* Joins as `rank` of `nranks`. Returns when all ranks have joined, or the deadline
 * (ROPEWALK_TIMEOUT) passed. */
RW_API rwResult_t rwCommInitRank(rwComm_t* comm, int nranks, rwUniqueId id, int rank);

/* Joins as the launcher's environment says: torchrun, mpirun (Open MPI, MPICH), srun, or
 * ROPEWALK_RANK, ROPEWALK_WORLD_SIZE and ROPEWALK_RENDEZVOUS. Alone (no launcher) it makes a
 * communicator of one rank. */
RW_API rwResult_t rwCommInitEnv(rwComm_t* comm);
/* The same with `nranks` ranks in each of the launcher's processes, which all call with the same
 * number: comms[i] of process p is rank p * nranks + i. */
RW_API rwResult_t rwCommInitEnvRanks(rwComm_t* comms, int nranks);

/* `nranks` communicators of one new group, all in this process; comms[i] is rank i. */
RW_API rwResult_t rwCommInitAll(rwComm_t* comms, int nranks);

/* Ranks that give equal `color` form a communicator, ordered by `key`, then by rank. A negative
 * color (RW_SPLIT_NOCOLOR) takes part and gets NULL. All ranks of `comm` must call. */
#define RW_SPLIT_NOCOLOR (-1)
RW_API rwResult_t rwCommSplit(rwComm_t comm, int color, int key, rwComm_t* newcomm);

RW_API rwResult_t rwCommCount(rwComm_t comm, int* count);
RW_API rwResult_t rwCommUserRank(rwComm_t comm, int* rank);

/* Waits for this rank's outstanding operations and notifies the others that it leaves in order. */
RW_API rwResult_t rwCommFinalize(rwComm_t comm);
/* rwCommFinalize where it was not called, then frees. NULL is fine. */
RW_API rwResult_t rwCommDestroy(rwComm_t comm);
/* Ends every operation of this rank with an error, notifies the others, and frees the
 * communicator. */
RW_API rwResult_t rwCommAbort(rwComm_t comm);
/* The error that broke the communicator, or rwSuccess. Does not block. */
RW_API rwResult_t rwCommGetAsyncError(rwComm_t comm, rwResult_t* error);

/* ---- interrupts ----------------------------------------------------------------------------- */

/* Makes waits in the calling thread interruptible, for example by Ctrl-C: from now on each call
 * that waits calls `check(user)` every 0.1 s. Result 0: the call continues to wait. Any other
 * result: the call returns rwInterrupted. An interrupted wait for a request does not end the
 * operation and may be repeated; an interrupted operation, or joining, breaks its communicator, and
 * the other ranks are notified.
 *
 * Only for this thread; NULL, the initial state: waits are not interruptible. `check` may take any
 * time. It must not call the library with a communicator, or set a check: rwInvalidUsage. */
RW_API rwResult_t rwSetInterruptCheck(int (*check)(void* user), void* user);

/* ---- requests ------------------------------------------------------------------------------- */

/* Where an operation's memory is worked on. NULL: host memory. Else a cudaStream_t on which the
 * operation is enqueued, for communicators with a GPU (rwCommAttachDevice); CUDA's default stream,
 * which is 0 to CUDA, is RW_STREAM_LEGACY here (as cudaStreamLegacy). */
typedef struct rwStreamOpaque* rwStream_t;
#define RW_STREAM_LEGACY ((rwStream_t)0x1)
#define RW_STREAM_PER_THREAD ((rwStream_t)0x2)

/* Gives this rank the GPU `device` (CUDA's number; -1: the current one). All ranks of `comm` call,
 * each with a GPU; then operations may work on GPU memory. Several ranks in one thread call between
 * rwGroupStart and rwGroupEnd. */
RW_API rwResult_t rwCommAttachDevice(rwComm_t comm, int device);
/* Registers `bytes` at `buffer`, in the memory of this rank's GPU, so that the GPUs of other
 * processes read them directly instead of having them copied into a window first. All ranks of
 * `comm` call, in the same order, each with a buffer, whose sizes may differ; several ranks in one
 * thread call between rwGroupStart and rwGroupEnd, where *window is set. Operations find out by
 * themselves whether their buffers are registered; nothing else changes, and any other memory works
 * as before. Memory that is not from cudaMalloc (from CUDA's virtual memory functions, from pools)
 * is accepted but stays staged.
 *
 * An invalid buffer (NULL, 0 bytes, on the host, on another GPU) is an error on all ranks that
 * names its rank; nothing is registered. If a rank does not call, the others time out, and `comm`
 * is broken. rwInvalidUsage without a GPU. */
typedef struct rwWindowOpaque* rwWindow_t;
RW_API rwResult_t rwCommWindowRegister(rwComm_t comm, void* buffer, size_t bytes,
                                       rwWindow_t* window);
/* The same, with a promise that all ranks give: what they pass to one operation lies equally many
 * bytes behind the start of each one's buffer, and none uses it once one has deregistered it. Then
 * copy engines may write the outputs of operations there (setting COPY_ENGINES). */
RW_API rwResult_t rwCommWindowRegisterSymmetric(rwComm_t comm, void* buffer, size_t bytes,
                                                rwWindow_t* window);
/* Deregisters a buffer. Local: peers may deregister later or never. Does not wait: started
 * operations continue, and the memory must stay allocated until they have run. After the program
 * frees it, the GPU regains the memory when the other processes have closed it: when they register
 * or deregister something, between operations after they have deregistered their part, or when they
 * leave `comm`, which also closes what was never deregistered. CUDA graphs that were captured with
 * the buffer must not be launched any more; where graphs have captured operations of `comm`,
 * closing waits for the next registration, or the end. */
RW_API rwResult_t rwCommWindowDeregister(rwComm_t comm, rwWindow_t window);
/* Why GPUs cannot be used here, "" when they can. Valid until the thread's next call. */
RW_API const char* rwWhyNoDevice(void);
/* GPUs that this process sees; 0 where none can be used. */
RW_API rwResult_t rwDeviceCount(int* count);
/* JSON of one GPU: device, name, bus_id, capability, total_bytes, free_bytes. Freed with
 * rwFreeText. */
RW_API rwResult_t rwDeviceDescribe(int device, char** json);
/* This rank's GPU, -1 when it has none. */
RW_API rwResult_t rwCommDevice(rwComm_t comm, int* device);
/* Bytes of device memory that `comm` holds. */
RW_API rwResult_t rwCommDeviceMemory(rwComm_t comm, size_t* bytes);

/* An operation that was started. Every collective takes `request`: NULL blocks until the operation
 * is done; else *request is set and the call returns at once. Operations of a communicator run in
 * the order in which they were started. */
typedef struct rwRequest* rwRequest_t;

/* Waits at most `timeout_us` microseconds, for ever when negative. rwInProgress when the time
 * passed first: the operation goes on. The result of the operation otherwise. */
RW_API rwResult_t rwRequestWait(rwRequest_t request, int64_t timeout_us);
/* The text of the error that the operation ended with; "" when none, as after a wait that was
 * interrupted. Valid until rwRequestFree. */
RW_API const char* rwRequestError(rwRequest_t request);
/* Frees. An operation that still runs goes on, and its buffers must stay. NULL is fine. */
RW_API rwResult_t rwRequestFree(rwRequest_t request);

/* A request that completes when all work enqueued on `stream` of GPU `device` so far has run. For
 * operations on streams, which take no request of their own. rwCommGetAsyncError tells whether the
 * operation succeeded. For a stream that is being captured: rwInvalidUsage. */
RW_API rwResult_t rwStreamMark(int device, rwStream_t stream, rwRequest_t* request);

/* ---- collectives ---------------------------------------------------------------------------- */

/* Counts are in elements of `type`. Buffers are aligned to the element. sendbuf == recvbuf (shifted
 * by the rank's block as in NCCL for all-gather, reduce-scatter, gather and scatter) is in place. A
 * buffer that a rank does not use may be NULL. */

/* recvbuf = combination over all ranks of sendbuf; both hold `count` elements. */
RW_API rwResult_t rwAllReduce(const void* sendbuf, void* recvbuf, size_t count, rwDataType_t type,
                              rwRedOp_t op, rwComm_t comm, rwStream_t stream, rwRequest_t* request);
/* recvbuf on every rank = sendbuf of `root`; `count` elements.
 *
 * Here and in rwScatter a root waits for nobody when the data is short: two ranks that each give
 * their own number as root may both return. One of them, at least, learns of it, by rank and field
 * (rwInvalidUsage), in its next operation that uses a link between the two, or in rwCommFinalize at
 * the latest when both are on one host. Data too long for a link's slots is missed at once. */
RW_API rwResult_t rwBroadcast(const void* sendbuf, void* recvbuf, size_t count, rwDataType_t type,
                              int root, rwComm_t comm, rwStream_t stream, rwRequest_t* request);
/* recvbuf on `root` = combination over all ranks of sendbuf; `count` elements. */
RW_API rwResult_t rwReduce(const void* sendbuf, void* recvbuf, size_t count, rwDataType_t type,
                           rwRedOp_t op, int root, rwComm_t comm, rwStream_t stream,
                           rwRequest_t* request);
/* recvbuf = sendbufs of all ranks, in rank order; sendbuf holds `sendcount` elements. */
RW_API rwResult_t rwAllGather(const void* sendbuf, void* recvbuf, size_t sendcount,
                              rwDataType_t type, rwComm_t comm, rwStream_t stream,
                              rwRequest_t* request);
/* recvbuf (`recvcount` elements) = this rank's share of the combination of sendbufs. */
RW_API rwResult_t rwReduceScatter(const void* sendbuf, void* recvbuf, size_t recvcount,
                                  rwDataType_t type, rwRedOp_t op, rwComm_t comm, rwStream_t stream,
                                  rwRequest_t* request);
/* Element block j of sendbuf goes to block i (the sender's rank) of rank j's recvbuf; blocks of
 * `count` elements. In place on GPUs only, where the input is copied first. */
RW_API rwResult_t rwAllToAll(const void* sendbuf, void* recvbuf, size_t count, rwDataType_t type,
                             rwComm_t comm, rwStream_t stream, rwRequest_t* request);
/* recvbuf on `root` = sendbufs of all ranks, in rank order. */
RW_API rwResult_t rwGather(const void* sendbuf, void* recvbuf, size_t sendcount, rwDataType_t type,
                           int root, rwComm_t comm, rwStream_t stream, rwRequest_t* request);
/* recvbuf (`recvcount` elements) = this rank's block of root's sendbuf. */
RW_API rwResult_t rwScatter(const void* sendbuf, void* recvbuf, size_t recvcount, rwDataType_t type,
                            int root, rwComm_t comm, rwStream_t stream, rwRequest_t* request);
/* Every rank sends to the next and receives from the previous one; `count` elements. */
RW_API rwResult_t rwSendRecv(const void* sendbuf, void* recvbuf, size_t count, rwDataType_t type,
                             rwComm_t comm, rwStream_t stream, rwRequest_t* request);
/* Returns when every rank has called. */
RW_API rwResult_t rwBarrier(rwComm_t comm);

/* ---- point to point ------------------------------------------------------------------------- */

/* Sends and receives between a pair of ranks match in order. Several that may wait for each other
 * (an exchange) belong into one group. */
RW_API rwResult_t rwSend(const void* sendbuf, size_t count, rwDataType_t type, int peer,
                         rwComm_t comm, rwStream_t stream, rwRequest_t* request);
RW_API rwResult_t rwRecv(void* recvbuf, size_t count, rwDataType_t type, int peer, rwComm_t comm,
                         rwStream_t stream, rwRequest_t* request);

/* Calls of one thread between start and end are started together at the end: sends and receives,
 * collectives on several communicators, rwCommInitRank of several ranks in one thread. Groups nest;
 * the outermost end starts, and returns when the operations given no request are done. */
RW_API rwResult_t rwGroupStart(void);
RW_API rwResult_t rwGroupEnd(void);

/* ---- schedules ------------------------------------------------------------------------------ */

/* Texts that these calls return are freed with rwFreeText. */
RW_API void rwFreeText(char* text);

/* The text form of the schedule of a collective ("all_reduce") by an algorithm ("ring"). */
RW_API rwResult_t rwScheduleMake(const char* collective, const char* algorithm, int nranks,
                                 int root, int channels, char** text);
/* The same for ranks on several hosts: `host_of_rank` has the host of each of the `nranks` ranks,
 * numbered from 0. Algorithms that need hosts ("hierarchical") use them, rings and chains go around
 * each host before they leave it, as those of communicators do. NULL: all on one host. */
RW_API rwResult_t rwScheduleMakeOnHosts(const char* collective, const char* algorithm, int nranks,
                                        int root, int channels, const int* host_of_rank,
                                        char** text);
/* Parses and checks. *report is JSON: accepted, defects[], in_place, links[], longest_path, and the
 * schedule itself. A refused schedule is a result, not an error; unreadable text is an error. */
RW_API rwResult_t rwScheduleCheck(const char* text, char** report);
/* JSON list of the algorithms: name, help, collectives, and needs: in words, of the ranks' hosts,
 * where an algorithm is for rwScheduleMakeOnHosts alone. */
RW_API rwResult_t rwScheduleAlgorithms(char** json);
/* From now on `comm` runs this schedule for its collective; all ranks must pass the same one. The
 * checker must accept it. NULL text restores the tuner's choice for all collectives. For host
 * memory and for GPUs, where a schedule has at most 64 channels. */
RW_API rwResult_t rwCommUseSchedule(rwComm_t comm, const char* text);
/* Why `comm` runs `collective` ("all_reduce" and so on) by the algorithm that it does: on its GPU's
 * memory where it has a GPU, else on the host's. `bytes`: the size as nccl-tests counts it, that of
 * the larger of a rank's two buffers. `root`: of rooted operations. *json, for rwFreeText:
 * operation, bytes, root, ranks, hosts, network (the transport between hosts, or null),
 * network_slots ("GPU memory" or "pinned memory": where this rank's slots of links between GPUs of
 * several hosts are that threads move; else null), nic_gbps[] (where each host has several NICs:
 * GB/s of each that is used, the fastest first; channel c goes over NIC c modulo their number),
 * machine (name, origin and fingerprint, as rwCommPlacement gives them), candidates[] with the
 * cheapest first (algorithm, kind: "shape" or "plan", channels, chunk_bytes, by_address,
 * predicted_us, algbw_gbps), memory ("host" or "GPU"), chosen, protocol and channels (of the chosen
 * one), and chosen_by: "cost model", "setting ALGORITHM" or "rwCommUseSchedule". Where each rank
 * has a GPU of its own on the machine (GPUs that were found,
 * or settings TOPOLOGY, EMULATE): bound {algbw_gbps, words} of operations that plans are made for,
 * the candidates' algbw_gbps for long messages, and limiting_links[] of the chosen one (link, type,
 * capacity and load in GB/s); else null and []. chunks, on host memory, else null: bytes (of the
 * next such call's chunks), start_bytes (as the cost model chose), state ("fixed"; where the chunk
 * size is tuned, setting ADAPT_CHUNKS: "measuring" or "settled" on one rank, else "follows")
 * and gain (where settled: the time at first over the time now; else null). copy_engines: whether
 * copy engines make such a call in place of the chosen one, where its output lies in a window that
 * all ranks registered as symmetric (setting COPY_ENGINES). Local: the other ranks need not call.
 */
RW_API rwResult_t rwCommExplain(rwComm_t comm, const char* collective, size_t bytes, int root,
                                char** json);
/* The emulated machine that `comm` runs on (setting EMULATE). *json, for rwFreeText: machine (its
 * name), gpus[] (their ids, by rank), slowdown (how many times its links are slowed); null where
 * nothing is emulated. Local. */
RW_API rwResult_t rwCommEmulation(rwComm_t comm, char** json);

/* From now on an operation of this rank may stand still for `timeout_us` microseconds, or for the
 * setting TIMEOUT where that is shorter; then it ends with rwTimeout. 0: TIMEOUT alone; negative:
 * for ever. Holds for operations that are started later; ranks may differ. */
RW_API rwResult_t rwCommSetTimeout(rwComm_t comm, int64_t timeout_us);

/* ---- settings ------------------------------------------------------------------------------- */

/* Sets NAME for communicators made from now on, over environment and file. */
RW_API rwResult_t rwSettingSet(const char* name, const char* value, const char* source);
/* JSON list of all settings: name, type, default, allowed, help, value, source. */
RW_API rwResult_t rwSettingsDescribe(char** json);
#ifdef __cplusplus
}
#endif

#endif
