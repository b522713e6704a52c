// Live objects under numbers that go to NCCL in the guise of pointers.
//
// Nothing that NCCL hands in is ever followed as a pointer: a number holds a kind, an index and a
// generation, so handles that were never issued, handles of another kind and closed handles are all
// distinguished from valid ones, whatever their bits are.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/mutex.h"

namespace ropewalk::netplugin {

/// The first four bits of a number. Addresses have none of them set.
enum class Kind : std::uint8_t { kContext = 1, kListener, kConnecting, kComm, kMemory, kRequest };

inline constexpr unsigned kIndexBits = 20;
inline constexpr std::uint64_t kIndexMask = (std::uint64_t{1} << kIndexBits) - 1;

inline std::uint64_t number_of(const void* handle) noexcept {
  return reinterpret_cast<std::uint64_t>(handle);
}
inline void* handle_of(std::uint64_t number) noexcept {
  // NOLINTNEXTLINE(performance-no-int-to-ptr): a number in the guise of a pointer, never followed
  return reinterpret_cast<void*>(number);
}
inline Kind kind_of(const void* handle) noexcept {
  return static_cast<Kind>(number_of(handle) >> 60);
}

/// Owns objects of one kind. Threads: any; find() takes no lock. That nobody uses an object while
/// another thread removes it is up to the callers.
template <typename T, Kind kKind>
class Slots {
 public:
  Slots() = default;
  ~Slots() { clear(); }
  Slots(const Slots&) = delete;
  Slots& operator=(const Slots&) = delete;

  /// @throws Error kSystem when about a million objects live
  void* add(std::unique_ptr<T> object) {
    const Lock lock(mutex_);
    if (free_.empty()) grow();
    const std::uint64_t index = free_.back();
    free_.pop_back();
    Slot& slot = at(index);
    // Generations count through the whole table, so that an old number stays dead for long.
    generation_ = (generation_ + 1) & kGenerationMask;
    const std::uint64_t number =
        std::uint64_t{static_cast<std::uint8_t>(kKind)} << 60 | generation_ << kIndexBits | index;
    slot.object.store(object.release(), std::memory_order_relaxed);
    slot.number.store(number, std::memory_order_release);
    ++live_;
    return handle_of(number);
  }

  /// @return nullptr when `handle` is of no live object
  [[nodiscard]] T* find(const void* handle) const noexcept {
    const Slot* slot = slot_of(number_of(handle) & kIndexMask);
    if (slot == nullptr || slot->number.load(std::memory_order_acquire) != number_of(handle)) {
      return nullptr;
    }
    return handle == nullptr ? nullptr : slot->object.load(std::memory_order_relaxed);
  }

  /// The live object at an index, whatever its generation.
  [[nodiscard]] T* find_at(std::uint64_t index) const noexcept {
    const Slot* slot = slot_of(index);
    if (slot == nullptr || slot->number.load(std::memory_order_acquire) == 0) return nullptr;
    return slot->object.load(std::memory_order_relaxed);
  }

  /// @return nullptr when `handle` is of no live object
  std::unique_ptr<T> remove(const void* handle) {
    const Lock lock(mutex_);
    if (find(handle) == nullptr) return nullptr;
    return take(number_of(handle) & kIndexMask);
  }

  /// Removes the objects that `which` picks; they are destroyed after all are out of the table.
  template <typename Predicate>
  std::size_t remove_if(Predicate which) {
    std::vector<std::unique_ptr<T>> removed;
    {
      const Lock lock(mutex_);
      for (std::uint64_t index = 0; index < slots_; ++index) {
        T* object = find_at(index);
        if (object != nullptr && which(*object)) removed.push_back(take(index));
      }
    }
    return removed.size();
  }

  [[nodiscard]] std::size_t live() const {
    const Lock lock(mutex_);
    return live_;
  }

  /// Destroys all objects and gives the memory back.
  void clear() {
    remove_if([](const T&) { return true; });
    const Lock lock(mutex_);
    for (std::atomic<Slot*>& chunk : chunks_) delete[] chunk.exchange(nullptr);
    std::vector<std::uint64_t>().swap(free_);  // an assignment would keep its memory
    slots_ = 0;
  }

 private:
  struct Slot {
    std::atomic<std::uint64_t> number{0};  // 0: nothing lives here
    std::atomic<T*> object{nullptr};
  };
  static constexpr std::size_t kChunk = 1024;
  static constexpr std::uint64_t kGenerationMask = (std::uint64_t{1} << (60 - kIndexBits)) - 1;

  [[nodiscard]] Slot* slot_of(std::uint64_t index) const noexcept {
    Slot* chunk = chunks_[index / kChunk].load(std::memory_order_acquire);
    return chunk == nullptr ? nullptr : chunk + index % kChunk;
  }
  Slot& at(std::uint64_t index) { return *slot_of(index); }

  void grow() RW_REQUIRES(mutex_) {
    if (slots_ > kIndexMask) throw Error(Errc::kSystem, "{} objects live", slots_);
    auto chunk = std::make_unique<Slot[]>(kChunk);
    free_.reserve(kChunk);
    for (std::size_t i = kChunk; i > 0; --i) free_.push_back(slots_ + i - 1);
    chunks_[slots_ / kChunk].store(chunk.release(), std::memory_order_release);
    slots_ += kChunk;
  }
  std::unique_ptr<T> take(std::uint64_t index) RW_REQUIRES(mutex_) {
    Slot& slot = at(index);
    slot.number.store(0, std::memory_order_release);
    free_.push_back(index);
    --live_;
    return std::unique_ptr<T>(slot.object.exchange(nullptr));
  }

  mutable Mutex mutex_;
  std::array<std::atomic<Slot*>, (kIndexMask + 1) / kChunk> chunks_{};
  std::vector<std::uint64_t> free_ RW_GUARDED_BY(mutex_);
  std::uint64_t slots_ RW_GUARDED_BY(mutex_) = 0;
  std::uint64_t generation_ RW_GUARDED_BY(mutex_) = 0;
  std::size_t live_ RW_GUARDED_BY(mutex_) = 0;
};

}  // namespace ropewalk::netplugin
