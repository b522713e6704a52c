// Threads of the host that stand in for a CUDA block (block/staged_walk.h): the same walks and
// transfers run under sanitizers, without a GPU.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <bit>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "executor/block/arithmetic.h"
#include "executor/block/host_stop.h"
#include "executor/block/launch.h"
#include "executor/block/stage.h"

namespace ropewalk::executor {

/// What the threads of a block share.
class HostBlockShared {
 public:
  /// At least three threads: a mover, a maker and a teller (staged_walk.h).
  explicit HostBlockShared(unsigned size) : size_(size), barrier_(size) {
    // Between makers and movers, and between these and tellers.
    for (std::uint32_t i = 0; i < kStageBarriers; ++i) {
      some_.push_back(std::make_unique<std::barrier<>>(size - 1));
    }
  }
  [[nodiscard]] unsigned size() const noexcept { return size_; }

 private:
  friend class HostBlock;
  unsigned size_;
  std::barrier<> barrier_;
  std::vector<std::unique_ptr<std::barrier<>>> some_;
  std::atomic<bool> any_{false};
};

/// One thread of the block. Threads: the one that is `thread`.
class HostBlock {
 public:
  HostBlock(HostBlockShared& shared, unsigned thread, const LaunchLinks& links,
            const CallTag* tag = nullptr)
      : shared_(shared), thread_(thread), links_(links), tag_(tag) {}

  [[nodiscard]] unsigned thread() const noexcept { return thread_; }
  [[nodiscard]] unsigned size() const noexcept { return shared_.size_; }
  void sync() { shared_.barrier_.arrive_and_wait(); }
  bool sync_or(bool value) {
    if (value) shared_.any_ = true;
    sync();
    // Never reset: a stopped block does not continue.
    const bool any = shared_.any_;
    sync();
    return any;
  }

  static constexpr unsigned kWarp = 1;
  void sync_some(std::uint32_t id, unsigned /*threads*/) { shared_.some_[id]->arrive_and_wait(); }
  void arrive_some(std::uint32_t id, unsigned /*threads*/) { (void)shared_.some_[id]->arrive(); }
  static bool any_of_warp(bool value) { return value; }
  static void sync_warp() {}
  static void add_word(std::uint32_t* word) {
    std::atomic_ref(*word).fetch_add(1, std::memory_order_acq_rel);
    std::atomic_ref(*word).notify_all();
  }
  static bool has_word(const std::uint32_t* word, std::uint32_t value) {
    return std::atomic_ref(*const_cast<std::uint32_t*>(word)).load() == value;
  }
  static void wait_word(const std::uint32_t* word, std::uint32_t value) {
    const std::atomic_ref now(*const_cast<std::uint32_t*>(word));
    for (std::uint32_t old = now.load(); old != value; old = now.load()) now.wait(old);
  }

  template <typename T>
  T load(const T* from) const {
    return *from;
  }
  template <typename T>
  T load_own(const T* from) const {
    return *from;
  }
  void store(Pack* to, const Pack& pack) const { *to = pack; }

  // The half with the call's number comes last.
  [[nodiscard]] CallTag load_tag(const CallTag* from) const {
    const auto* words = reinterpret_cast<const std::uint64_t*>(from);
    const std::uint64_t last = load_acquire(words + 1);
    const std::array<std::uint64_t, 2> both = {load_acquire(words), last};
    return std::bit_cast<CallTag>(both);
  }
  void store_tag(CallTag* to, const CallTag& tag) const {
    const auto both = std::bit_cast<std::array<std::uint64_t, 2>>(tag);
    auto* words = reinterpret_cast<std::uint64_t*>(to);
    store_release(words, both[0]);
    store_release(words + 1, both[1]);
  }

  [[nodiscard]] Pack look_at_line(const std::byte* line) const {
    return std::bit_cast<Pack>(
        std::array{load_acquire(half(line, 0)), load_acquire(half(line, 1))});
  }
  bool load_line(const std::byte* line, std::uint32_t flag, std::uint64_t& word) {
    return wait([&] {
      const Pack now = look_at_line(line);
      word = word_of(now);
      return executor::has_flag(now, flag);
    });
  }
  void store_line(std::byte* line, std::uint32_t flag, std::uint64_t word) const {
    store_release(half(line, 0), (word & 0xffffffffU) | std::uint64_t{flag} << 32U);
    store_release(half(line, 1), (word >> 32U) | std::uint64_t{flag} << 32U);
  }

  static constexpr int kPieces = 8;
  static unsigned first_piece() { return 0; }
  [[nodiscard]] unsigned group_first_line() const noexcept { return thread_; }
  template <int kLines>
  bool load_pieces(const std::byte* slot, std::uint32_t first, std::uint32_t stride,
                   std::uint32_t lines, std::uint32_t flag,
                   std::uint64_t (&words)[kLines * 2 * kPieces]) {
    return wait([&] {
      for (std::size_t i = 0; i < kLines && first + i * stride < lines; ++i) {
        const std::byte* line = slot + (first + i * stride) * kLine128Bytes;
        if (load_acquire(half(line, kLineWords)) != flag) return false;
        for (int k = 0; k < 2 * kPieces; ++k)
          words[i * 2 * kPieces + static_cast<std::size_t>(k)] = load_acquire(half(line, k));
      }
      return true;
    });
  }
  struct Piece {
    std::uint64_t words[2 * kPieces] = {};
  };
  // The word with the flag first: the others were stored before it.
  [[nodiscard]] Piece look_at_piece(const std::byte* slot, std::uint32_t line) const {
    Piece piece;
    const std::byte* at = slot + line * kLine128Bytes;
    for (int k = 2 * kPieces; k-- > 0;) piece.words[k] = load_acquire(half(at, k));
    return piece;
  }
  static bool has_flag(const Piece& piece, std::uint32_t flag) {
    return piece.words[kLineWords] == flag;
  }
  static void words_of(const Piece& piece, std::uint64_t (&words)[2 * kPieces]) {
    std::copy_n(piece.words, 2 * kPieces, words);
  }
  static void set_words(Piece& piece, const std::uint64_t (&words)[2 * kPieces]) {
    std::copy_n(words, 2 * kPieces, piece.words);
  }
  static bool all_of_group(bool value) { return value; }
  template <typename Condition>
  bool wait_together(Condition&& condition) {
    return wait(std::forward<Condition>(condition));
  }
  template <int kLines>
  void store_pieces(std::byte* slot, std::uint32_t first, std::uint32_t stride, std::uint32_t lines,
                    std::uint32_t flag, const std::uint64_t (&words)[kLines * 2 * kPieces]) const {
    for (std::size_t i = 0; i < kLines && first + i * stride < lines; ++i) {
      const std::byte* line = slot + (first + i * stride) * kLine128Bytes;
      for (std::size_t k = 0; k < kLineWords; ++k) {
        store_release(half(line, static_cast<int>(k)), words[i * 2 * kPieces + k]);
      }
      store_release(half(line, kLineWords), flag);
    }
  }

  static void prologue() {}

  std::uint64_t load_acquire(const std::uint64_t* from) const {
    return std::atomic_ref(*const_cast<std::uint64_t*>(from)).load(std::memory_order_acquire);
  }
  /// An acquire here: nothing else orders a host thread's writes after it.
  std::uint64_t load_relaxed(const std::uint64_t* from) const { return load_acquire(from); }
  void store_release(std::uint64_t* to, std::uint64_t value) const {
    std::atomic_ref(*to).store(value, std::memory_order_release);
  }
  /// store_relaxed() is a release here.
  static void fence_release() {}
  /// A release here: nothing else orders a host thread's reads before it.
  void store_relaxed(std::uint64_t* to, std::uint64_t value) const { store_release(to, value); }

  static std::uint64_t clock_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(now).count());
  }

  template <typename Condition>
  bool wait(Condition&& condition) {
    const auto begin = std::chrono::steady_clock::now();
    while (!condition()) {
      if (std::atomic_ref(links_.control->abort).load() != 0) return false;
      StopRecord record;
      if (called_otherwise(*this, links_, tag_, record)) {
        stop(record);
        return false;
      }
      const auto waited = std::chrono::steady_clock::now() - begin;
      if (links_.timeout_ns != 0 && waited > std::chrono::nanoseconds(links_.timeout_ns)) {
        record.reason = static_cast<std::uint32_t>(StopReason::kTimeout);
        if (tag_ != nullptr) record.own = *tag_;
        stop(record);
        return false;
      }
      std::this_thread::yield();
    }
    return true;
  }
  void stop(const StopRecord& record) { stop_once(*links_.control, record); }

 private:
  static std::uint64_t* half(const std::byte* line, int i) {
    return reinterpret_cast<std::uint64_t*>(const_cast<std::byte*>(line)) + i;
  }

  HostBlockShared& shared_;
  unsigned thread_;
  const LaunchLinks& links_;
  const CallTag* tag_;
};

}  // namespace ropewalk::executor
