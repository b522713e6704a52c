/* Windows: memory that the ranks of a communicator put to and get from, and signals.
 *
 * A put needs no matching call on the target. The target learns of it by a signal: a 64-bit counter
 * in the window that the sender increments and the owner waits for. The model is that of MPI's
 * one-sided operations within an epoch that never ends (MPI-4, chapter 12: MPI_Win_lock_all), and
 * of NCCL's PutSignal, Signal and WaitSignal.
 *
 * Ranks of one host store straight into each other's memory, where the library allocated it
 * (rwWindowCreate) or they are threads of one process. To all others, and to memory that the user
 * brought (rwWindowRegister) in another process, a link over a transport carries the data; a thread
 * of the owner's puts it there, so that a rank that computes is served all the same, within about
 * 0.1 ms where messages came lately and 1 ms where none did for 50 ms.
 *
 * Order. The operations of one rank on one peer take effect in the order in which they were called,
 * with or without requests: a signal is seen after the data of the puts before it. (A get with a
 * request reads at any time until it is done.) Operations on
 * different peers, of different ranks, or between windows and collectives are not ordered, but by
 * signals, rwFlush, and what the program does after it waited.
 *
 * Data of a peer's put may be read after waiting for a signal that followed the put; until then the
 * bytes are undefined. Concurrent accesses to the same bytes, one of them a put, give undefined
 * bytes; this is not detected.
 *
 * Requests. With `request` NULL a call returns when it is done, as stated per call; else it sets
 * *request and returns at once, and the request completes when the call is done (rwRequestWait).
 * An operation that needs no link is done before the call returns.
 *
 * Streams. With `stream` NULL the host does the operation. With a CUDA stream (`request` NULL) the
 * call enqueues it and returns: the stream does it, in its order, and
 * what the call's `done` says holds for what is enqueued after it. (CUDA's default stream is
 * cudaStreamLegacy here.) Sources and destinations are memory of a GPU, or pinned. The order above
 * is then that in which streams do the operations: calls that raise one counter, or wait for one,
 * from several streams or from the host as well must be ordered by the program as they were called.
 *
 * A window in the host's memory is used by streams of one GPU, that of the first stream that comes:
 * this first call registers the memory with CUDA, which takes as long as pinning it and may wait
 * for kernels. Memory that the user registered must be pinned for that (cudaHostAlloc,
 * cudaHostRegister). From then on the host's calls on it, too, take memory of that GPU as source
 * and destination; without a stream before, they take the host's memory alone. A stream that is
 * being captured cannot use it.
 *
 * A stream's wait ends in any case: when its peer is lost or left, when the deadline passes (from
 * when the stream came to it) and when the communicator is aborted or destroyed, streams go on, as
 * if the signals had come, and the next call, or rwCommGetAsyncError, tells; the communicator is
 * broken then. (For the trigger of an armed batch alone there is no deadline: rwBatchArm.) At most
 * 256 calls and 4,096 operations are in streams at once; the next one waits.
 *
 * A stream that is being captured (windows in GPU memory): puts and gets become copies of the
 * graph, signals and waits kernels of one thread that count in GPU memory, so that the graph may be
 * launched again and again, once at a time. From then on kernels count the signals to that peer on
 * that slot, or the waits for it, and the host's calls for them, with or without a stream, get
 * rwInvalidUsage (device.cuh). Graphs must not be launched any more when the window is freed.
 *
 * Streams wait by CUDA's memory operations, which hold no multiprocessor, but for waits of prepared
 * batches and captured ones, which kernels do. As CUDA warns, streams that wait for each other must
 * not share one of its queues (CUDA_DEVICE_MAX_CONNECTIONS); and taking and freeing GPU memory,
 * which making and freeing a window does, waits for the process's streams, those that wait for
 * signals included.
 *
 * Errors of every call. rwInvalidArgument: a range beyond the peer's part, or a rank, slot or
 * count out of range; rwInvalidUsage: a window that was freed, or is in use; rwRemoteError where
 * the peer left in order. Nothing was done then, and the communicator remains usable. A rank that
 * was lost or aborted (rwRemoteError), a deadline that passed (rwTimeout: rwCommSetTimeout, setting
 * TIMEOUT; for puts and gets over a link, while nothing moves) and an interrupt break it as for
 * operations.
 *
 * Threads: as the communicator's, one at a time.
 */
#ifndef ROPEWALK_MESSAGES_H_
#define ROPEWALK_MESSAGES_H_

#include <ropewalk/device_window.h>
#include <ropewalk/ropewalk.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- windows -------------------------------------------------------------------------------- */

/* A window, as one rank has it. The handle is valid until the communicator's end, also after
 * rwWindowFree, when every call with it gets rwInvalidUsage. (rwWindow_t is a buffer on a GPU that
 * collectives read: rwCommWindowRegister.) */
typedef struct rwMessageWindow* rwMessageWindow_t;

/* Makes a window whose memory the library allocates: `bytes` of it on this rank, zeroed, in shared
 * memory. All ranks of `comm` call, in the same order. Sizes may differ, and be 0. `slots`, the
 * same on all ranks (1 to 4096): each rank has so many counters for each source.
 *
 * Memory is taken at once: rwSystemError on all ranks where one of them has not enough, as for all
 * that a rank gives and cannot be right. `comm` stays whole. */
RW_API rwResult_t rwWindowCreate(rwComm_t comm, size_t bytes, int slots, rwMessageWindow_t* window);
/* The same in memory of the GPU `device`, as CUDA numbers them here; -1 is rwWindowCreate. All
 * ranks give GPU memory, or all the host's (rwInvalidUsage). Ranks of one process reach each
 * other's part by peer access, those of other processes of the host by CUDA IPC; where that does
 * not work, and on other hosts, a link carries the operations. Host calls on such a window copy by
 * CUDA, and return when the copy is done; their buffers may be in any memory. */
RW_API rwResult_t rwWindowCreateOn(rwComm_t comm, int device, size_t bytes, int slots,
                                   rwMessageWindow_t* window);
/* Makes a window of queues, in memory of the GPU `device` (-1: the host's, for threads of the
 * host): by send() and receive() of device.cuh kernels of the ranks send each other messages, from
 * each rank to each on each of `slots` (1 to 4096) in their order. `bytes` (1 to 16 MiB, both the
 * same on all ranks) may be sent on each before the peer has received any; a longer message is sent
 * as the peer receives it. A queue takes 2.7 to 5.4 times the memory, at least 1 KiB, for each rank
 * and slot; rwWindowMemory tells of none, and there is nothing to put to. Signals are as on other
 * windows. Where a link carries, queues lie in pinned memory. */
RW_API rwResult_t rwWindowCreateQueues(rwComm_t comm, int device, size_t bytes, int slots,
                                       rwMessageWindow_t* window);
/* rwWindowCreate with memory of the user's, which must stay until rwWindowFree; NULL and 0 for
 * none. It may be memory of a GPU. (A rank without any in a window in GPU memory calls
 * rwWindowCreateOn with 0 bytes.) What CUDA's virtual memory functions or pools gave has no handle
 * for other processes: links carry what these do. */
RW_API rwResult_t rwWindowRegister(rwComm_t comm, void* memory, size_t bytes, int slots,
                                   rwMessageWindow_t* window);
/* Ends it. All ranks call; returns when all have, and all that they did to it is done. Memory that
 * the library allocated is gone then. rwInvalidUsage while this rank has operations with requests,
 * or a launched batch, on it, or in a stream: wait for them, and call again. Windows that were not
 * freed end with the communicator. NULL is fine. */
RW_API rwResult_t rwWindowFree(rwMessageWindow_t window);
/* Where this rank, or its GPU, sees the part of `rank`, and how large it is. *memory is NULL where
 * it cannot address it: of other hosts, and of what other processes registered. Who stores there
 * orders the stores by rwSignal, as puts. `memory` and `bytes` may be NULL. */
RW_API rwResult_t rwWindowMemory(rwMessageWindow_t window, int rank, void** memory, size_t* bytes);
/* The same part as a range of a file of shared memory: *fd, and *offset, a multiple of a page's
 * size, for a mapping of the caller's own (mmap) that may outlast the window. The descriptor is the
 * window's: duplicate it, or map before rwWindowFree. -1 where *memory would be NULL, for what a
 * rank registered, and for memory of a GPU. */
RW_API rwResult_t rwWindowDescriptor(rwMessageWindow_t window, int rank, int* fd, size_t* offset);

/* The window as kernels use it (device.cuh), for as long as the window is there: a value, to be
 * passed to kernels as an argument. For a window in the host's memory, as threads of the host use
 * it by the same functions. Local. Kernels go on counting from what this rank's calls had signalled
 * and waited for when this was called first; who counts afterwards is said in device.cuh. The time
 * limit of their waits is the communicator's at that time. Window and communicator must not be
 * freed while kernels use it.
 *
 * Kernels are not told of a rank that left in order, nor are streams of what they hold by then.
 * Where its part is reached without a link they write to it all the same: in the host's memory
 * without effect; memory of a GPU may be gone, and what CUDA does then is undefined. So free
 * windows, which all ranks do together, before a rank leaves. Where a link carries, a put, get or
 * signal to it breaks the communicator (rwRemoteError: the rank left). A kernel's wait for it ends
 * by the deadline. */
RW_API rwResult_t rwWindowDevice(rwMessageWindow_t window, rwDeviceWindow* device);

/* A message of a queue by a stream: enqueues a kernel of one block that sends `bytes` from
 * `source`, memory of a GPU or pinned, to `peer` on `slot`, or that receives as many into
 * `destination`. Host and stream go on: the source may be reused, and the destination read, by what
 * follows in the stream. One call's message may be received by a kernel's receive(), and the other
 * way round. `window` is one of queues in memory of a GPU; messages of one peer and slot are in the
 * order of the stream, and the program orders what several streams send. The kernel that receives
 * holds a block of the GPU until the message is there; it ends as other waits do. In CUDA graphs,
 * too. Messages of more than some 100 KB are faster by rwPutSignal.
 *
 * Lengths are for both sides to know, since a queue carries none: it is a row of words of 8 bytes,
 * and a message takes as many as it needs. So one of 16 bytes may be received as two of 8; what
 * was not asked for is what the next one receives; and who asks for more than was sent waits for
 * the next message, and takes its beginning. */
RW_API rwResult_t rwQueueSend(const void* source, size_t bytes, int peer, int slot,
                              rwMessageWindow_t window, rwStream_t stream);
RW_API rwResult_t rwQueueReceive(void* destination, size_t bytes, int peer, int slot,
                                 rwMessageWindow_t window, rwStream_t stream);

/* ---- operations ----------------------------------------------------------------------------- */

/* Copies `bytes` from `source` to `offset` of the part of `peer` (which may be this rank). Done:
 * the source may be reused. The peer sees the data when it has waited for a later signal. */
RW_API rwResult_t rwPut(const void* source, size_t bytes, int peer, size_t offset,
                        rwMessageWindow_t window, rwStream_t stream, rwRequest_t* request);
/* Copies `bytes` at `offset` of the part of `peer` to `destination`. Done: they are there. It sees
 * this rank's own earlier puts to that peer; of later ones, which begin before it is done, it may
 * see some. */
RW_API rwResult_t rwGet(void* destination, size_t bytes, int peer, size_t offset,
                        rwMessageWindow_t window, rwStream_t stream, rwRequest_t* request);
/* Raises the counter that `peer` has for this rank and `slot` by `count`, from 1. Counters are
 * never reset and end at 2^63 - 1: rwInvalidArgument. Done: it is on its way. */
RW_API rwResult_t rwSignal(int peer, int slot, uint64_t count, rwMessageWindow_t window,
                           rwStream_t stream, rwRequest_t* request);
/* rwPut, then rwSignal by 1. */
RW_API rwResult_t rwPutSignal(const void* source, size_t bytes, int peer, size_t offset, int slot,
                              rwMessageWindow_t window, rwStream_t stream, rwRequest_t* request);
/* Waits until `count` signals of `peer` on `slot` have arrived beyond those that were waited for
 * before. Done: what `peer` put here before them may be read. A peer that left in order, and whose
 * signals have not come, is rwRemoteError after 0.2 s. A wait that ends with an error has waited
 * for none. */
RW_API rwResult_t rwWaitSignal(int peer, int slot, uint64_t count, rwMessageWindow_t window,
                               rwStream_t stream, rwRequest_t* request);
/* How many signals of `peer` on `slot` have arrived since the window was made, those waited for
 * included. Does not wait. */
RW_API rwResult_t rwSignalCount(int peer, int slot, rwMessageWindow_t window, uint64_t* count);
/* Done: all that this rank did to the part of `peer` before is complete there, so that whoever is
 * told of it by any means finds it. (More than that sources may be reused, which a put's own end
 * says; as MPI_Win_flush.) RW_ALL_PEERS, which takes no request: to all. rwInvalidUsage in a stream
 * that is captured, to a peer that a link serves. */
#define RW_ALL_PEERS (-1)
RW_API rwResult_t rwFlush(int peer, rwMessageWindow_t window, rwStream_t stream,
                          rwRequest_t* request);

/* ---- prepared batches ----------------------------------------------------------------------- */

/* Operations that are prepared once and launched together, any number of times. */
typedef struct rwBatch* rwBatch_t;
RW_API rwResult_t rwBatchCreate(rwComm_t comm, rwBatch_t* batch);
/* rwInvalidUsage while it is launched. NULL is fine. */
RW_API rwResult_t rwBatchFree(rwBatch_t batch);

/* These add an operation of the same meaning, on any window of the batch's communicator, and check
 * it. Sources are read, and destinations written, when the batch is launched: they must stay. */
RW_API rwResult_t rwBatchPut(rwBatch_t batch, const void* source, size_t bytes, int peer,
                             size_t offset, rwMessageWindow_t window);
RW_API rwResult_t rwBatchGet(rwBatch_t batch, void* destination, size_t bytes, int peer,
                             size_t offset, rwMessageWindow_t window);
RW_API rwResult_t rwBatchSignal(rwBatch_t batch, int peer, int slot, uint64_t count,
                                rwMessageWindow_t window);
RW_API rwResult_t rwBatchWaitSignal(rwBatch_t batch, int peer, int slot, uint64_t count,
                                    rwMessageWindow_t window);
RW_API rwResult_t rwBatchFlush(rwBatch_t batch, int peer, rwMessageWindow_t window);
/* Starts its operations in the order in which they were added; a wait for signals or a flush holds
 * back those after it. Done: all of them are. Waits count arrivals, so each launch waits for as
 * many more. rwInvalidUsage for a batch that was launched and has not ended. When an operation
 * fails those after it are not started, and the batch ends with its error. On a stream it may be
 * launched again at once: the stream keeps the order. Between launch and end the program may call
 * other operations; those on the same peer are not ordered with the batch's that were held back.
 *
 * A batch that rwBatchDevice takes, whose peers are reached without links and whose sources are
 * memory of the window's GPU or pinned, is one kernel of one block on a stream, or two where it has
 * more than 64 KiB of data; its waits hold that block while they last. (One put of more than 64 KiB
 * with its signal is a copy and memory operations as without a batch, and so are batches of more
 * than 32 signals or 128 waits, and one put or one signal alone. Waits are memory operations where
 * there are more than 32, and where another process's rank has the same GPU, whose kernels a wait
 * would keep off it.) The counts are the host's, so that launches, calls of the host and calls on
 * streams may be mixed; in a graph kernels count, and the batch must stay while the graph is
 * launched. */
RW_API rwResult_t rwBatchLaunch(rwBatch_t batch, rwStream_t stream, rwRequest_t* request);
/* As rwBatchLaunch on a stream, which begins with it when *trigger was stored: by a kernel on
 * another stream (ropewalk::device::launch of device.cuh), so that one store sends all that was
 * prepared. Until then `stream` stands still. When that is the program decides, as it decides how
 * long a kernel runs, so that no deadline ends it; but when a rank is lost, or the communicator is
 * aborted or destroyed, the stream goes on as from any wait, and the next call tells.
 * (rwCommDestroy first waits for the trigger, until its deadline.) The time limits of waits in the
 * batch, and after it, begin when the stream comes to them. Each call makes a trigger for one
 * launch; 256 may be waited for at once. The window must be on the GPU whose kernels store it. Not
 * for a stream that is captured.
 */
RW_API rwResult_t rwBatchArm(rwBatch_t batch, rwStream_t stream, rwDeviceTrigger* trigger);
/* The batch as kernels launch it (ropewalk::device::launch of device.cuh), any number of times: a
 * value, to be passed to kernels as an argument. Local. Its puts begin together, then come its
 * signals, those to one peer and slot as one, then its waits. Counters are those of kernels, as
 * for rwWindowDevice. What the batch has now is what kernels do: add nothing later. Batch and
 * windows must not be freed while kernels use it. rwInvalidUsage for gets, flushes, a put or signal
 * after a wait, a put that overlaps another one's source or destination, and windows that are not
 * all on one GPU, or all in the host's memory, and counts for one counter whose sum it does not
 * hold; rwInvalidArgument for a source that is neither memory of a GPU nor pinned, for windows on a
 * GPU. */
RW_API rwResult_t rwBatchDevice(rwBatch_t batch, rwDeviceBatch* device);

#ifdef __cplusplus
}
#endif

#endif
