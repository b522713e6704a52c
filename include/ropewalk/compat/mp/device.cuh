// Messages that kernels start and wait for, by libmp's names: a host prepares them, and a kernel
// gets descriptors, which are addresses and values, by value or in memory that it reaches.
//
//   mp_send_prepare(out, bytes, peer, &out_reg, &send);
//   mp_irecv(in, bytes, peer, &in_reg, &receive);
//   mp::mlx5::get_descriptors(&start, &send);
//   mp::mlx5::get_descriptors(&sent, &send);
//   mp::mlx5::get_descriptors(&received, &receive);
//   exchange<<<1, 256>>>(start, sent, received);
//   mp_wait(&receive); mp_wait(&send);  // also release them
//
//   __global__ void exchange(mp::mlx5::send_desc_t start, ...) {
//     ...                // all threads write what is sent
//     __syncthreads();
//     if (threadIdx.x == 0) {
//       mp::device::mlx5::send(start);
//       failed = mp::device::mlx5::wait(sent) | mp::device::mlx5::wait(received);
//       mp::device::mlx5::signal(sent);
//       mp::device::mlx5::signal(received);
//     }
//     __syncthreads();   // then all may read what came
//   }
//
// One thread calls. A descriptor is good for one message: one send, or one wait and one signal,
// after which the CPU may release the request. A kernel that sends again with the same descriptor
// starts nothing, as long as the request is not released. A thread of the library carries the
// messages out, as it does for streams (docs/libmp.md).
//
// With a rank without a GPU, kernels are threads of the host, for which all of this compiles.
#ifndef ROPEWALK_COMPAT_MP_DEVICE_CUH_
#define ROPEWALK_COMPAT_MP_DEVICE_CUH_

#include "../gdsync/device.cuh"
#include "../mp.h"

namespace mp {
namespace mlx5 {

// libmp's namespace, though no adapter is behind it.

typedef gdsync::isem32_t isem32_t;

/// Starts a send or put: `dbrec` is written, and then `db`.
typedef struct send_desc {
  gdsync::isem32_t dbrec;
  gdsync::isem64_t db;
} send_desc_t;

/// Waits for `sema`, and writes `flag` when it has come.
typedef struct wait_desc {
  gdsync::wait_cond_t sema_cond;
  gdsync::isem32_t sema;
  gdsync::isem32_t flag;
} wait_desc_t;

/// A word of memory to be waited for, or to be written. Returns as the calls of mp.h.
inline int get_descriptors(isem32_t* psem, uint32_t* ptr, uint32_t value) {
  mp_kernel_word_t word = {};
  const int result = mp_kernel_word(ptr, psem == nullptr ? nullptr : &word);
  if (result != MP_SUCCESS) return result;
  psem->ptr = word.word;
  psem->value = value;
  psem->control = word.control;
  return MP_SUCCESS;
}

/// Of a prepared send or put, which a kernel starts (mp_kernel_send). Once for each request.
inline int get_descriptors(send_desc_t* sreq, mp_request_t* req) {
  mp_kernel_send_t send = {};
  const int result = mp_kernel_send(req, sreq == nullptr ? nullptr : &send);
  if (result != MP_SUCCESS) return result;
  sreq->dbrec.ptr = send.count;
  sreq->dbrec.value = send.count_value;
  sreq->dbrec.control = nullptr;
  sreq->db.ptr = send.start;
  sreq->db.value = send.start_value;
  return MP_SUCCESS;
}

/// What mp_kernel_wait gives, as a descriptor.
inline wait_desc_t wait_descriptor(const mp_kernel_wait_t& wait) {
  wait_desc_t made;
  made.sema_cond = GDS_WAIT_COND_EQ;
  made.sema.ptr = const_cast<uint32_t*>(wait.done);
  made.sema.value = wait.value;
  made.sema.control = wait.control;
  made.flag.ptr = wait.consumed;
  made.flag.value = wait.value;
  made.flag.control = nullptr;
  return made;
}

/// Of a request that was posted, or that a kernel starts (mp_kernel_wait). Once for each request,
/// which no stream waits for.
inline int get_descriptors(wait_desc_t* wreq, mp_request_t* req) {
  mp_kernel_wait_t wait = {};
  const int result = mp_kernel_wait(1, req, wreq == nullptr ? nullptr : &wait);
  if (result != MP_SUCCESS) return result;
  *wreq = wait_descriptor(wait);
  return MP_SUCCESS;
}

}  // namespace mlx5

namespace device {
namespace mlx5 {

using namespace gdsync::device;

/// What mp_kernel_wait_t says of the word.
struct Ended {
  uint32_t value;
  MP_DEVICE_FUNCTION int operator()(uint32_t now) const {
    if (now == value) return 0;
    return now == value + 1 ? static_cast<int>(gdsync::ERROR_FAILED) : -1;
  }
};

/// Starts the request. It sends what the caller wrote before, and what is visible to it.
/// @return 0, or ERROR_INVALID for an empty descriptor
MP_DEVICE_FUNCTION int send(::mp::mlx5::send_desc_t& info) {
  const int result = release(info.dbrec);
  return result != 0 ? result : release(info.db);
}

/// Waits until the request is complete: then the buffer of a send or put may be written again, and
/// that of a receive be read.
///
/// @return 0; ERROR_FAILED when the request failed, of which the CPU's mp_wait tells; or as
/// gdsync/device.cuh says
MP_DEVICE_FUNCTION int wait(::mp::mlx5::wait_desc_t& info) {
  if (info.sema_cond != GDS_WAIT_COND_EQ) return gdsync::device::wait(info.sema, info.sema_cond);
  const Ended judge = {info.sema.value};
  return gdsync::device::detail::wait_until(info.sema, judge);
}

/// Tells the CPU that the wait is over, so that it may release the request.
/// @return 0, or ERROR_INVALID for an empty descriptor
MP_DEVICE_FUNCTION int signal(::mp::mlx5::wait_desc_t& info) { return release(info.flag); }

}  // namespace mlx5
}  // namespace device
}  // namespace mp

#endif
