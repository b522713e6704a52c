// What carries out collective calls: on host memory (host_executor.h) or on a GPU (device_group.h).
// A call is prepared once for its shape, and run any number of times (call_pipeline.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "comm/collective_call.h"
#include "executor/fifo.h"
#include "trace/operation.h"
#include "tune/choice.h"

namespace ropewalk::comm {

/// A cudaStream_t; host memory has none.
using DeviceStream = void*;

/// Everything of a call except its buffers, ready to run. An executor adds its own data.
class PreparedCall {
 public:
  PreparedCall(const CollectiveCall& shape, const Extent& extent,
               std::shared_ptr<const tune::Choice> choice)
      : shape_(shape), extent_(extent), choice_(std::move(choice)) {
    shape_.input = nullptr;
    shape_.output = nullptr;
  }
  virtual ~PreparedCall() = default;
  PreparedCall(const PreparedCall&) = delete;
  PreparedCall& operator=(const PreparedCall&) = delete;

  /// Whether it serves the call, whatever its buffers.
  [[nodiscard]] bool serves(const CollectiveCall& call) const noexcept {
    return shape_.count == call.count && shape_.collective == call.collective &&
           shape_.type == call.type && shape_.op == call.op && shape_.root == call.root &&
           shape_.scalar == call.scalar;
  }
  [[nodiscard]] const Extent& extent() const noexcept { return extent_; }
  [[nodiscard]] const tune::Choice& choice() const noexcept { return *choice_; }

  /// What this rank sends when it runs by its schedule: by peer, each once.
  [[nodiscard]] virtual std::vector<trace::SentBytes> sent_bytes() const { return {}; }
  /// The same where copy engines make it, as its last run.
  [[nodiscard]] virtual std::vector<trace::SentBytes> copied_bytes() const { return {}; }

  /// Of how it ran in the communicator's records (call_records.h): by its schedule, or by copy
  /// engines; 0 before it is set.
  [[nodiscard]] std::uint16_t& record_label(bool copied = false) noexcept {
    return record_labels_[copied ? 1 : 0];
  }

 protected:
  [[nodiscard]] const CollectiveCall& shape() const noexcept { return shape_; }

 private:
  CollectiveCall shape_;  // without buffers
  Extent extent_;
  std::shared_ptr<const tune::Choice> choice_;
  std::array<std::uint16_t, 2> record_labels_{};
};

/// Threads: one at a time.
class Executor {
 public:
  virtual ~Executor() = default;

  /// @throws Error kCuda, kSystem; kInvalidUsage for a schedule that it cannot run
  virtual std::unique_ptr<PreparedCall> prepare(const CollectiveCall& call, const Extent& extent,
                                                std::shared_ptr<const tune::Choice> choice) = 0;
  /// Begins a valid call with what prepare() made for its shape.
  /// @return true when the caller has nothing more to do: the call is over, or enqueued
  virtual bool run(PreparedCall& prepared, const CollectiveCall& call, bool in_place,
                   const executor::CallTag& tag, DeviceStream stream) = 0;
  /// What prepare() made is not needed any more; operations that were begun with it may still run.
  virtual void retire(std::unique_ptr<PreparedCall> prepared) = 0;
  /// So are schedules that the user gave.
  virtual void forget_schedules() = 0;
  /// Channels that its schedules may have.
  [[nodiscard]] virtual int max_channels() const noexcept = 0;
};

}  // namespace ropewalk::comm
