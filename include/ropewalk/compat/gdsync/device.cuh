// Words that kernels write and wait for, by libgdsync's names. mp/device.cuh has messages over
// them.
//
// One thread calls. A wait acquires: what was written before the word may be read after it, by the
// threads that the caller synchronizes with. A release is seen after what the caller wrote before,
// and what was visible to it.
//
// Waits return 0, or
//   ERROR_TIMEOUT  the word did not come within the setting TIMEOUT (2^32 ns for a word that
//                  get_descriptors has not filled in); it may be waited for again
//   ERROR_INVALID  the word has no address, or the condition is none
//   ERROR_FAILED   the ranks cannot go on, or have called mp_finalize (libgdsync has no such thing)
//
// All of it compiles for threads of the host as well. Needs C++11; sm_70 and later.
#ifndef ROPEWALK_COMPAT_GDSYNC_DEVICE_CUH_
#define ROPEWALK_COMPAT_GDSYNC_DEVICE_CUH_

#include <stdint.h>

#include "../mp.h"

#ifndef __CUDA_ARCH__
#include <chrono>
#include <thread>
#endif

#ifdef __CUDACC__
#define MP_DEVICE_FUNCTION __host__ __device__ inline
#else
#define MP_DEVICE_FUNCTION inline
#endif

/* GEQ is cyclic, as mp_wait_flags says; NOR: ~(word | value) != 0. */
typedef enum gds_wait_cond_flag {
  GDS_WAIT_COND_GEQ = 0,
  GDS_WAIT_COND_EQ,
  GDS_WAIT_COND_AND,
  GDS_WAIT_COND_NOR
} gds_wait_cond_flag_t;

namespace gdsync {

enum { ERROR_FAILED = 5, ERROR_TIMEOUT = 11, ERROR_INVALID = 22 };

typedef gds_wait_cond_flag_t wait_cond_t;

/// A word and the value to wait for.
struct sem32 {
  typedef uint32_t T;
  typedef int32_t Tsigned;
  T sem;
  T value;

  MP_DEVICE_FUNCTION volatile T* access_once() { return &sem; }
  MP_DEVICE_FUNCTION const mp_kernel_control_t* control_once() const { return nullptr; }
};
typedef struct sem32 sem32_t;

/// The address of a word, and the value to wait for or to write.
struct isem32 {
  typedef uint32_t T;
  typedef int32_t Tsigned;
  T* ptr;
  T value;
  const mp_kernel_control_t* control;

  MP_DEVICE_FUNCTION isem32() : ptr(nullptr), value(0), control(nullptr) {}
  MP_DEVICE_FUNCTION volatile T* access_once() { return ptr; }
  MP_DEVICE_FUNCTION const mp_kernel_control_t* control_once() const { return control; }
};
typedef struct isem32 isem32_t;

struct isem64 {
  typedef uint64_t T;
  typedef int64_t Tsigned;
  T* ptr;
  T value;

  MP_DEVICE_FUNCTION isem64() : ptr(nullptr), value(0) {}
  MP_DEVICE_FUNCTION volatile T* access_once() { return ptr; }
  MP_DEVICE_FUNCTION const mp_kernel_control_t* control_once() const { return nullptr; }
};
typedef struct isem64 isem64_t;

namespace device {
namespace detail {

MP_DEVICE_FUNCTION uint32_t load_acquire(const volatile uint32_t* from) {
#ifdef __CUDA_ARCH__
  uint32_t value;
  asm volatile("ld.acquire.sys.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
  return value;
#else
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#endif
}

MP_DEVICE_FUNCTION uint64_t load_acquire(const volatile uint64_t* from) {
#ifdef __CUDA_ARCH__
  uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
#else
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#endif
}

MP_DEVICE_FUNCTION void store_release(volatile uint32_t* to, uint32_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
#else
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
#endif
}

MP_DEVICE_FUNCTION void store_release(volatile uint64_t* to, uint64_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.release.sys.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
#else
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
#endif
}

MP_DEVICE_FUNCTION uint64_t now_ns() {
#ifdef __CUDA_ARCH__
  uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
#else
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                   std::chrono::steady_clock::now().time_since_epoch())
                                   .count());
#endif
}

/// Until `judge(word)` is not negative, which is returned; an abort; or the deadline.
template <typename S, typename Judge>
MP_DEVICE_FUNCTION int wait_until(S& sem, const Judge& judge) {
  // The time and the abort, in the host's memory, are looked at once in so many turns.
  const unsigned turns = 1024;
  if (sem.access_once() == nullptr) return ERROR_INVALID;
  const mp_kernel_control_t* const control = sem.control_once();
  const uint64_t timeout = control == nullptr ? uint64_t(1) << 32 : control->timeout_ns;
  uint64_t since = 0;
  bool aborted = false;
  for (unsigned turn = 1;; ++turn) {
    const int judged = judge(load_acquire(sem.access_once()));
    if (judged >= 0) return judged;
    if (aborted) return ERROR_FAILED;
#ifndef __CUDA_ARCH__
    if (turn % 64 == 0) std::this_thread::yield();
#endif
    if (turn % turns != 0) continue;
    // What came before it counts still.
    aborted = control != nullptr && load_acquire(&control->aborted) != 0;
    const uint64_t now = now_ns();
    if (since == 0) since = now;
    if (!aborted && timeout != 0 && now - since > timeout) return ERROR_TIMEOUT;
  }
}

template <typename T>
struct Equal {
  T value;
  MP_DEVICE_FUNCTION int operator()(T now) const { return now == value ? 0 : -1; }
};
template <typename T, typename Tsigned>
struct AtLeast {
  T value;
  MP_DEVICE_FUNCTION int operator()(T now) const {
    return static_cast<Tsigned>(now - value) >= 0 ? 0 : -1;
  }
};
template <typename T>
struct AnyBit {
  T value;
  MP_DEVICE_FUNCTION int operator()(T now) const { return (now & value) != 0 ? 0 : -1; }
};
template <typename T>
struct AnyZero {
  T value;
  MP_DEVICE_FUNCTION int operator()(T now) const {
    return static_cast<T>(~(now | value)) != 0 ? 0 : -1;
  }
};

}  // namespace detail

/// Writes the value to the word. @return 0, or ERROR_INVALID for no address
template <typename S>
MP_DEVICE_FUNCTION int release(S& sem) {
  if (sem.access_once() == nullptr) return ERROR_INVALID;
  detail::store_release(sem.access_once(), sem.value);
  return 0;
}

template <typename S>
MP_DEVICE_FUNCTION int wait_eq(S& sem) {
  const detail::Equal<typename S::T> judge = {sem.value};
  return detail::wait_until(sem, judge);
}
template <typename S>
MP_DEVICE_FUNCTION int wait_geq(S& sem) {
  const detail::AtLeast<typename S::T, typename S::Tsigned> judge = {sem.value};
  return detail::wait_until(sem, judge);
}
template <typename S>
MP_DEVICE_FUNCTION int wait_and(S& sem) {
  const detail::AnyBit<typename S::T> judge = {sem.value};
  return detail::wait_until(sem, judge);
}
template <typename S>
MP_DEVICE_FUNCTION int wait_nor(S& sem) {
  const detail::AnyZero<typename S::T> judge = {sem.value};
  return detail::wait_until(sem, judge);
}

template <typename S>
MP_DEVICE_FUNCTION int wait(S& sem, wait_cond_t cond) {
  switch (cond) {
    case GDS_WAIT_COND_GEQ: return wait_geq(sem);
    case GDS_WAIT_COND_EQ: return wait_eq(sem);
    case GDS_WAIT_COND_AND: return wait_and(sem);
    case GDS_WAIT_COND_NOR: return wait_nor(sem);
    default: return ERROR_INVALID;
  }
}

}  // namespace device
}  // namespace gdsync

#endif
