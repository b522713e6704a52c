// What a communicator was last asked to do, and when each operation was asked for, began and ended:
// a ring of records in memory, written by the calls themselves. The model is PyTorch's Flight
// Recorder; what is recorded is what its analyzer, NCCL's Inspector and Kineto's traces want.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/mutex.h"
#include "core/ticks.h"
#include "core/types.h"
#include "trace/device_times.h"
#include "trace/operation.h"
#include "trace/short_call_clock.h"

namespace ropewalk::trace {

/// Threads: one at a time begins records; any thread may write the times of records that it was
/// given, and read all of them at any time.
class CallRecords {
 public:
  /// A record's number, from 1; 0: none, which all functions ignore.
  using Id = std::uint64_t;

  enum class State : std::uint8_t { kScheduled, kStarted, kCompleted };

  struct Record {
    Id id = 0;
    std::uint64_t call =
        0;                  ///< number of the collective on this communicator, from 1; 0: a message
    std::string operation;  ///< "all_reduce", "barrier", "send", "receive"
    std::size_t count = 0;
    std::string type;
    std::string op;         ///< of reductions, else empty
    int root = -1;          ///< of rooted operations, else -1
    int peer = -1;          ///< of messages, else -1
    std::string algorithm;  ///< empty where none was chosen yet
    /// Of links between GPUs: "simple", "ll", "ll128"; else empty.
    std::string protocol;
    /// Of a chunk, where chunk sizes are tuned (comm/agreed_chunks.h); else 0. To 256 bytes.
    std::size_t chunk_bytes = 0;
    /// What this rank sends in it to each peer; none where that is not known.
    std::optional<std::vector<SentBytes>> sent;
    bool on_device = false;
    const void* stream = nullptr;  ///< of operations on a GPU; null: CUDA's default one
    /// Its state and times are known: of operations on a GPU only where their launch notes them.
    /// Of short calls on the host that followed each other closely, but for a pause: the state is
    /// known, and the times are those of a call before.
    bool timed = true;
    State state = State::kScheduled;
    // CLOCK_REALTIME in ns; 0: not yet. An operation on a GPU is scheduled when it is enqueued.
    std::int64_t scheduled_ns = 0;
    std::int64_t started_ns = 0;
    std::int64_t completed_ns = 0;
  };

  /// @param capacity  records that are kept, a power of two; 0: nothing is recorded
  /// @param all  further ones are kept too, as long as there is memory for them
  CallRecords(std::size_t capacity, bool all);

  [[nodiscard]] bool enabled() const noexcept { return capacity_ != 0; }
  /// Whether every record shall have times of its own: where all are kept. Else short calls have
  /// those of one of them (ShortCallClock), and no length.
  [[nodiscard]] bool exact() const noexcept { return all_; }

  /// What the records of equal calls have in common.
  class Shape {
   public:
    Shape() = default;

   private:
    friend class CallRecords;
    std::uint64_t count_ = 0;
    std::uint64_t label_and_root_ = 0;
    std::uint64_t kinds_ = 0;
    std::size_t counter_ = 0;
  };
  /// @param label  of its algorithm, or 0
  [[nodiscard]] static Shape shape_of(const Operation& operation, std::uint16_t label,
                                      bool on_device) noexcept {
    const bool collective = operation.kind == Operation::Kind::kCollective;
    const std::uint8_t kind = collective ? static_cast<std::uint8_t>(operation.collective)
                              : operation.kind == Operation::Kind::kSend ? kSend
                                                                         : kReceive;
    const auto type = operation.carried == CarriedType::kNone
                          ? static_cast<std::uint64_t>(operation.type)
                          : static_cast<std::uint64_t>(operation.carried);
    const auto op = collective ? static_cast<std::uint64_t>(operation.op) : 0;
    Shape shape;
    shape.count_ = operation.count;
    shape.label_and_root_ =
        label | std::uint64_t{static_cast<std::uint32_t>(operation.root_or_peer)} << kRootShift;
    shape.kinds_ =
        std::uint64_t{kind} | (on_device ? kOnDevice : 0U) | type << kTypeShift | op << kOpShift;
    shape.counter_ = operation.carried == CarriedType::kNothing ? kBarrier : kind;
    return shape;
  }

  /// Of an operation that is scheduled now. @param number  of a collective, on this communicator,
  /// from 1; 0: a message
  Id begin(const Shape& shape, std::uint64_t number) noexcept {
    if (!enabled()) return 0;
    return add(shape, number, [this](Slot& slot, Id id) {
      slot.scheduled.store(read_clock(id, false), std::memory_order_relaxed);
      slot.started.store(0, std::memory_order_relaxed);
      slot.completed.store(0, std::memory_order_relaxed);
    });
  }
  Id begin(const Operation& operation, std::uint64_t number, std::uint16_t label,
           bool on_device) noexcept {
    return begin(shape_of(operation, label, on_device), number);
  }
  /// Of a collective that was scheduled, and started, a moment ago, and is at work.
  Id begin_started(const Shape& shape, std::uint64_t number) noexcept {
    if (!enabled()) return 0;
    return add(shape, number, [this](Slot& slot, Id id) {
      const std::uint64_t now = read_clock(id, false);
      slot.scheduled.store(now, std::memory_order_relaxed);
      slot.started.store(now, std::memory_order_relaxed);
      slot.completed.store(0, std::memory_order_relaxed);
    });
  }
  /// Of a collective on the host that was all done within a moment: its record has one time, which
  /// may be that of a call before (ShortCallClock).
  void add_short(const Shape& shape, std::uint64_t number) noexcept {
    if (!enabled()) return;
    add(shape, number, [this](Slot& slot, Id id) {
      const std::uint64_t at = clock_.spares(id) ? clock_.last() : read_clock(id, true);
      slot.scheduled.store(at, std::memory_order_relaxed);
      slot.started.store(at, std::memory_order_relaxed);
      slot.completed.store(at, std::memory_order_relaxed);
    });
  }

  /// @param protocol  where links have several
  /// @param sent  by this rank, to each peer. Programs whose calls have more than some ten thousand
  ///              sizes in all have later ones recorded without
  /// @return what set_label() takes for a call that runs so
  [[nodiscard]] std::uint16_t label_of(std::string_view algorithm, std::string_view protocol = {},
                                       std::optional<std::vector<SentBytes>> sent = {});
  void set_label(Id id, std::uint16_t label) noexcept {
    if (Slot* slot = find(id)) set_low(*slot, label);
  }
  /// @pre set_label() was called
  void set_chunk(Id id, std::size_t bytes) noexcept {
    if (Slot* slot = find(id)) {
      const auto label =
          static_cast<std::uint32_t>(slot->label_and_root.load(std::memory_order_relaxed) & kLabel);
      const auto units = static_cast<std::uint32_t>(bytes / kChunkUnit);
      set_low(*slot, label | std::min(units, kMostChunkUnits) << kLabelBits);
    }
  }
  void start(Id id) noexcept {
    if (Slot* slot = find(id)) slot->started.store(ticks(), std::memory_order_relaxed);
  }
  void complete(Id id) noexcept {
    if (Slot* slot = find(id)) slot->completed.store(ticks(), std::memory_order_relaxed);
  }

  /// From now on the records of operations on the GPU have the times that are noted there. They are
  /// read until it is called again, or this is destroyed; null: none.
  void set_device_times(const DeviceTimes* times);
  /// An operation on the GPU, whose record was just begun, was launched. For the thread that begins
  /// records.
  /// @param range  where its times are noted
  /// @param scheduled  ticks() before it was launched
  void launched(Id id, const StampRange& range, std::uint64_t scheduled,
                const void* stream) noexcept {
    Slot* slot = find(id);
    if (slot == nullptr) return;
    const std::uint64_t number = stream == last_stream_ ? last_stream_number_ : number_of(stream);
    const std::uint64_t kinds = slot->kinds.load(std::memory_order_relaxed);
    slot->kinds.store(kinds | number << kStreamShift, std::memory_order_relaxed);
    slot->scheduled.store(scheduled, std::memory_order_relaxed);
    if (range.blocks == 0) return;
    slot->started.store(range.packed(), std::memory_order_relaxed);
    keep_times();
  }

  /// Those that are kept, the oldest first; no more than the `newest`.
  [[nodiscard]] std::vector<Record> read(
      std::size_t newest = std::numeric_limits<std::size_t>::max()) const;
  /// Calls that were begun, by operation as records name them; only those that are not 0.
  [[nodiscard]] std::map<std::string, std::uint64_t> counts() const;
  /// All records that were begun.
  [[nodiscard]] std::uint64_t num_begun() const noexcept {
    return last_.load(std::memory_order_relaxed);
  }

 private:
  // One cache line. Readers come at any time: they see by `id`, before and after, whether the slot
  // was given to another record meanwhile.
  struct alignas(64) Slot {
    std::atomic<Id> id{0};
    std::atomic<std::uint64_t> call{0};
    std::atomic<std::uint64_t> scheduled{0};  // ticks, as are the next two; 0: not yet
    // On the host, 0 of what is complete: its times are not known (ShortCallClock).
    // On a GPU: the packed StampRange, or 0; then, with kTimesKept, both are its stamps.
    std::atomic<std::uint64_t> started{0};
    std::atomic<std::uint64_t> completed{0};
    std::atomic<std::uint64_t> count{0};
    // The label, above it the chunk, in kChunkUnit, and in the upper half the root or peer.
    std::atomic<std::uint64_t> label_and_root{0};
    // From the lowest byte: Collective, or kSend, kReceive, with kOnDevice, kTimesKept; DataType or
    // CarriedType; RedOp; and two bytes with the stream's index in streams_.
    std::atomic<std::uint64_t> kinds{0};
  };
  static_assert(sizeof(Slot) == 64);
  static constexpr std::uint8_t kSend = 0x20;
  static constexpr std::uint8_t kReceive = 0x21;
  static constexpr std::uint8_t kBarrier = 0x22;  // only of counts_
  static constexpr std::uint8_t kTimesKept = 0x40;
  static constexpr std::uint8_t kOnDevice = 0x80;
  static constexpr unsigned kTypeShift = 8;
  static constexpr unsigned kOpShift = 16;
  static constexpr unsigned kStreamShift = 24;
  static constexpr unsigned kRootShift = 32;
  static constexpr unsigned kLabelBits = 16;
  static constexpr std::uint32_t kLabel = (1U << kLabelBits) - 1;
  static constexpr std::size_t kChunkUnit = 256;
  static constexpr std::uint32_t kMostChunkUnits = (1U << (32 - kLabelBits)) - 1;

  static void set_low(Slot& slot, std::uint32_t low) noexcept {
    const std::uint64_t all = slot.label_and_root.load(std::memory_order_relaxed);
    slot.label_and_root.store(all >> kRootShift << kRootShift | low, std::memory_order_relaxed);
  }
  // For the record `id`, the newest one. @param spare  as ShortCallClock::read()'s `counts`
  std::uint64_t read_clock(Id id, bool spare) noexcept {
    const std::uint64_t now = ticks();
    const Id before = clock_.read_at();
    if (!clock_.read(id, now, spare)) [[unlikely]]
      forget_times(before + 1, id);
    return now;
  }
  // Of the records from `begin` to before `end`, which had the last reading.
  void forget_times(Id begin, Id end) noexcept;
  template <typename SetTimes>
  Id add(const Shape& shape, std::uint64_t number, SetTimes set_times) noexcept {
    constexpr auto kRelaxed = std::memory_order_relaxed;
    std::atomic<std::uint64_t>& count = counts_[shape.counter_];
    count.store(count.load(kRelaxed) + 1, kRelaxed);
    const Id before = last_.load(kRelaxed);
    // In a ring the slot of the oldest record.
    const Id at = before & (capacity_ - 1);
    if (all_ && at == 0) add_block();
    Slot& slot = newest_[at];
    // Readers take it for none meanwhile.
    slot.id.store(0, kRelaxed);
    std::atomic_thread_fence(std::memory_order_release);
    const Id id = before + 1;
    slot.call.store(number, kRelaxed);
    set_times(slot, id);
    slot.count.store(shape.count_, kRelaxed);
    slot.label_and_root.store(shape.label_and_root_, kRelaxed);
    slot.kinds.store(shape.kinds_, kRelaxed);
    slot.id.store(id, std::memory_order_release);
    last_.store(id, std::memory_order_release);
    return id;
  }
  // Null for 0, and for a record that is kept no more.
  Slot* find(Id id) noexcept {
    if (id == 0) return nullptr;
    Slot& slot = (all_ ? block_of(id) : newest_)[(id - 1) & (capacity_ - 1)];
    return slot.id.load(std::memory_order_relaxed) == id ? &slot : nullptr;
  }
  Slot* block_of(Id id) noexcept;
  // The index of `stream` in streams_, which is the last one's from now on.
  std::uint16_t number_of(const void* stream) noexcept;
  void add_block() noexcept;
  [[nodiscard]] bool read_slot(const Slot& slot, Record& record, StampedTimes& stamped) const
      RW_REQUIRES(mutex_);
  // Of records on a GPU: brings stamps to the host's clock.
  void set_times(std::vector<Record>& records, const std::vector<StampedTimes>& stamped) const
      RW_REQUIRES(mutex_);
  // Copies the stamps whose memory will soon be another launch's. Most often there are none.
  void keep_times() noexcept;

  std::size_t capacity_ = 0;  // of a block
  bool all_ = false;
  std::atomic<Id> last_{0};
  ShortCallClock clock_;  // by the thread that begins records
  std::array<std::atomic<std::uint64_t>, kBarrier + 1> counts_{};  // by operation
  Slot* newest_ = nullptr;  // the block that is written; by the thread that begins records
  mutable Mutex mutex_;
  std::vector<std::unique_ptr<Slot[]>> blocks_ RW_GUARDED_BY(mutex_);
  Id first_of_blocks_ RW_GUARDED_BY(mutex_) = 1;
  struct Label {
    std::string algorithm;
    std::string protocol;
    std::optional<std::vector<SentBytes>> sent;
    friend auto operator<=>(const Label&, const Label&) = default;
  };
  // Room for labels without `sent` is kept free.
  static constexpr std::size_t kMostLabels = UINT16_MAX;
  static constexpr std::size_t kMostLabelsWithSent = kMostLabels / 2;
  static constexpr std::size_t kMostSent = std::size_t{1} << 18;  // of all labels
  std::map<Label, std::uint16_t> label_numbers_ RW_GUARDED_BY(mutex_);
  std::vector<const Label*> labels_ RW_GUARDED_BY(mutex_);  // by number; 0: none yet
  std::size_t num_sent_ RW_GUARDED_BY(mutex_) = 0;
  std::vector<const void*> streams_ RW_GUARDED_BY(mutex_);  // the first one is the default one
  const void* last_stream_ = nullptr;  // by the thread that begins records, as is the next one
  std::uint16_t last_stream_number_ = 0;
  mutable TickScale scale_ RW_GUARDED_BY(mutex_);
  std::atomic<const DeviceTimes*> device_times_{nullptr};
  Id times_kept_ = 0;  // up to this record; by the thread that begins records
};

}  // namespace ropewalk::trace
