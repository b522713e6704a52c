/* The COMM layer of libmp: messages that are sent when the receiver is ready, over mp.h.
 *
 * Readiness. A receiver posts its receive and then tells the sender that it is ready
 * (comm_send_ready); the sender waits for that (comm_wait_ready) and sends. The k-th wait for a
 * rank is over when it has told k times: ranks count, and nothing is reset. So a sender's stream
 * sends only what a receive waits for, and no CPU waits:
 *
 *   comm_irecv(...); comm_send_ready_on_stream(peer, ...);
 *   comm_wait_ready_on_stream(peer, stream); comm_isend_on_stream(..., stream);
 *   comm_wait_all_on_stream(receives); ...; comm_flush();
 *
 * Requests belong to the layer, which releases each when it is complete: comm_wait and
 * comm_wait_all when they return; those waited for on a stream, and those not waited for, in
 * comm_progress and comm_flush. The calls that wait on a stream set them to NULL, as the others do.
 *
 * Registrations. A `reg` of NULL is filled in by the call, and may be used again for the same
 * buffer.
 *
 * Kernels. The CPU prepares what one kernel does, and gives it the descriptors (mp/device.cuh):
 *
 *   comm_irecv(..., &receive); comm_send_ready(peer, &ready);
 *   comm_prepare_wait_ready(peer); comm_prepare_isend(..., &send);
 *   comm_prepare_wait_all(1, &receive); comm_prepare_wait_all(1, &send);
 *   kernel<<<...>>>(comm_prepared_requests());  // by address, or *comm_prepared_requests()
 *
 *   // in the kernel, one thread:
 *   if (mp::device::mlx5::wait_geq(descs->ready[0]) == 0) mp::device::mlx5::send(descs->tx[0]);
 *   mp::device::mlx5::wait(descs->wait[0]); mp::device::mlx5::signal(descs->wait[0]); ...
 *
 * Results and threads are mp.h's; nothing ends the process. MPI's types are taken by their size.
 */
#ifndef ROPEWALK_COMPAT_COMM_H_
#define ROPEWALK_COMPAT_COMM_H_

#include "mp.h"

#ifdef __cplusplus
#include "mp/device.cuh"

/* What was prepared for one kernel: of each kind, how many, and these, in the order of the calls.
 */
struct comm_dev_descs {
  enum { max_n_descs = 32 };
  int n_ready;
  mp::mlx5::isem32_t ready[max_n_descs];
  int n_tx;
  mp::mlx5::send_desc_t tx[max_n_descs];
  int n_wait;
  mp::mlx5::wait_desc_t wait[max_n_descs];
};

extern "C" {
#endif

typedef struct comm_dev_descs* comm_dev_descs_t;

typedef struct comm_request* comm_request_t;
typedef struct comm_reg* comm_reg_t;
typedef struct CUstream_st* comm_stream_t;

/* Whether COMM_USE_COMM, COMM_USE_GDRDMA, COMM_USE_ASYNC and COMM_USE_GPU_COMM are set to other
 * than 0. For programs that choose by them; the layer does not. */
MP_EXPORT int comm_use_comm(void);
MP_EXPORT int comm_use_gdrdma(void);
MP_EXPORT int comm_use_async(void);
MP_EXPORT int comm_use_gpu_comm(void);
/* The GPU of the rank that is `rank` of this host, by the setting USE_GPU or in turn; MP_HOST_ONLY
 * where there is none. */
MP_EXPORT int comm_select_device(int rank);

/* All ranks call, after mp_init, with all ranks as its peers; comm_init does both. */
MP_EXPORT int comm_begin(void);
/* All ranks call. Also calls mp_finalize. */
MP_EXPORT void comm_finalize(void);

MP_EXPORT int comm_register(void* buf, size_t size, comm_reg_t* reg);
MP_EXPORT int comm_deregister(comm_reg_t* reg);

/* As comm_irecv and so on below, with `bytes` instead of a count and a type. */
MP_EXPORT int comm_irecv_bytes(void* buf, size_t bytes, comm_reg_t* reg, int rank,
                               comm_request_t* req);
MP_EXPORT int comm_isend_bytes(void* buf, size_t bytes, comm_reg_t* reg, int rank,
                               comm_request_t* req);
MP_EXPORT int comm_isend_bytes_on_stream(void* buf, size_t bytes, comm_reg_t* reg, int rank,
                                         comm_request_t* req, comm_stream_t stream);

/* Tells `rank` that a receive for it is posted. *req is NULL of comm_send_ready: nothing to wait
 * for. */
MP_EXPORT int comm_send_ready(int rank, comm_request_t* req);
MP_EXPORT int comm_send_ready_on_stream(int rank, comm_request_t* req, comm_stream_t stream);
/* Waits until `rank` has told so once more than was waited for. */
MP_EXPORT int comm_wait_ready(int rank);
MP_EXPORT int comm_wait_ready_on_stream(int rank, comm_stream_t stream);
/* *ready: whether it has; then that counts as waited for. */
MP_EXPORT int comm_test_ready(int rank, int* ready);

/* NULL requests are skipped. */
MP_EXPORT int comm_wait(comm_request_t* req);
MP_EXPORT int comm_wait_all(int count, comm_request_t* reqs);
MP_EXPORT int comm_wait_all_on_stream(int count, comm_request_t* reqs, comm_stream_t stream);
/* Into the set of descriptors that comm_prepared_requests() gives next. ENOMEM: it has 32 of this
 * kind; that, and any other error, leaves the set as it was.
 *
 * A kernel waits until `rank` has told once more than was waited for. */
MP_EXPORT int comm_prepare_wait_ready(int rank);
/* A kernel sends, in the order of these calls (mp_kernel_send). */
MP_EXPORT int comm_prepare_isend_bytes(void* buf, size_t bytes, comm_reg_t* reg, int rank,
                                       comm_request_t* req);
/* A kernel waits for each, which was started, or prepared by comm_prepare_isend. NULL requests are
 * skipped, and have no descriptor. The requests stay, for comm_wait or comm_progress to release
 * when the kernel has signalled. */
MP_EXPORT int comm_prepare_wait_all(int count, comm_request_t* reqs);
/* The set, in memory that kernels reach at the same address, and the beginning of the next one.
 * It may be used until 127 more were given. NULL before comm_begin. */
MP_EXPORT comm_dev_descs_t comm_prepared_requests(void);

/* Releases what is complete. Does not wait. */
MP_EXPORT int comm_progress(void);
/* Waits for everything that was started, and releases it. */
MP_EXPORT int comm_flush(void);

#ifdef __cplusplus
}
#endif

#if defined(MPI_VERSION)
static inline int comm_init(MPI_Comm comm, int gpu_id) {
  const int result = mp_init(comm, NULL, 0, MP_INIT_DEFAULT, gpu_id);
  return result != MP_SUCCESS ? result : comm_begin();
}

static inline size_t comm_bytes_of(size_t count, MPI_Datatype type) {
  int size = 0;
  return MPI_Type_size(type, &size) == MPI_SUCCESS ? count * (size_t)size : (size_t)-1;
}

static inline int comm_irecv(void* buf, size_t count, MPI_Datatype type, comm_reg_t* reg, int rank,
                             comm_request_t* req) {
  return comm_irecv_bytes(buf, comm_bytes_of(count, type), reg, rank, req);
}

static inline int comm_isend(void* buf, size_t count, MPI_Datatype type, comm_reg_t* reg, int rank,
                             comm_request_t* req) {
  return comm_isend_bytes(buf, comm_bytes_of(count, type), reg, rank, req);
}

static inline int comm_prepare_isend(void* buf, size_t count, MPI_Datatype type, comm_reg_t* reg,
                                     int rank, comm_request_t* req) {
  return comm_prepare_isend_bytes(buf, comm_bytes_of(count, type), reg, rank, req);
}

static inline int comm_isend_on_stream(void* buf, size_t count, MPI_Datatype type, comm_reg_t* reg,
                                       int rank, comm_request_t* req, comm_stream_t stream) {
  return comm_isend_bytes_on_stream(buf, comm_bytes_of(count, type), reg, rank, req, stream);
}
#endif

#endif
