/* The API of libmp 2.0 (GPUDirect Async), over Ropewalk's windows instead of verbs.
 *
 * Programs written for libmp build with this folder on the include path (`#include <mp.h>`) and
 * `-lmp -lropewalk`. docs/libmp.md has what is accepted without effect, and what was decided where
 * libmp 2.0 itself is wrong or says nothing.
 *
 * Model. Ranks send and receive without tags: the n-th send to a peer meets the n-th receive from
 * it. Receives are posted by the CPU ahead of time; sends, puts and waits are done by the CPU or in
 * the order of a stream. A put tells the target nothing: it learns of it by a later send, or by
 * waiting for a word of its memory (mp_wait32). Sends to one peer are in order, and a send is seen
 * after the puts before it.
 *
 * Requests. A call that takes `req` sets it. A request is complete when its buffer may be reused
 * (sends, puts), or has the data (receives, gets). mp_wait and mp_wait_all release complete
 * requests and set them to NULL; the forms on streams do not, so that each request is released by
 * the CPU later. Releasing waits also for streams that were told to wait for the request.
 *
 * Streams. NULL is the GPU's default stream where mp_init was given a GPU. Without one NULL is a
 * host stream: its operations run in order, by a thread of the library and by calls that wait, and
 * a wait on it holds back those after it, not the CPU. Any other stream needs a GPU: EINVAL.
 * Streams that are being captured are refused. At most 64 streams are used; ENOMEM after that.
 *
 * Memory is the host's or, where mp_init was given a GPU, also a GPU's. All parts of a window are
 * of one kind; a put or get between GPU memory and a window in host memory is ENOTSUP.
 *
 * Results. 0 (MP_SUCCESS), MP_FAILURE when the ranks cannot go on (a peer died, a deadline passed:
 * setting TIMEOUT), or a positive errno value when nothing was done: EINVAL, ENOMEM, ENOTSUP.
 * mp_last_error() has the text. Nothing ends the process.
 *
 * Threads: calls may come from any thread, and exclude each other; a request belongs to one.
 */
#ifndef ROPEWALK_COMPAT_MP_H_
#define ROPEWALK_COMPAT_MP_H_

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

/* libmp's header includes MPI's. Programs without MPI define MP_NO_MPI, or just do not have it. */
#if !defined(MPI_VERSION) && !defined(MP_NO_MPI) && defined(__has_include)
#if __has_include(<mpi.h>)
#include <mpi.h>
#endif
#endif

#define MP_SUCCESS 0
#define MP_FAILURE 1

#define MP_API_MAJOR_VERSION 2
#define MP_API_MINOR_VERSION 0
#define MP_API_VERSION ((MP_API_MAJOR_VERSION << 16) | MP_API_MINOR_VERSION)
/* Whether a program that was built for this version runs with a library of version `v`. */
#define MP_API_VERSION_COMPATIBLE(v)                         \
  ((int)(((v)&0xffff0000U) >> 16) == MP_API_MAJOR_VERSION && \
   (int)((v)&0x0000ffffU) >= MP_API_MINOR_VERSION)

#if defined(MP_BUILDING_LIBRARY)
#define MP_EXPORT __attribute__((visibility("default")))
#else
#define MP_EXPORT
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* As CUDA's headers declare it. */
typedef struct CUstream_st* cudaStream_t;

typedef struct mp_reg* mp_reg_t;
typedef struct mp_request* mp_request_t;
typedef struct mp_window* mp_window_t;
typedef struct mp_desc_queue* mp_desc_queue_t;

typedef enum mp_param { MP_PARAM_VERSION, MP_NUM_PARAMS } mp_param_t;
/* MP_PARAM_VERSION: the library's MP_API_VERSION. */
MP_EXPORT int mp_query_param(mp_param_t param, int* value);

/* ---- beginning and end ---------------------------------------------------------------------- */

/* Where verbs keep their queues. Accepted, and without effect. */
enum mp_init_flags {
  MP_INIT_DEFAULT = 0,
  MP_INIT_WQ_ON_GPU,
  MP_INIT_RX_CQ_ON_GPU,
  MP_INIT_TX_CQ_ON_GPU,
  MP_INIT_DBREC_ON_GPU
};
/* `gpu_id` of a rank without a GPU. (libmp refuses it.) */
#define MP_HOST_ONLY (-1)

/* Ropewalk's own form of mp_init, which needs no MPI: joins as `rank` of `size`. `id` has
 * MP_ID_BYTES from mp_ropewalk_id() of one rank. All ranks call. `peers` are the `count` ranks that
 * this one exchanges messages with (itself among them, if it does so with itself); others are
 * refused. Either all ranks name a GPU or none does. An error of one rank's arguments is an error
 * on all. */
#define MP_ID_BYTES 128
MP_EXPORT int mp_ropewalk_id(char* id);
MP_EXPORT int mp_init_ropewalk(int rank, int size, const char* id, const int* peers, int count,
                               int flags, int gpu_id);
/* The same where the launcher's environment says who joins (rwCommInitEnv): torchrun, mpirun, srun,
 * `ropewalk launch`. Without a launcher: one rank. `peers` NULL: all ranks, itself included. */
MP_EXPORT int mp_init_env(const int* peers, int count, int flags, int gpu_id);
/* This rank, and how many there are; -1 before mp_init. */
MP_EXPORT int mp_rank(void);
MP_EXPORT int mp_size(void);

/* All ranks call: waits until all have, and ends. Requests and windows that are left are released.
 * mp_init may be called again. */
MP_EXPORT void mp_finalize(void);
/* The text of the calling thread's last error; "" if there was none. Valid until its next call. */
MP_EXPORT const char* mp_last_error(void);

/* `length` bytes at `addr`, to be used as source or destination. Local; costs nothing. */
MP_EXPORT int mp_register(void* addr, size_t length, mp_reg_t* reg);
MP_EXPORT int mp_deregister(mp_reg_t* reg);

/* ---- by the CPU ----------------------------------------------------------------------------- */

/* `size` bytes at `buf`, within `reg`. A message longer than its receive is an error of the
 * receive, and is dropped. Up to half a MiB to each peer is on its way before its receive is
 * posted; then sends wait. */
MP_EXPORT int mp_irecv(void* buf, int size, int peer, mp_reg_t* reg, mp_request_t* req);
MP_EXPORT int mp_isend(void* buf, int size, int peer, mp_reg_t* reg, mp_request_t* req);
/* The same with up to MP_MOST_BLOCKS blocks, all within `reg`, as one message. */
#define MP_MOST_BLOCKS 30
MP_EXPORT int mp_irecvv(struct iovec* v, int nblocks, int peer, mp_reg_t* reg, mp_request_t* req);
MP_EXPORT int mp_isendv(struct iovec* v, int nblocks, int peer, mp_reg_t* reg, mp_request_t* req);

/* Waits until it is complete, and releases it. EINVAL for a prepared request that was not posted.
 */
MP_EXPORT int mp_wait(mp_request_t* req);
MP_EXPORT int mp_wait_all(uint32_t count, mp_request_t* req);
/* How many of them are complete now; releases none. Negative: -MP_FAILURE or -errno. */
MP_EXPORT int mp_progress_all(uint32_t count, mp_request_t* req);

/* ---- on streams ----------------------------------------------------------------------------- */

/* The stream sends when it comes there, and goes on (isend), or when the send is complete (send).
 */
MP_EXPORT int mp_send_on_stream(void* buf, int size, int peer, mp_reg_t* reg, mp_request_t* req,
                                cudaStream_t stream);
MP_EXPORT int mp_isend_on_stream(void* buf, int size, int peer, mp_reg_t* reg, mp_request_t* req,
                                 cudaStream_t stream);
MP_EXPORT int mp_isendv_on_stream(struct iovec* v, int nblocks, int peer, mp_reg_t* reg,
                                  mp_request_t* req, cudaStream_t stream);
/* The stream goes on when they are complete. Releases none. */
MP_EXPORT int mp_wait_on_stream(mp_request_t* req, cudaStream_t stream);
MP_EXPORT int mp_wait_all_on_stream(uint32_t count, mp_request_t* req, cudaStream_t stream);

/* Prepares a send, which starts when a stream posts it. */
MP_EXPORT int mp_send_prepare(void* buf, int size, int peer, mp_reg_t* reg, mp_request_t* req);
MP_EXPORT int mp_sendv_prepare(struct iovec* v, int nblocks, int peer, mp_reg_t* reg,
                               mp_request_t* req);
MP_EXPORT int mp_send_post_on_stream(mp_request_t* req, cudaStream_t stream);
MP_EXPORT int mp_isend_post_on_stream(mp_request_t* req, cudaStream_t stream);
MP_EXPORT int mp_send_post_all_on_stream(uint32_t count, mp_request_t* req, cudaStream_t stream);
MP_EXPORT int mp_isend_post_all_on_stream(uint32_t count, mp_request_t* req, cudaStream_t stream);

/* ---- one-sided ------------------------------------------------------------------------------ */

/* Memory that the others put to and get from. All ranks call, in the same order; sizes may differ,
 * and be 0. The memory must stay until mp_window_destroy. */
MP_EXPORT int mp_window_create(void* addr, size_t size, mp_window_t* window);
/* Local: the rank uses it no more, and nobody puts to it or gets from it here. */
MP_EXPORT int mp_window_destroy(mp_window_t* window);

/* INLINE: accepted, and without effect. NOWAIT: the request is released when it is complete; *req
 * is NULL (of mp_put_prepare: after the call that posts it). */
enum mp_put_flags { MP_PUT_INLINE = 1 << 0, MP_PUT_NOWAIT = 1 << 1 };

/* `size` bytes between `src` or `dst`, within the registration, and the part of `peer` at `displ`,
 * where all of them must lie. */
MP_EXPORT int mp_iput(void* src, int size, mp_reg_t* src_reg, int peer, size_t displ,
                      mp_window_t* dst_window, mp_request_t* req, int flags);
MP_EXPORT int mp_iget(void* dst, int size, mp_reg_t* dst_reg, int peer, size_t displ,
                      mp_window_t* src_window, mp_request_t* req);
MP_EXPORT int mp_iput_on_stream(void* src, int size, mp_reg_t* src_reg, int peer, size_t displ,
                                mp_window_t* dst_window, mp_request_t* req, int flags,
                                cudaStream_t stream);
MP_EXPORT int mp_iget_on_stream(void* dst, int size, mp_reg_t* dst_reg, int peer, size_t displ,
                                mp_window_t* src_window, mp_request_t* req, cudaStream_t stream);
MP_EXPORT int mp_put_prepare(void* src, int size, mp_reg_t* src_reg, int peer, size_t displ,
                             mp_window_t* dst_window, mp_request_t* req, int flags);
MP_EXPORT int mp_iput_post_on_stream(mp_request_t* req, cudaStream_t stream);
MP_EXPORT int mp_iput_post_all_on_stream(uint32_t count, mp_request_t* req, cudaStream_t stream);

/* ---- words of host memory ------------------------------------------------------------------- */

/* GEQ: (int32_t)(*ptr - value) >= 0, cyclic. EQ: *ptr == value. AND: (*ptr & value) != 0. The same
 * on the CPU and on streams. */
enum mp_wait_flags { MP_WAIT_GEQ = 0, MP_WAIT_EQ, MP_WAIT_AND };

/* Waits until the word is so. */
MP_EXPORT int mp_wait32(uint32_t* ptr, uint32_t value, int flags);
MP_EXPORT int mp_wait32_on_stream(uint32_t* ptr, uint32_t value, int flags, cudaStream_t stream);

static inline int mp_wait_dword_geq_on_stream(uint32_t* ptr, uint32_t value, cudaStream_t stream) {
  return mp_wait32_on_stream(ptr, value, MP_WAIT_GEQ, stream);
}

static inline int mp_wait_dword_eq_on_stream(uint32_t* ptr, uint32_t value, cudaStream_t stream) {
  return mp_wait32_on_stream(ptr, value, MP_WAIT_EQ, stream);
}

/* ---- kernels -------------------------------------------------------------------------------- */

/* What the descriptors of mp/device.cuh are made of, which has the functions of kernels and calls
 * these. Kernels are those of the rank's GPU, and threads of the host where mp_init was given none.
 * Addresses are for kernels. All of it is valid until the request is released, and no longer than
 * until mp_finalize, which kernels must not outlive: their waits end with an error then.
 *
 * The first call of a rank, and every 4,096th request after it, allocates pinned memory, for which
 * CUDA may wait until the GPU's kernels have ended. */

/* Ends waits: `aborted` is not 0 when the ranks cannot go on. `timeout_ns` is the setting TIMEOUT;
 * 0: none. */
typedef struct {
  uint32_t aborted;
  uint64_t timeout_ns;
} mp_kernel_control_t;

/* *start = start_value starts the request, after *count = count_value. */
typedef struct {
  uint32_t* count;
  uint64_t* start;
  uint32_t count_value;
  uint64_t start_value;
} mp_kernel_send_t;

/* The request is complete when *done == value, and has failed when *done == value + 1. Then
 * *consumed = value lets the CPU release it. `value` is even. */
typedef struct {
  const uint32_t* done;
  uint32_t* consumed;
  uint32_t value;
  const mp_kernel_control_t* control;
} mp_kernel_wait_t;

typedef struct {
  uint32_t* word;
  const mp_kernel_control_t* control;
} mp_kernel_word_t;

/* A kernel starts a prepared send or put. Those to one peer start in the order of these calls: one
 * that its kernel has started waits for the earlier ones. *req is NULL of MP_PUT_NOWAIT. */
MP_EXPORT int mp_kernel_send(mp_request_t* req, mp_kernel_send_t* send);
/* Kernels wait for `count` requests, which were posted, or are to be started by kernels, and which
 * no stream waits for. As after a wait on a stream, the CPU waits for each once more, to release
 * it; that ends when the kernel has told that it has seen the end, or when the request failed.
 * After an error it is as if none was named. */
MP_EXPORT int mp_kernel_wait(uint32_t count, mp_request_t* req, mp_kernel_wait_t* waits);
/* A kernel waits for a word of the host's memory, or of its GPU's. Where CUDA does not know the
 * memory, the page that has the word is registered with CUDA until mp_finalize. */
MP_EXPORT int mp_kernel_word(uint32_t* ptr, mp_kernel_word_t* word);
/* `bytes` of the host's memory, 0 at first, which kernels reach at the same address. It is freed in
 * mp_finalize. */
MP_EXPORT int mp_kernel_memory(size_t bytes, void** memory);

/* ---- queues of descriptors ------------------------------------------------------------------ */

/* Operations that a stream gets at once, and runs in the order in which they were added. Sends and
 * puts must be prepared. Posting empties the queue; `flags` is 0. After an error it is unchanged.
 */
MP_EXPORT int mp_desc_queue_alloc(mp_desc_queue_t* dq);
MP_EXPORT int mp_desc_queue_free(mp_desc_queue_t* dq);
MP_EXPORT int mp_desc_queue_add_send(mp_desc_queue_t* dq, mp_request_t* req);
MP_EXPORT int mp_desc_queue_add_wait_send(mp_desc_queue_t* dq, mp_request_t* req);
MP_EXPORT int mp_desc_queue_add_wait_recv(mp_desc_queue_t* dq, mp_request_t* req);
MP_EXPORT int mp_desc_queue_add_wait_value32(mp_desc_queue_t* dq, uint32_t* ptr, uint32_t value,
                                             int flags);
MP_EXPORT int mp_desc_queue_add_write_value32(mp_desc_queue_t* dq, uint32_t* ptr, uint32_t value);
MP_EXPORT int mp_desc_queue_post_on_stream(cudaStream_t stream, mp_desc_queue_t* dq, int flags);

#ifdef __cplusplus
}
#endif

#if defined(MPI_VERSION)
/* Joins the ranks of `comm`, all of which call. It is compiled into the program, since an MPI_Comm
 * of Open MPI and one of MPICH are different types; MPI carries MP_ID_BYTES, and nothing after. */
static inline int mp_init(MPI_Comm comm, int* peers, int count, int flags, int gpu_id) {
  char offer[MP_ID_BYTES + 1] = {0};
  int rank = 0;
  int size = 0;
  if (MPI_Comm_rank(comm, &rank) != MPI_SUCCESS || MPI_Comm_size(comm, &size) != MPI_SUCCESS) {
    return MP_FAILURE;
  }
  if (rank == 0) offer[MP_ID_BYTES] = (char)mp_ropewalk_id(offer);
  if (MPI_Bcast(offer, MP_ID_BYTES + 1, MPI_CHAR, 0, comm) != MPI_SUCCESS) return MP_FAILURE;
  if (offer[MP_ID_BYTES] != 0) return MP_FAILURE;
  return mp_init_ropewalk(rank, size, offer, peers, count, flags, gpu_id);
}
#endif

#endif
