// The threads of a CUDA block as a Block (block/staged_walk.h).
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>

#include "executor/block/arithmetic.h"
#include "executor/block/launch.h"

namespace ropewalk::executor {

class CudaBlock {
 public:
  /// `tag`: the collective's, which waiting peers compare; a message has none.
  __device__ CudaBlock(const LaunchLinks& links, const CallTag* tag) : links_(links), tag_(tag) {}

  __device__ unsigned thread() const { return threadIdx.x; }
  __device__ unsigned size() const { return blockDim.x; }
  __device__ void sync() const { __syncthreads(); }
  __device__ bool sync_or(bool value) const { return __syncthreads_or(value) != 0; }
  static constexpr unsigned kWarp = 32;
  __device__ void sync_some(std::uint32_t id, unsigned threads) const {
    __syncwarp();
    asm volatile("barrier.sync %0, %1;" ::"r"(id + 1), "r"(threads) : "memory");
  }
  __device__ void arrive_some(std::uint32_t id, unsigned threads) const {
    __syncwarp();
    asm volatile("barrier.arrive %0, %1;" ::"r"(id + 1), "r"(threads) : "memory");
  }
  __device__ static void sync_warp() { __syncwarp(); }
  __device__ static void add_word(std::uint32_t* word) {
    asm volatile("red.release.cta.add.u32 [%0], 1;" ::"l"(word) : "memory");
  }
  __device__ static bool has_word(const std::uint32_t* word, std::uint32_t value) {
    std::uint32_t now = 0;
    asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    return now == value;
  }
  __device__ static void wait_word(const std::uint32_t* word, std::uint32_t value) {
    std::uint32_t now = 0;
    do {
      asm volatile("ld.acquire.cta.u32 %0, [%1];" : "=r"(now) : "l"(word) : "memory");
    } while (now != value);
    __syncwarp();
  }
  __device__ static bool any_of_warp(bool value) { return __any_sync(0xffffffffU, value) != 0; }

  // ---- data. Volatile: another GPU may have written it, and L1 caches are not coherent. ----
  template <typename T>
  __device__ T load(const T* from) const {
    return *const_cast<const volatile T*>(from);
  }
  __device__ Pack load(const Pack* from) const {
    Pack pack;
    asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(pack.words[0]), "=r"(pack.words[1]), "=r"(pack.words[2]),
                   "=r"(pack.words[3])
                 : "l"(from));
    return pack;
  }
  template <typename T>
  __device__ T load_own(const T* from) const {
    return *from;
  }
  __device__ void store(Pack* to, const Pack& pack) const {
    asm volatile("st.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(to), "r"(pack.words[0]),
                 "r"(pack.words[1]), "r"(pack.words[2]), "r"(pack.words[3])
                 : "memory");
  }

  // ---- ll lines ----
  /// A line as it is now.
  __device__ Pack look_at_line(const std::byte* line) const {
    return load(reinterpret_cast<const Pack*>(line));
  }
  /// Waits for a line and loads its word. @return false when the block must stop
  __device__ bool load_line(const std::byte* line, std::uint32_t flag, std::uint64_t& word) {
    return wait([&] {
      const Pack now = look_at_line(line);
      word = word_of(now);
      return executor::has_flag(now, flag);
    });
  }
  __device__ void store_line(std::byte* line, std::uint32_t flag, std::uint64_t word) const {
    asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(line),
                 "r"(static_cast<std::uint32_t>(word)), "r"(flag),
                 "r"(static_cast<std::uint32_t>(word >> 32U)), "r"(flag)
                 : "memory");
  }

  // ---- lines of ll128: eight threads load 16 bytes each, and the warp votes on the flags ----
  static constexpr int kPieces = 1;
  __device__ unsigned first_piece() const { return threadIdx.x % 8; }
  /// The first line of this thread's warp, in a round of lines.
  __device__ unsigned group_first_line() const { return threadIdx.x / 32 * 4; }
  template <int kLines>
  __device__ bool load_pieces(const std::byte* slot, std::uint32_t first, std::uint32_t stride,
                              std::uint32_t lines, std::uint32_t flag,
                              std::uint64_t (&words)[2 * kLines]) {
    const bool has_flag = first_piece() == 7;
    return wait_together([&] {
      Pack packs[kLines];
      RW_UNROLL
      for (int i = 0; i < kLines; ++i) {
        const std::uint32_t line = first + i * stride;
        if (line < lines) packs[i] = load(piece(slot, line));
      }
      bool there = true;
      RW_UNROLL
      for (int i = 0; i < kLines; ++i) {
        if (has_flag && first + i * stride < lines) there = there && packs[i].words[2] == flag;
        words[2 * i] = packs[i].words[0] | std::uint64_t{packs[i].words[1]} << 32U;
        words[2 * i + 1] = packs[i].words[2] | std::uint64_t{packs[i].words[3]} << 32U;
      }
      return __all_sync(0xffffffffU, there) != 0;
    });
  }
  /// This thread's of one line, as it is now.
  using Piece = Pack;
  __device__ Piece look_at_piece(const std::byte* slot, std::uint32_t line) const {
    return load(piece(slot, line));
  }
  /// Whether the line has the flag, as far as this thread knows.
  __device__ bool has_flag(const Piece& piece, std::uint32_t flag) const {
    return first_piece() != 7 || piece.words[2] == flag;
  }
  __device__ static void words_of(const Piece& piece, std::uint64_t (&words)[2]) {
    words[0] = piece.words[0] | std::uint64_t{piece.words[1]} << 32U;
    words[1] = piece.words[2] | std::uint64_t{piece.words[3]} << 32U;
  }
  __device__ static void set_words(Piece& piece, const std::uint64_t (&words)[2]) {
    piece = {{static_cast<std::uint32_t>(words[0]), static_cast<std::uint32_t>(words[0] >> 32U),
              static_cast<std::uint32_t>(words[1]), static_cast<std::uint32_t>(words[1] >> 32U)}};
  }
  __device__ static bool all_of_group(bool value) { return __all_sync(0xffffffffU, value) != 0; }
  template <int kLines>
  __device__ void store_pieces(std::byte* slot, std::uint32_t first, std::uint32_t stride,
                               std::uint32_t lines, std::uint32_t flag,
                               const std::uint64_t (&words)[2 * kLines]) const {
    __syncwarp();  // so that the eight threads of a line store together
    RW_UNROLL
    for (int i = 0; i < kLines; ++i) {
      const std::uint32_t line = first + i * stride;
      if (line >= lines) continue;
      const std::uint64_t second = first_piece() == 7 ? flag : words[2 * i + 1];
      asm volatile("st.volatile.global.v2.u64 [%0], {%1,%2};" ::"l"(piece(slot, line)),
                   "l"(words[2 * i]), "l"(second)
                   : "memory");
    }
  }

  /// A launch may begin while the previous one ends (start() of comm/cuda): what the previous one
  /// wrote is visible only after this.
  __device__ static void prologue() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
    asm volatile("griddepcontrol.launch_dependents;");
#endif
  }

  // ---- counters ----
  __device__ std::uint64_t load_acquire(const std::uint64_t* from) const {
    std::uint64_t value;
    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  __device__ std::uint64_t load_relaxed(const std::uint64_t* from) const {
    std::uint64_t value;
    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(value) : "l"(from) : "memory");
    return value;
  }
  __device__ static void fence_release() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }
  __device__ void store_release(std::uint64_t* to, std::uint64_t value) const {
    asm volatile("fence.acq_rel.sys; st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value)
                 : "memory");
  }
  __device__ void store_relaxed(std::uint64_t* to, std::uint64_t value) const {
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(to), "l"(value) : "memory");
  }

  // ---- tags: sixteen bytes, loaded and stored by one instruction ----
  __device__ CallTag load_tag(const CallTag* from) const {
    union {
      Pack pack;
      CallTag tag;
    } both = {load(reinterpret_cast<const Pack*>(from))};
    return both.tag;
  }
  __device__ void store_tag(CallTag* to, const CallTag& tag) const {
    static_assert(sizeof(CallTag) == sizeof(Pack));
    union {
      CallTag tag;
      Pack pack;
    } both = {tag};
    store(reinterpret_cast<Pack*>(to), both.pack);
  }

  // ---- time ----
  __device__ static std::uint64_t clock_ns() {
    std::uint64_t time;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(time));
    return time;
  }

  // ---- waiting ----
  template <typename Condition>
  __device__ bool wait(Condition&& condition) {
    std::uint64_t since = 0;
    RW_ROLLED
    for (unsigned turn = 1; !condition(); ++turn) {
      // Reading host memory takes microseconds: only every Nth turn.
      if (turn % kTurns == 0 && (since = look_round(since)) == kStop) return condition();
    }
    return true;
  }
  /// As wait(), by a whole warp, with a condition that has the same value in all its threads.
  template <typename Condition>
  __device__ bool wait_together(Condition&& condition) {
    std::uint64_t since = 0;
    RW_ROLLED
    for (unsigned turn = 1; !condition(); ++turn) {
      if (turn % kTurns != 0) continue;
      since = look_round(since);
      if (__any_sync(0xffffffffU, since == kStop) != 0) return false;
    }
    return true;
  }
  RW_NOINLINE __device__ void stop(const StopRecord& record) {
    StopRecord* stop = &links_.control->stop;
    if (atomicCAS_system(&stop->reason, 0U, static_cast<std::uint32_t>(StopReason::kAborted)) !=
        0U) {
      return;  // another thread has stopped the call
    }
    stop->peer = record.peer;
    stop->own = record.own;
    stop->theirs = record.theirs;
    stop->got = record.got;
    stop->expected = record.expected;
    __threadfence_system();
    *const_cast<volatile std::uint32_t*>(&stop->reason) = record.reason;
    *const_cast<volatile std::uint32_t*>(&links_.control->abort) = 1;
    __threadfence_system();
  }

 private:
  __device__ static const Pack* piece(const std::byte* slot, std::uint32_t line) {
    return reinterpret_cast<const Pack*>(slot + line * kLine128Bytes) + threadIdx.x % 8;
  }
  // For a thread that waits since `since` (0: it has just begun). @return kStop if it must stop,
  // else the time since when it waits
  RW_NOINLINE __device__ std::uint64_t look_round(std::uint64_t since) {
    if (*const_cast<const volatile std::uint32_t*>(&links_.control->abort) != 0) return kStop;
    StopRecord record;
    if (called_otherwise(*this, links_, tag_, record)) {
      stop(record);
      return kStop;
    }
    const std::uint64_t now = clock_ns();
    if (links_.timeout_ns == 0 || since == 0) return now;
    if (now - since < links_.timeout_ns) return since;
    record.reason = static_cast<std::uint32_t>(StopReason::kTimeout);
    if (tag_ != nullptr) record.own = *tag_;
    stop(record);
    return kStop;
  }

  static constexpr unsigned kTurns = 4096;
  static constexpr std::uint64_t kStop = ~std::uint64_t{0};

  const LaunchLinks& links_;
  const CallTag* tag_;
};

}  // namespace ropewalk::executor
