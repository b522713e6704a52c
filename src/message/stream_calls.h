// Operations on windows in the order of a CUDA stream: what is enqueued, and the watch over it.
//
// Where the peer's part is mapped a put is a copy, a signal two writes of 64 bits (its two homes:
// window_memory.h), a wait one wait for at least a value: the CPU takes no part. What a link must
// carry the stream only triggers, by a write to a word in pinned memory, which the messenger polls;
// where the stream must not go on before it is done, it waits for a second word.
//
// A prepared batch of puts, signals and waits is one kernel instead (puts_and_signals.h), which is
// given the same values; its waits are watched over and ended as those of the driver.
//
// Each call ends with a write of its number to a word of its own: so it is known what streams still
// hold. Each wait has one, too, and begins with another, so that its time limit counts from when
// the stream came there. A wait that must end otherwise is satisfied by the largest value, again
// and again until the stream has passed: what the peer still sends may overwrite it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/error.h"
#include "message/device_batch.h"
#include "message/device_kernels.h"
#include "message/operation.h"
#include "message/puts_and_signals.h"
#include "message/stream_batch.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::message {

/// Of one GPU. Threads: one at a time.
class StreamCalls {
 public:
  /// @throws Error kCuda; kInvalidUsage where streams have no 64-bit memory operations
  explicit StreamCalls(transport::window::Gpu& gpu);
  /// Waits, 2 s at most, until the streams hold nothing of it. @pre release() was called
  ~StreamCalls();
  StreamCalls(const StreamCalls&) = delete;
  StreamCalls& operator=(const StreamCalls&) = delete;

  /// Whether `stream` is being captured into a graph. @throws Error kCuda
  [[nodiscard]] bool captures(transport::window::CuStream stream) const;
  /// Whether a stream can read and write `address`: GPU memory, or pinned.
  [[nodiscard]] bool accessible(const void* address) const noexcept;

  /// Has words for one more call, or for `words`. Else poll() until it is so.
  [[nodiscard]] bool has_room(std::size_t words = 2) const noexcept {
    return free_.size() >= words;
  }
  /// Streams hold so many calls that one more might stand still in the driver, whose queues are
  /// full at some 1,000 commands: then nobody would poll for what streams wait for.
  [[nodiscard]] bool is_far_ahead() const noexcept { return calls_ >= kMostCalls; }
  /// With them a stream may be captured, and batches have their short copies in one kernel.
  /// Null where there are none.
  [[nodiscard]] const LoadedKernels* kernels() const noexcept {
    return kernels_.has_value() ? &*kernels_ : nullptr;
  }
  /// Into the graph that `stream` captures: kernels count, so that it may be launched again and
  /// again. @pre kernels()
  void capture(const OperationSpec& spec, const rwDeviceWindow& device,
               transport::window::CuStream stream);
  /// A whole batch, `prepared` of `specs`. @pre kernels(); no link carries any of it
  void capture(const DeviceBatch& prepared, std::span<const OperationSpec> specs,
               transport::window::CuStream stream);

  /// `specs` as one kernel and waits do them outside of graphs; null where they cannot: no kernels,
  /// a link carries some of it, reason_against_kernels(), more signals or waits than fit, a source
  /// on another GPU. Validated, by accessible(), too.
  [[nodiscard]] std::shared_ptr<const StreamBatch> prepare(
      std::span<const OperationSpec> specs) const;
  /// `values` of its signals' counters, then of its waits'. @throws Error kCuda
  /// @pre has_room(1 + batch.waits.size()); it is of this, and its windows are open
  void launch_batch(const StreamBatch& batch, std::span<const std::uint64_t> values,
                    transport::window::CuStream stream);

  /// The calls of one function of the API, in their order: begin(), add()..., finish().
  /// @throws Error kCuda
  void begin(transport::window::CuStream stream);
  /// The calls begin when something on this GPU, a kernel or another stream, has stored this value,
  /// or a larger one, there. @pre begin() just before; has_trigger()
  struct Trigger {
    std::uint64_t word = 0;  ///< its address, in the GPU's memory
    std::uint64_t value = 0;
  };
  Trigger await_trigger(const Window& window);
  [[nodiscard]] bool has_trigger() const noexcept { return !free_triggers_.empty(); }
  /// `target`: of a wait or a signal, the counter's value. @pre has_room(); validated
  void add(const OperationSpec& spec, std::uint64_t target);
  void finish();

  /// Starts what a stream has triggered by `start`, ends what is done.
  /// @return true when anything moved
  bool poll(const std::function<void(Operation&)>& start);
  /// Something is in a stream.
  [[nodiscard]] bool busy() const noexcept { return !held_.empty(); }
  [[nodiscard]] bool busy(const Window& window) const;
  /// A stream may ask for a link at any time.
  [[nodiscard]] bool asks() const noexcept;
  /// The error of a wait that has lasted for `limit` (0: none), or whose peer `left`.
  std::optional<Error> overdue(std::chrono::nanoseconds limit,
                               const std::function<bool(int)>& left);
  /// The operation of a link that failed, if any.
  [[nodiscard]] const std::optional<Error>& fault() const noexcept { return fault_; }
  /// Satisfies all waits. Again from time to time while busy().
  void release();

 private:
  static constexpr std::size_t kMostCalls = 256;
  // Words of a call, in pinned memory, in a line of its own.
  struct Line {
    std::uint64_t began = 0;   // by the stream: a wait is next
    std::uint64_t passed = 0;  // by the stream: the call is over, or triggered
    std::uint64_t done = 0;    // by the messenger, for a stream that waits
    std::uint64_t unused[5] = {};
  };
  static_assert(sizeof(Line) == 64);
  // What a stream holds: a wait, what a link carries, or the rest of one call.
  struct Held {
    Line* line = nullptr;
    std::uint64_t number = 0;
    // Where the stream says, by the number, that it has passed: of those that it passes at once,
    // the same word.
    std::pair<const std::uint64_t*, std::uint64_t> passing;
    OperationSpec spec;
    std::vector<const Window*> others;  // besides that of `spec`, where it is the rest
    std::uint64_t counter = 0;          // of a wait, or a trigger's word
    std::uint64_t target = 0;           // of a wait: what it waits for
    std::uint64_t began_number = 0;     // of a wait: what the stream writes when it comes there
    bool of_trigger = false;            // which comes when the program pleases
    std::optional<std::chrono::steady_clock::time_point> began;
    std::unique_ptr<Operation> carried;
    bool passed = false;  // as poll() has seen it
    bool started = false;
    bool last = false;  // of a call that no trigger holds back
  };

  Held& hold(const OperationSpec& spec);
  // Numbers only grow: a later call may have the word by now, and the stream have passed that, too.
  [[nodiscard]] static bool has_passed(const Held& held) noexcept {
    return look(*held.passing.first) >= held.passing.second;
  }
  void end_call();
  Held& hold_wait(const OperationSpec& spec, std::uint64_t target);
  void await(std::span<const OperationSpec> waits, std::span<const std::uint64_t> targets);
  void copy_all(std::span<const DeviceCopy> copies);
  void write(std::uint64_t address, std::uint64_t value);
  void wait(std::uint64_t address, std::uint64_t value);
  void copy(void* to, const void* from, std::size_t bytes);
  void submit_copies();
  void wait_for_links();
  void submit();
  [[nodiscard]] std::uint64_t on_device(const std::uint64_t& word) const noexcept;
  static std::uint64_t look(const std::uint64_t& word) noexcept;

  transport::window::Gpu& gpu_;
  std::optional<LoadedKernels> kernels_;
  void* kernel_on_host_ = nullptr;
  void* memory_ = nullptr;
  std::uint64_t shift_ = 0;  // from the host's to the GPU's address
  std::vector<Line*> free_;
  std::uint64_t triggers_ = 0;  // lines in the GPU's memory
  std::vector<std::uint64_t> free_triggers_;
  std::list<Held> held_;
  std::size_t calls_ = 0;  // of which the last one is held
  std::uint64_t last_number_ = 0;
  std::optional<Error> fault_;
  std::chrono::steady_clock::time_point next_release_{};

  transport::window::CuStream stream_ = nullptr;  // from begin() to finish()
  std::vector<const Window*> plain_;              // windows of what is not held by itself
  bool ordered_ = false;                          // the next copy comes after what is pending
  bool triggered_ = false;                        // what is added waits for a trigger
  std::uint64_t first_number_ = 0;                // of what is added
  // Copies, then operations.
  std::vector<DeviceCopy> copies_;
  std::vector<transport::window::CuStreamOperation> pending_;
  std::vector<std::pair<std::uint64_t, std::uint64_t>> last_waits_;  // word, value
};

}  // namespace ropewalk::message
