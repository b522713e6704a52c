// From a call to what runs it: choose (tune/tuner.h), prepare (executor.h), and keep both for the
// next call of the same shape. A communicator has one pipeline for host memory and one for its GPU.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>

#include "comm/call_agreement.h"
#include "comm/collective_call.h"
#include "comm/executor.h"
#include "comm/served_sizes.h"
#include "schedule/checked.h"
#include "tune/hybrid_controller.h"
#include "tune/tuner.h"

namespace ropewalk::comm {

/// Threads: one at a time.
class CallPipeline {
 public:
  /// @param executor outlives it
  CallPipeline(tune::Tuner tuner, Executor& executor, int rank, int num_ranks);
  ~CallPipeline();
  CallPipeline(const CallPipeline&) = delete;
  CallPipeline& operator=(const CallPipeline&) = delete;

  /// Plans that take long are made in the background, and are in use from the call on that all
  /// ranks agree on. Before the first get().
  /// @param agreement outlives it
  void plan_in_background(CallAgreement& agreement, bool on_device);
  /// Shares of the host's links beside those between GPUs follow from what calls take, from the
  /// call on that all ranks agree on (tune/hybrid_controller.h). Rank 0 measures. Once, on every
  /// rank.
  /// @param agreement outlives it
  /// @param links     as the tuner has them
  void adapt_hybrid(CallAgreement& agreement, const tune::HybridLinks& links);
  /// What calls over both classes took, on rank 0. @pre adapt_hybrid() was called
  void measured(const tune::HybridTimes& times);

  /// What call `number` of the communicator runs with; the numbers do not fall. The reference holds
  /// until the next call of a function of this class.
  /// @throws Error as extent_of(), Tuner::choose() and Executor::prepare()
  PreparedCall& get(const CollectiveCall& call, std::uint64_t number) {
    if (agreement_ != nullptr && number >= agreement_->next(on_device_)) [[unlikely]]
      begin_new(number);
    std::unique_ptr<PreparedCall>& kept = kept_[slot_of(call)];
    if (kept == nullptr || !kept->serves(call)) replace(kept, call);
    return *kept;
  }

  /// From now on the schedule runs for its collective, from its root.
  /// @throws Error kInvalidArgument for too many channels
  void use_schedule(const std::shared_ptr<const schedule::Checked>& checked);
  void forget_schedules();
  /// Prepares every call again.
  void forget_calls();

  [[nodiscard]] tune::Tuner& tuner() noexcept { return tuner_; }

 private:
  // Programs repeat some shapes: as many as a training step has buckets fit. A power of two.
  static constexpr std::size_t kKept = 64;
  static std::size_t slot_of(const CollectiveCall& call) noexcept {
    const std::size_t mixed = call.count + (call.count >> 6U) + (call.count >> 12U) +
                              static_cast<std::size_t>(call.collective) * 5 +
                              static_cast<std::size_t>(static_cast<unsigned>(call.root));
    return mixed % kKept;
  }
  // What all ranks begin with call `number`.
  void begin_new(std::uint64_t number);
  void begin_scale(double scale, std::uint64_t number);
  void replace(std::unique_ptr<PreparedCall>& kept, const CollectiveCall& call);

  tune::Tuner tuner_;
  Executor& executor_;
  int rank_;
  int num_ranks_;
  ServedSizesLog sizes_log_;
  CallAgreement* agreement_ = nullptr;
  bool on_device_ = false;
  std::optional<tune::HybridController> hybrid_;  // of rank 0
  std::array<std::unique_ptr<PreparedCall>, kKept> kept_;
};

}  // namespace ropewalk::comm
