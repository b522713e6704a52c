// Put, get, signal and wait from inside a kernel, on windows in GPU memory (messages.h).
//
//   __global__ void exchange(rwDeviceWindow window, const float* mine, std::size_t bytes, int peer)
//   {
//     using namespace ropewalk::device;
//     put(Block{}, window, peer, 0, mine, bytes);
//     signal(Block{}, window, peer);
//     if (wait_signal(Block{}, window, peer) != Status::kDone) return;  // the host tells why
//     // what the peer put into this rank's part may be read
//   }
//
// The first argument says which threads call together, and share the work: Thread, Warp (all 32
// threads), Block (all threads of the block). All of them call, with the same arguments.
//
// Where the peer's part is mapped, a put is stores and a signal a store with release, over NVLink
// or PCIe. Else the function writes an entry to a ring, from which a thread of the library has a
// link carry it.
//
// Two kernels that call both may send messages instead, through a window of queues
// (rwWindowCreateQueues):
//
//   const Block block;
//   Queue queue(block, queues, peer);
//   queue.send(mine, bytes);
//   if (queue.receive(theirs, bytes) != Status::kDone) return;
//
// Their data carries its own numbers, so that short messages take a store and a load on their way,
// where a signal first waits until the data before it is visible. They move two bytes for one.
//
// Many short puts are faster as a batch that the host has prepared (rwBatchDevice), which a kernel
// launches by one call: its threads share the puts, and one fence serves all signals.
//
//   launch(block, batch);
//
// Order: what one thread, warp or block does to one peer takes effect in the order of its calls: a
// signal is seen after the data of the puts before it. Those of others are ordered by the program
// (for example __syncthreads, or a counter with fences); what threads outside the caller wrote for
// a put's source must be visible to it.
//
// Messages of one rank to one peer on one slot are received in the order in which they were sent,
// and order nothing else.
//
// Counters: kernels count in GPU memory, in the order in which they run, so that a kernel may be
// launched, or replayed by a CUDA graph, any number of times. One thread, warp or block at a time
// signals (sends to) one peer on one slot, and one waits for (receives from) it. Of one rank's
// signals to one peer on one slot either all are counted on the GPU (kernels, captured calls) or
// all by the host (calls, with or without a stream); the same is true of its waits. Who has called
// by the host before rwWindowDevice goes on from there.
//
// Errors: a wait ends with kAborted when the communicator broke or ended, and with kTimeout after
// the communicator's TIMEOUT of when the handle was made; calls with a range beyond the peer's
// part, or that would count by 0 or beyond 2^63 - 1, do nothing and return kBadRange. (A sum that a
// link carries is checked by the host, which ends the communicator.) After any of these the
// communicator is broken: its next call on the host, and rwCommGetAsyncError, say why. A peer is
// lost within the same time as for the host.
//
// All of it compiles for host threads as well: on a window in the host's memory, Thread{} is one.
// Needs C++17; sm_70 and later.
#ifndef ROPEWALK_DEVICE_CUH_
#define ROPEWALK_DEVICE_CUH_

#include <ropewalk/device_window.h>

#include <cstddef>
#include <cstdint>

#ifndef __CUDA_ARCH__
#include <chrono>
#include <cstring>
#include <thread>
#endif

#ifdef __CUDACC__
#define RW_DEVICE_FUNCTION __host__ __device__ inline
#else
#define RW_DEVICE_FUNCTION inline
#endif
#ifdef __CUDA_ARCH__
#define RW_UNROLL _Pragma("unroll")
#define RW_NO_UNROLL _Pragma("unroll 1")
#else
#define RW_UNROLL
#define RW_NO_UNROLL
#endif

namespace ropewalk::device {

enum class Status : int {
  kDone = 0,
  kAborted = 1,   ///< the communicator broke, or ended
  kTimeout = 2,   ///< the peer did not signal in time, or a link not move
  kBadRange = 4,  ///< a range, peer, slot or count that cannot be right
};

// Each is a team: sync() waits for all of it, and makes visible to all what one of it has done or
// seen; any() does the same, and returns the bits that any thread gave.

/// One thread, of a GPU or of the host.
struct Thread {
  RW_DEVICE_FUNCTION unsigned rank() const { return 0; }
  RW_DEVICE_FUNCTION unsigned size() const { return 1; }
  RW_DEVICE_FUNCTION void sync() const {}
  RW_DEVICE_FUNCTION int any(int value) const { return value; }
};

#ifdef __CUDACC__
/// The 32 threads of a warp of a one-dimensional block.
struct Warp {
  __device__ unsigned rank() const { return threadIdx.x % 32; }
  __device__ unsigned size() const { return 32; }
  __device__ void sync() const { __syncwarp(); }
  __device__ int any(int value) const {
    __syncwarp();
    if (__any_sync(0xffffffffU, value != 0) == 0) return 0;
    for (int lanes = 16; lanes > 0; lanes /= 2) value |= __shfl_xor_sync(0xffffffffU, value, lanes);
    return value;
  }
};

/// All threads of a one-dimensional block.
struct Block {
  __device__ unsigned rank() const { return threadIdx.x; }
  __device__ unsigned size() const { return blockDim.x; }
  __device__ void sync() const { __syncthreads(); }
  __device__ int any(int value) const {
    if (__syncthreads_or(value) == 0) return 0;
    return (__syncthreads_or(value & 1) != 0 ? 1 : 0) | (__syncthreads_or(value & 2) != 0 ? 2 : 0) |
           (__syncthreads_or(value & 4) != 0 ? 4 : 0);
  }
};
#endif

/// Loads, stores and fences that all GPUs and the host's threads see.
namespace detail {

RW_DEVICE_FUNCTION void fence() {
#ifdef __CUDA_ARCH__
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#else
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
#endif
}

RW_DEVICE_FUNCTION std::uint64_t load_acquire(const std::uint64_t* from) {
#ifdef __CUDA_ARCH__
  std::uint64_t value;
  asm volatile("ld.acquire.sys.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
  return value;
#else
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#endif
}

/// What this GPU, or another one, may have changed since it was read last.
RW_DEVICE_FUNCTION std::uint64_t load_fresh(const std::uint64_t* from) {
#ifdef __CUDA_ARCH__
  return *reinterpret_cast<const volatile unsigned long long*>(from);
#else
  return __atomic_load_n(from, __ATOMIC_RELAXED);
#endif
}

/// For load_fresh() by who comes later. Others may read it meanwhile, who do not use what they
/// read.
RW_DEVICE_FUNCTION void keep(std::uint64_t* to, std::uint64_t value) {
#ifdef __CUDA_ARCH__
  *to = value;
#else
  __atomic_store_n(to, value, __ATOMIC_RELAXED);
#endif
}

/// After fence(), so that what was before it is seen first.
RW_DEVICE_FUNCTION void store_relaxed(std::uint64_t* to, std::uint64_t value) {
#ifdef __CUDA_ARCH__
  asm volatile("st.relaxed.sys.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
#else
  // A sanitizer does not know fences.
  __atomic_store_n(to, value, __ATOMIC_RELEASE);
#endif
}

RW_DEVICE_FUNCTION std::uint32_t load_word(const std::uint32_t* from) {
#ifdef __CUDA_ARCH__
  return *const_cast<const volatile std::uint32_t*>(from);
#else
  return __atomic_load_n(from, __ATOMIC_ACQUIRE);
#endif
}

RW_DEVICE_FUNCTION std::uint64_t take_ticket(std::uint64_t* head) {
#ifdef __CUDA_ARCH__
  return atomicAdd(reinterpret_cast<unsigned long long*>(head), 1ULL);
#else
  return __atomic_fetch_add(head, 1, __ATOMIC_RELAXED);
#endif
}

RW_DEVICE_FUNCTION std::uint64_t now_ns() {
#ifdef __CUDA_ARCH__
  std::uint64_t time;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
  return time;
#else
  return static_cast<std::uint64_t>(std::chrono::steady_clock::now().time_since_epoch() /
                                    std::chrono::nanoseconds(1));
#endif
}

/// What a team returns whose threads gave these bits to any(): why it stopped, rather than that it
/// was told to.
RW_DEVICE_FUNCTION Status status_of(int bits) {
  for (const Status status : {Status::kBadRange, Status::kTimeout, Status::kAborted}) {
    if ((bits & static_cast<int>(status)) != 0) return status;
  }
  return Status::kDone;
}

/// What does not change while the window lives: a processor may keep it in a cache that fences
/// leave alone.
RW_DEVICE_FUNCTION rwDevicePart part_of(const rwDeviceWindow& window, int rank) {
#ifdef __CUDA_ARCH__
  const auto word = [from = reinterpret_cast<const unsigned long long*>(window.parts + rank)](
                        std::size_t k) { return __ldg(from + k); };
  rwDevicePart part;
  part.data = reinterpret_cast<unsigned char*>(word(0));
  part.bytes = word(1);
  part.signals = reinterpret_cast<std::uint64_t*>(word(2));
  part.host_signals = reinterpret_cast<std::uint64_t*>(word(3));
  part.arrived = reinterpret_cast<const std::uint64_t*>(word(4));
  return part;
#else
  return window.parts[rank];
#endif
}

/// What the host is told where it is more than a Status.
constexpr std::uint32_t kBadCount = 8;

/// The first that fails is what the host tells of.
RW_DEVICE_FUNCTION void tell(const rwDeviceWindow& window, std::uint32_t reason, int peer,
                             int slot) {
  rwDeviceControl* control = window.control;
#ifdef __CUDA_ARCH__
  *const_cast<volatile std::int32_t*>(&control->peer) = peer;
  *const_cast<volatile std::int32_t*>(&control->slot) = slot;
  __threadfence_system();
  *const_cast<volatile std::uint32_t*>(&control->reason) = reason;
#else
  __atomic_store_n(&control->peer, peer, __ATOMIC_RELAXED);
  __atomic_store_n(&control->slot, slot, __ATOMIC_RELAXED);
  __atomic_store_n(&control->reason, reason, __ATOMIC_RELEASE);
#endif
}

RW_DEVICE_FUNCTION Status stop(const rwDeviceWindow& window, Status why, int peer, int slot) {
  if (why != Status::kAborted) tell(window, static_cast<std::uint32_t>(why), peer, slot);
  return why;
}

/// Counters end at 2^63 - 1, as for calls of the host. Asked where the counter is needed in any
/// case: waiting for it earlier costs a put with its signal 0.2 us.
RW_DEVICE_FUNCTION Status check_count(const rwDeviceWindow& window, int peer, int slot,
                                      std::uint64_t counted, std::uint64_t count) {
  constexpr std::uint64_t kMost = (std::uint64_t{1} << 63U) - 1;
  if (count - 1 < kMost - counted) return Status::kDone;
  tell(window, kBadCount, peer, slot);
  return Status::kBadRange;
}

/// One thread's: until `condition`, an abort, or the deadline.
template <typename Condition>
RW_DEVICE_FUNCTION Status wait_until(const rwDeviceWindow& window, int peer, int slot,
                                     Condition&& condition) {
  // A look at the host's memory takes microseconds: once in so many turns.
  constexpr unsigned kTurns = 1024;
  std::uint64_t since = 0;
  bool aborted = false;
  for (unsigned turn = 1;; ++turn) {
    if (condition()) return Status::kDone;
    if (aborted) return Status::kAborted;
#ifndef __CUDA_ARCH__
    if (turn % 64 == 0) std::this_thread::yield();
#endif
    if (turn % kTurns != 0) continue;
    aborted = load_word(&window.control->abort) != 0;  // what came before it counts still
    const std::uint64_t now = now_ns();
    if (since == 0) since = now;
    if (!aborted && window.timeout_ns != 0 && now - since > window.timeout_ns) {
      return stop(window, Status::kTimeout, peer, slot);
    }
  }
}

RW_DEVICE_FUNCTION std::size_t index(const rwDeviceWindow& window, int rank, int slot) {
  return static_cast<std::size_t>(rank) * static_cast<std::size_t>(window.slots) +
         static_cast<std::size_t>(slot);
}

RW_DEVICE_FUNCTION bool is_counter(const rwDeviceWindow& window, int peer, int slot) {
  return peer >= 0 && peer < window.size && slot >= 0 && slot < window.slots;
}

#ifdef __CUDA_ARCH__
struct alignas(16) Pack {
  std::uint32_t words[4];
};
template <bool kFresh, typename T>
__device__ inline T load(const T* from) {
  if constexpr (kFresh) return *const_cast<const volatile T*>(from);
  return *from;
}
template <bool kFresh>
__device__ inline Pack load(const Pack* from) {
  if constexpr (!kFresh) return *from;
  Pack pack;
  asm volatile("ld.volatile.v4.u32 {%0,%1,%2,%3}, [%4];"
               : "=r"(pack.words[0]), "=r"(pack.words[1]), "=r"(pack.words[2]), "=r"(pack.words[3])
               : "l"(from));
  return pack;
}
#endif

/// Sixteen bytes a thread where both sides allow it, four of them in flight. `kFresh`: another GPU
/// may have written `from` since, and L1 caches do not hear of that.
template <bool kFresh, typename Scope>
RW_DEVICE_FUNCTION void copy(const Scope& scope, unsigned char* to, const unsigned char* from,
                             std::size_t bytes) {
#ifdef __CUDA_ARCH__
  const auto alignment =
      reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from);
  const std::size_t rank = scope.rank();
  const std::size_t size = scope.size();
  std::size_t done = 0;
  if (alignment % 16 == 0) {
    const std::size_t packs = bytes / 16;
    auto* const out = reinterpret_cast<Pack*>(to);
    auto* const in = reinterpret_cast<const Pack*>(from);
    std::size_t k = rank;
    for (; k + 3 * size < packs; k += 4 * size) {
      const Pack a = load<kFresh>(in + k);
      const Pack b = load<kFresh>(in + k + size);
      const Pack c = load<kFresh>(in + k + 2 * size);
      const Pack d = load<kFresh>(in + k + 3 * size);
      out[k] = a;
      out[k + size] = b;
      out[k + 2 * size] = c;
      out[k + 3 * size] = d;
    }
    for (; k < packs; k += size) out[k] = load<kFresh>(in + k);
    done = packs * 16;
  } else if (alignment % 8 == 0) {
    auto* const out = reinterpret_cast<std::uint64_t*>(to);
    auto* const in = reinterpret_cast<const std::uint64_t*>(from);
    for (std::size_t k = rank; k < bytes / 8; k += size) out[k] = load<kFresh>(in + k);
    done = bytes / 8 * 8;
  } else if (alignment % 4 == 0) {
    auto* const out = reinterpret_cast<std::uint32_t*>(to);
    auto* const in = reinterpret_cast<const std::uint32_t*>(from);
    for (std::size_t k = rank; k < bytes / 4; k += size) out[k] = load<kFresh>(in + k);
    done = bytes / 4 * 4;
  }
  // The rest may be aligned to eight bytes only.
  if (alignment % 8 == 0 && bytes - done >= 8) {
    if (rank == 0) {
      *reinterpret_cast<std::uint64_t*>(to + done) =
          load<kFresh>(reinterpret_cast<const std::uint64_t*>(from + done));
    }
    done += 8;
  }
  for (std::size_t k = done + rank; k < bytes; k += size) to[k] = load<kFresh>(from + k);
#else
  const std::size_t each = (bytes + scope.size() - 1) / scope.size();
  const std::size_t begin = scope.rank() * each < bytes ? scope.rank() * each : bytes;
  const std::size_t count = each < bytes - begin ? each : bytes - begin;
  if (count > 0) std::memcpy(to + begin, from + begin, count);
#endif
}

/// What an entry of the ring asks for.
struct Request {
  std::uint32_t kind;  ///< as the library numbers them: 0 put, 1 get, 2 signal
  int peer;
  int slot;
  std::uint64_t offset;
  std::uint64_t bytes;
  std::uint64_t address;
  std::uint64_t count;
};
constexpr std::uint64_t kPayload = (std::uint64_t{1} << 56U) - 1;
/// A signal has no offset: its words have room for all of the count.
RW_DEVICE_FUNCTION Request signal_request(int peer, int slot, std::uint64_t count) {
  return {2, peer, slot, count >> 56U, 0, 0, count & kPayload};
}
/// The data of a put of up to eight bytes is in the entry itself.
constexpr std::uint64_t kMostInline = 8;

/// Writes an entry; one thread calls. @return its number, from 1; 0: aborted or timed out
RW_DEVICE_FUNCTION std::uint64_t push(const rwDeviceWindow& window, const Request& request,
                                      Status& status) {
  const std::uint64_t ticket = take_ticket(window.head);
  const std::uint64_t lap = ticket / window.num_entries + 1;
  if (ticket - load_acquire(window.done_seen) >= window.num_entries) {
    status = wait_until(window, request.peer, request.slot, [&] {
      const std::uint64_t done = load_acquire(window.done);
      store_relaxed(window.done_seen, done);
      return ticket - done < window.num_entries;
    });
    if (status != Status::kDone) return 0;
  }
  std::uint64_t value = 0;
  if (request.kind == 0 && request.bytes <= kMostInline) {
    for (std::uint64_t k = 0; k < request.bytes; ++k) {
      value |= std::uint64_t{reinterpret_cast<const volatile unsigned char*>(request.address)[k]}
               << 8U * k;
    }
  } else if (request.kind == 0) {
    // The library's thread has the data copied.
    fence();
  }
  const std::uint64_t tag = lap << 56U;
  const std::uint64_t words[8] = {
      request.kind | static_cast<std::uint64_t>(request.slot) << 8U |
          static_cast<std::uint64_t>(request.peer) << 24U,
      window.number,
      request.offset,
      request.bytes,
      request.address,
      request.count,
      value & 0xffffffffU,
      value >> 32U,
  };
  rwDeviceEntry* entry = window.entries + ticket % window.num_entries;
  for (int k = 0; k < 8; ++k) store_relaxed(&entry->words[k], (words[k] & kPayload) | tag);
  return ticket + 1;
}

// ---- queues

/// What does not change while the window lives.
RW_DEVICE_FUNCTION rwDeviceQueue queue_of(const rwDeviceWindow& window, std::size_t which) {
#ifdef __CUDA_ARCH__
  const auto* from = reinterpret_cast<const unsigned long long*>(window.queues + which);
  rwDeviceQueue queue;
  queue.out = reinterpret_cast<std::uint32_t*>(__ldg(from));
  queue.out_taken = reinterpret_cast<const std::uint64_t*>(__ldg(from + 1));
  queue.in = reinterpret_cast<std::uint32_t*>(__ldg(from + 2));
  queue.in_taken = reinterpret_cast<std::uint64_t*>(__ldg(from + 3));
  return queue;
#else
  return window.queues[which];
#endif
}

/// Eight bytes and the lap, each half of the line by one store at least.
RW_DEVICE_FUNCTION void store_line(std::uint32_t* line, std::uint64_t data, std::uint32_t lap) {
  const auto low = static_cast<std::uint32_t>(data);
  const auto high = static_cast<std::uint32_t>(data >> 32U);
#ifdef __CUDA_ARCH__
  asm volatile("st.volatile.v4.u32 [%0], {%1, %2, %3, %2};" ::"l"(line), "r"(low), "r"(lap),
               "r"(high)
               : "memory");
#else
  auto* halves = reinterpret_cast<std::uint64_t*>(line);
  __atomic_store_n(halves, low | std::uint64_t{lap} << 32U, __ATOMIC_RELEASE);
  __atomic_store_n(halves + 1, high | std::uint64_t{lap} << 32U, __ATOMIC_RELEASE);
#endif
}

/// @return whether the line is of `lap`, and then its data
RW_DEVICE_FUNCTION bool load_line(const std::uint32_t* line, std::uint32_t lap,
                                  std::uint64_t& data) {
#ifdef __CUDA_ARCH__
  std::uint32_t low, low_lap, high, high_lap;
  asm volatile("ld.volatile.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(low), "=r"(low_lap), "=r"(high), "=r"(high_lap)
               : "l"(line)
               : "memory");
  data = low | std::uint64_t{high} << 32U;
  return low_lap == lap && high_lap == lap;
#else
  const auto* halves = reinterpret_cast<const std::uint64_t*>(line);
  const std::uint64_t low = __atomic_load_n(halves, __ATOMIC_ACQUIRE);
  const std::uint64_t high = __atomic_load_n(halves + 1, __ATOMIC_ACQUIRE);
  data = (low & 0xffffffffU) | high << 32U;
  return low >> 32U == lap && high >> 32U == lap;
#endif
}

/// `bytes`, 1 to 8, as the low bytes of a word.
RW_DEVICE_FUNCTION std::uint64_t load_bytes(const unsigned char* from, std::size_t bytes) {
  if (bytes == 8 && reinterpret_cast<std::uintptr_t>(from) % 8 == 0) {
    return *reinterpret_cast<const std::uint64_t*>(from);
  }
  std::uint64_t word = 0;
  RW_NO_UNROLL
  for (std::size_t k = 0; k < bytes; ++k) word |= std::uint64_t{from[k]} << 8U * k;
  return word;
}
RW_DEVICE_FUNCTION void store_bytes(unsigned char* to, std::uint64_t word, std::size_t bytes) {
  if (bytes == 8 && reinterpret_cast<std::uintptr_t>(to) % 8 == 0) {
    *reinterpret_cast<std::uint64_t*>(to) = word;
    return;
  }
  RW_NO_UNROLL
  for (std::size_t k = 0; k < bytes; ++k) to[k] = static_cast<unsigned char>(word >> 8U * k);
}

}  // namespace detail

/// Copies `bytes` from `source` (memory that this GPU reads) to `offset` of the part of `peer`. The
/// peer sees them when it has waited for a signal that follows. Where a link carries, the source
/// must stay until flush().
template <typename Scope>
RW_DEVICE_FUNCTION Status put(const Scope& scope, const rwDeviceWindow& window, int peer,
                              std::size_t offset, const void* source, std::size_t bytes) {
  if (peer < 0 || peer >= window.size) return detail::stop(window, Status::kBadRange, peer, 0);
  const rwDevicePart part = detail::part_of(window, peer);
  if (offset > part.bytes || bytes > part.bytes - offset) {
    return detail::stop(window, Status::kBadRange, peer, 0);
  }
  if (bytes == 0) return Status::kDone;
  scope.sync();  // what any of them wrote to the source is sent
  if (part.data != nullptr) {
    detail::copy<false>(scope, part.data + offset, static_cast<const unsigned char*>(source),
                        bytes);
    return Status::kDone;
  }
  Status status = Status::kDone;
  if (scope.rank() == 0) {
    (void)detail::push(
        window, {0, peer, 0, offset, bytes, reinterpret_cast<std::uint64_t>(source), 0}, status);
  }
  return static_cast<Status>(scope.any(static_cast<int>(status)));
}

/// Copies `bytes` at `offset` of the part of `peer` to `destination`, and returns when they are
/// there, for all who call.
template <typename Scope>
RW_DEVICE_FUNCTION Status get(const Scope& scope, const rwDeviceWindow& window, int peer,
                              std::size_t offset, void* destination, std::size_t bytes) {
  if (peer < 0 || peer >= window.size) return detail::stop(window, Status::kBadRange, peer, 0);
  const rwDevicePart part = detail::part_of(window, peer);
  if (offset > part.bytes || bytes > part.bytes - offset) {
    return detail::stop(window, Status::kBadRange, peer, 0);
  }
  Status status = Status::kDone;
  scope.sync();  // what any of them put there before is got
  if (bytes > 0 && part.data != nullptr) {
    detail::copy<true>(scope, static_cast<unsigned char*>(destination), part.data + offset, bytes);
  } else if (bytes > 0 && scope.rank() == 0) {
    const std::uint64_t number = detail::push(
        window, {1, peer, 0, offset, bytes, reinterpret_cast<std::uint64_t>(destination), 0},
        status);
    if (number != 0) {
      status = detail::wait_until(window, peer, 0,
                                  [&] { return detail::load_acquire(window.done) >= number; });
    }
  }
  return static_cast<Status>(scope.any(static_cast<int>(status)));
}

/// Raises the counter that `peer` has for this rank and `slot` by `count`, after all that the
/// callers did before is visible there. A sum that would overflow is found by the first of the
/// callers alone, which gets kBadRange.
template <typename Scope>
RW_DEVICE_FUNCTION Status signal(const Scope& scope, const rwDeviceWindow& window, int peer,
                                 int slot = 0, std::uint64_t count = 1) {
  if (!detail::is_counter(window, peer, slot)) {
    return detail::stop(window, Status::kBadRange, peer, slot);
  }
  const rwDevicePart part = detail::part_of(window, peer);
  std::uint64_t* const sent = window.sent + detail::index(window, peer, slot);
  // Read before the others are waited for: it comes from the GPU's memory.
  const std::uint64_t before = part.signals != nullptr && scope.rank() == 0 ? *sent : 0;
  Status status = detail::check_count(window, peer, slot, 0, count);
  if (status != Status::kDone) return status;
  scope.sync();
  if (part.signals != nullptr) {
    if (scope.rank() == 0) status = detail::check_count(window, peer, slot, before, count);
    if (scope.rank() == 0 && status == Status::kDone) {
      const std::uint64_t value = before + count;
      const std::size_t word = detail::index(window, window.rank, slot) * 8;
      *sent = value;
      detail::fence();
      detail::store_relaxed(part.signals + word, value);
      if (part.host_signals != nullptr) detail::store_relaxed(part.host_signals + word, value);
    }
    return status;
  }
  if (scope.rank() == 0) {
    (void)detail::push(window, detail::signal_request(peer, slot, count), status);
  }
  return static_cast<Status>(scope.any(static_cast<int>(status)));
}

/// put(), then signal() by 1.
template <typename Scope>
RW_DEVICE_FUNCTION Status put_signal(const Scope& scope, const rwDeviceWindow& window, int peer,
                                     std::size_t offset, const void* source, std::size_t bytes,
                                     int slot = 0) {
  const Status status = put(scope, window, peer, offset, source, bytes);
  return status == Status::kDone ? signal(scope, window, peer, slot) : status;
}

/// Waits until `count` signals of `peer` on `slot` have arrived beyond those that kernels of this
/// rank waited for before. Then what `peer` put here before them may be read by all who call.
template <typename Scope>
RW_DEVICE_FUNCTION Status wait_signal(const Scope& scope, const rwDeviceWindow& window, int peer,
                                      int slot = 0, std::uint64_t count = 1) {
  if (!detail::is_counter(window, peer, slot)) {
    return detail::stop(window, Status::kBadRange, peer, slot);
  }
  Status status = Status::kDone;
  if (scope.rank() == 0) {
    std::uint64_t& awaited = window.awaited[detail::index(window, peer, slot)];
    const std::uint64_t target = awaited + count;
    status = detail::check_count(window, peer, slot, awaited, count);
    const std::uint64_t* counter =
        detail::part_of(window, peer).arrived + static_cast<std::size_t>(slot) * 8;
    if (status == Status::kDone) {
      status = detail::wait_until(window, peer, slot,
                                  [&] { return detail::load_acquire(counter) >= target; });
    }
    if (status == Status::kDone) awaited = target;
  }
  return static_cast<Status>(scope.any(static_cast<int>(status)));
}

/// How many signals of `peer` on `slot` have arrived since the window was made.
RW_DEVICE_FUNCTION std::uint64_t signal_count(const rwDeviceWindow& window, int peer,
                                              int slot = 0) {
  return detail::load_acquire(detail::part_of(window, peer).arrived +
                              static_cast<std::size_t>(slot) * 8);
}

/// Returns when sources of the callers' puts may be reused, and what they put by loads and stores
/// is visible to whoever is told of it.
template <typename Scope>
RW_DEVICE_FUNCTION Status flush(const Scope& scope, const rwDeviceWindow& window) {
  scope.sync();
  Status status = Status::kDone;
  if (scope.rank() == 0) {
    detail::fence();
    if (window.num_entries != 0) {
      const std::uint64_t taken = detail::load_acquire(window.head);
      status = detail::wait_until(window, window.rank, 0,
                                  [&] { return detail::load_acquire(window.done) >= taken; });
    }
  }
  return static_cast<Status>(scope.any(static_cast<int>(status)));
}

namespace detail {

/// Some of a team's threads.
struct Lanes {
  std::size_t first;
  std::size_t count;
  RW_DEVICE_FUNCTION std::size_t rank() const { return first; }
  RW_DEVICE_FUNCTION std::size_t size() const { return count; }
};

/// An entry of a batch's tables, which do not change while kernels use them.
template <typename Entry>
RW_DEVICE_FUNCTION Entry entry_of(const Entry* from) {
#ifdef __CUDA_ARCH__
  static_assert(sizeof(Entry) == 48, "three loads of 16 bytes");
  union {
    uint4 words[3];
    Entry entry;
  } both;
  const auto* words = reinterpret_cast<const uint4*>(from);
  RW_UNROLL
  for (int k = 0; k < 3; ++k) both.words[k] = __ldg(words + k);
  return both.entry;
#else
  return *from;
#endif
}

/// Whether what a batch counts can go on from `counted`.
RW_DEVICE_FUNCTION Status check_count(const rwDeviceBatchCount& one, std::uint64_t counted) {
  return check_count(*one.window, one.peer, one.slot, counted, one.count);
}

/// The puts of a batch that fall to this thread.
template <typename Scope>
RW_DEVICE_FUNCTION Status put_all(const Scope& scope, const rwDeviceBatch& batch) {
  std::size_t lanes = batch.lanes;
  while (lanes > scope.size()) lanes /= 2;
  const std::size_t groups = scope.size() / lanes;
  const std::size_t group = scope.rank() / lanes;
  if (group >= groups) return Status::kDone;
  const Lanes within{scope.rank() % lanes, lanes};
  Status status = Status::kDone;
  for (std::size_t k = group; k < batch.num_puts; k += groups) {
    const rwDeviceBatchPut one = entry_of(batch.puts + k);
    if (one.to != nullptr) {
      copy<false>(within, one.to, one.from, one.bytes);
    } else if (within.rank() == 0 && status == Status::kDone) {
      (void)push(
          *one.window,
          {0, one.peer, 0, one.offset, one.bytes, reinterpret_cast<std::uint64_t>(one.from), 0},
          status);
    }
  }
  return status;
}

}  // namespace detail

/// Launches a batch that was prepared on the host (rwBatchDevice): the callers share its puts, then
/// signal what it signals, then wait for what it waits for. Each signal is seen after the data of
/// all its puts, also to other peers. Afterwards sources may be reused and what was waited for may
/// be read by all who call; where a link carries, sources must stay until flush() of the window.
/// A counter that would overflow is found after the puts, and told to all that call where the batch
/// waits for something or a link carries it; else to the one that found it.
template <typename Scope>
RW_DEVICE_FUNCTION Status launch(const Scope& scope, const rwDeviceBatch& batch) {
  // Read before the others are waited for: they come from the GPU's memory.
  const std::size_t first = scope.rank();
  rwDeviceBatchCount signal{};
  rwDeviceBatchCount wait{};
  std::uint64_t before = 0;
  std::uint64_t waited = 0;
  if (first < batch.num_signals) signal = detail::entry_of(batch.signals + first);
  if (first < batch.num_waits) wait = detail::entry_of(batch.waits + first);
  if (first < batch.num_signals) before = detail::load_fresh(signal.counted);
  if (first < batch.num_waits) waited = detail::load_fresh(wait.counted);
  scope.sync();  // the sources are written
  Status status = detail::put_all(scope, batch);
  scope.sync();  // all have put
  if (first < batch.num_signals) detail::fence();
  for (std::size_t k = first; k < batch.num_signals && status == Status::kDone; k += scope.size()) {
    if (k != first) {
      signal = detail::entry_of(batch.signals + k);
      before = detail::load_fresh(signal.counted);
    }
    status = detail::check_count(signal, before);
    if (status != Status::kDone) break;
    if (signal.word == nullptr) {
      (void)detail::push(*signal.window,
                         detail::signal_request(signal.peer, signal.slot, signal.count), status);
      continue;
    }
    const std::uint64_t value = before + signal.count;
    detail::store_relaxed(signal.word, value);
    if (signal.host_word != nullptr) detail::store_relaxed(signal.host_word, value);
    *signal.counted = value;
  }
  for (std::size_t k = first; k < batch.num_waits && status == Status::kDone; k += scope.size()) {
    if (k != first) {
      wait = detail::entry_of(batch.waits + k);
      waited = detail::load_fresh(wait.counted);
    }
    const std::uint64_t target = waited + wait.count;
    status = detail::check_count(wait, waited);
    if (status != Status::kDone) break;
    status = detail::wait_until(*wait.window, wait.peer, wait.slot,
                                [&] { return detail::load_acquire(wait.word) >= target; });
    if (status == Status::kDone) *wait.counted = target;
  }
  if (batch.may_fail == 0) return status;
  return detail::status_of(scope.any(static_cast<int>(status)));
}

/// This rank's queues to and from `peer` on `slot`, as one thread, warp or block uses them for a
/// while: what is counted is in registers meanwhile, so that many messages of one kernel cost
/// less than by send() and receive() below. One may send while another one receives. `window` is
/// one of queues (rwWindowCreateQueues), and outlives this.
template <typename Scope>
class Queue {
 public:
  RW_DEVICE_FUNCTION Queue(const Scope& scope, const rwDeviceWindow& window, int peer, int slot = 0)
      : scope_(scope), window_(window), peer_(peer), slot_(slot) {
    if (!detail::is_counter(window, peer, slot) || window.queues == nullptr) {
      bad_ = detail::stop(window, Status::kBadRange, peer, slot);
      return;
    }
    const std::size_t which = detail::index(window, peer, slot);
    queue_ = detail::queue_of(window, which);
    counts_ = window.queue_counts + which;
    sent_ = detail::load_fresh(&counts_->sent);
    room_ = detail::load_fresh(&counts_->room);
    taken_ = detail::load_fresh(&counts_->taken);
    told_ = detail::load_fresh(&counts_->told);
    lines_ = std::uint64_t{1} << window.log2_lines;
  }
  /// The next one goes on from here.
  RW_DEVICE_FUNCTION ~Queue() {
    if (counts_ == nullptr) return;
    scope_.sync();  // all have read them
    if (scope_.rank() == 0) {
      // Another one may use the other direction meanwhile.
      if (sends_) {
        detail::keep(&counts_->sent, sent_);
        detail::keep(&counts_->room, room_);
      }
      if (receives_) {
        detail::keep(&counts_->taken, taken_);
        detail::keep(&counts_->told, told_);
      }
    }
    scope_.sync();
  }
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  /// Sends `bytes` from `source` (memory that this GPU reads); the peer's receive() on the same
  /// slot, of as many bytes, takes them. Returns when the source may be reused, which is at once as
  /// long as the queue has room for what the peer has not received yet. What threads of the caller
  /// wrote to the source is sent.
  RW_DEVICE_FUNCTION Status send(const void* source, std::size_t bytes) {
    if (bad_ != Status::kDone) return bad_;
    const auto* const from = static_cast<const unsigned char*>(source);
    sends_ = true;
    scope_.sync();  // the source is written
    const std::uint64_t words = (bytes + 7) / 8;
    if (words <= scope_.size() && sent_ + words <= room_) {
      // A line for each thread at most, the shortest path.
      const std::uint64_t k = scope_.rank();
      if (k < words) send_line(from, bytes, k, sent_ + k);
      sent_ += words;
    } else {
      for (std::uint64_t done = 0; done < words;) {
        const std::uint64_t part = part_of(words - done);
        if (sent_ + part > room_) {
          const Status status = await_room(part);
          if (status != Status::kDone) return status;
        }
        send_part(from, bytes, done, part);
        sent_ += part;
        done += part;
      }
    }
    scope_.sync();  // the source is read
    return Status::kDone;
  }

  /// Waits for `bytes` that the peer sends, by messages in their order, and copies them to
  /// `destination`; then all who call may read them. Lengths are for both sides to know: a queue is
  /// a row of words of 8 bytes, of which a message takes as many as it needs, so that it may be
  /// received in pieces, and who asks for more than was sent takes the next message's beginning.
  RW_DEVICE_FUNCTION Status receive(void* destination, std::size_t bytes) {
    if (bad_ != Status::kDone) return bad_;
    auto* const to = static_cast<unsigned char*>(destination);
    receives_ = true;
    scope_.sync();  // nobody reads what was there
    const std::uint64_t words = (bytes + 7) / 8;
    for (std::uint64_t done = 0; done < words;) {
      const std::uint64_t part = part_of(words - done);
      Status status = Status::kDone;
      if (part <= scope_.size()) {
        const std::uint64_t k = scope_.rank();
        if (k < part) status = receive_line(to, bytes, done + k, taken_ + k);
      } else {
        status = receive_part(to, bytes, done, part);
      }
      // All have their lines, which the peer may write again.
      status = detail::status_of(scope_.any(static_cast<int>(status)));
      if (status != Status::kDone) return status;
      taken_ += part;
      done += part;
      if (taken_ - told_ >= lines_ / 4) {
        told_ = taken_;
        if (scope_.rank() == 0) detail::store_relaxed(queue_.in_taken, taken_);
      }
    }
    return Status::kDone;
  }

 private:
  // Lines of one thread on their way at once.
  static constexpr unsigned kAtOnce = 4;

  // So much before the peer is told, or asked, of what was taken.
  RW_DEVICE_FUNCTION std::uint64_t part_of(std::uint64_t words) const {
    return words < lines_ / 4 ? words : lines_ / 4;
  }
  RW_DEVICE_FUNCTION std::uint64_t line_of(std::uint64_t number) const {
    return (number & (lines_ - 1)) * 4;
  }
  // As its words say it. Memory that was not written yet, 0, has none of the first 2^32 laps.
  RW_DEVICE_FUNCTION std::uint32_t lap_of(std::uint64_t number) const {
    return static_cast<std::uint32_t>((number >> window_.log2_lines) + 1);
  }
  static RW_DEVICE_FUNCTION std::size_t length_of(std::size_t bytes, std::uint64_t word) {
    return bytes - word * 8 < 8 ? bytes - word * 8 : 8;
  }
  // Word `word` of a message, and its line.
  RW_DEVICE_FUNCTION void send_line(const unsigned char* from, std::size_t bytes,
                                    std::uint64_t word, std::uint64_t number) const {
    detail::store_line(queue_.out + line_of(number),
                       detail::load_bytes(from + word * 8, length_of(bytes, word)), lap_of(number));
  }
  RW_DEVICE_FUNCTION Status receive_line(unsigned char* to, std::size_t bytes, std::uint64_t word,
                                         std::uint64_t number) const {
    const std::uint32_t* line = queue_.in + line_of(number);
    const std::uint32_t lap = lap_of(number);
    std::uint64_t data = 0;
    const Status status = detail::wait_until(window_, peer_, slot_,
                                             [&] { return detail::load_line(line, lap, data); });
    if (status == Status::kDone) detail::store_bytes(to + word * 8, data, length_of(bytes, word));
    return status;
  }
  // `part` words from `done` on, several of each thread on their way at once.
  RW_DEVICE_FUNCTION void send_part(const unsigned char* from, std::size_t bytes,
                                    std::uint64_t done, std::uint64_t part) const {
    const std::uint64_t step = scope_.size();
    std::uint64_t k = scope_.rank();
    for (; k + (kAtOnce - 1) * step < part; k += kAtOnce * step) {
      std::uint64_t data[kAtOnce];
      RW_UNROLL
      for (unsigned j = 0; j < kAtOnce; ++j) {
        const std::uint64_t word = done + k + j * step;
        data[j] = detail::load_bytes(from + word * 8, length_of(bytes, word));
      }
      RW_UNROLL
      for (unsigned j = 0; j < kAtOnce; ++j) {
        const std::uint64_t number = sent_ + k + j * step;
        detail::store_line(queue_.out + line_of(number), data[j], lap_of(number));
      }
    }
    for (; k < part; k += step) send_line(from, bytes, done + k, sent_ + k);
  }
  RW_DEVICE_FUNCTION Status receive_part(unsigned char* to, std::size_t bytes, std::uint64_t done,
                                         std::uint64_t part) const {
    const std::uint64_t step = scope_.size();
    std::uint64_t k = scope_.rank();
    for (; k + (kAtOnce - 1) * step < part; k += kAtOnce * step) {
      std::uint64_t data[kAtOnce];
      const Status status = detail::wait_until(window_, peer_, slot_, [&] {
        bool there = true;
        RW_UNROLL
        for (unsigned j = 0; j < kAtOnce; ++j) {
          const std::uint64_t number = taken_ + k + j * step;
          there &= detail::load_line(queue_.in + line_of(number), lap_of(number), data[j]);
        }
        return there;
      });
      if (status != Status::kDone) return status;
      RW_UNROLL
      for (unsigned j = 0; j < kAtOnce; ++j) {
        const std::uint64_t word = done + k + j * step;
        detail::store_bytes(to + word * 8, data[j], length_of(bytes, word));
      }
    }
    for (; k < part; k += step) {
      const Status status = receive_line(to, bytes, done + k, taken_ + k);
      if (status != Status::kDone) return status;
    }
    return Status::kDone;
  }
  RW_DEVICE_FUNCTION Status await_room(std::uint64_t part) {
    Status status = Status::kDone;
    if (scope_.rank() == 0) {
      status = detail::wait_until(window_, peer_, slot_, [&] {
        room_ = detail::load_acquire(queue_.out_taken) + lines_;
        return sent_ + part <= room_;
      });
      detail::keep(&counts_->room, room_);
    }
    status = static_cast<Status>(scope_.any(static_cast<int>(status)));
    if (status != Status::kDone) return status;
    room_ = detail::load_fresh(&counts_->room);
    scope_.sync();  // all have read it, before it changes again
    return status;
  }

  const Scope& scope_;
  const rwDeviceWindow& window_;
  int peer_;
  int slot_;
  Status bad_ = Status::kDone;
  rwDeviceQueue queue_{};
  rwDeviceQueueCounts* counts_ = nullptr;
  std::uint64_t sent_ = 0;
  std::uint64_t room_ = 0;
  std::uint64_t taken_ = 0;
  std::uint64_t told_ = 0;
  std::uint64_t lines_ = 0;
  bool sends_ = false;
  bool receives_ = false;
};

/// One message by a Queue.
template <typename Scope>
RW_DEVICE_FUNCTION Status send(const Scope& scope, const rwDeviceWindow& window, int peer,
                               const void* source, std::size_t bytes, int slot = 0) {
  return Queue<Scope>(scope, window, peer, slot).send(source, bytes);
}
template <typename Scope>
RW_DEVICE_FUNCTION Status receive(const Scope& scope, const rwDeviceWindow& window, int peer,
                                  void* destination, std::size_t bytes, int slot = 0) {
  return Queue<Scope>(scope, window, peer, slot).receive(destination, bytes);
}

/// Lets the batch begin that was armed with `trigger` (rwBatchArm), by one store: it sends what the
/// callers wrote before, and what is visible to them.
template <typename Scope>
RW_DEVICE_FUNCTION void launch(const Scope& scope, const rwDeviceTrigger& trigger) {
  scope.sync();
  if (scope.rank() != 0) return;
  detail::fence();
  detail::store_relaxed(trigger.word, trigger.value);
}

}  // namespace ropewalk::device

#endif
