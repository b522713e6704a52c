// A program at work in a block of threads, over links of protocol simple.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/block/launch.h"
#include "executor/block/stage.h"
#include "executor/call.h"
#include "executor/step.h"

namespace ropewalk::executor {

/// A program at work in a block: the walker's Strand. All arrays are shared by the block.
struct BlockStrand {
  const StepRecord* steps = nullptr;
  const std::int32_t* operands = nullptr;
  const SendRecord* send_records = nullptr;
  SendEnd* sends = nullptr;        ///< the program's
  ReceiveEnd* receives = nullptr;  ///< the program's
  BlockStage* stages = nullptr;
  std::uint32_t num_send_ends = 0;
  std::uint32_t num_receive_ends = 0;
  std::size_t num_records = 0;
  // This thread's copy, since all threads take the same branches.
  std::size_t begin = 0;
  std::size_t length = 0;
  std::size_t part_length = 0;
  std::size_t chunk_length = 0;
  std::size_t rounds = 0;
  std::size_t last_lag = 0;

  [[nodiscard]] RW_HOST_DEVICE std::size_t num_steps() const { return num_records; }
  [[nodiscard]] RW_HOST_DEVICE const StepRecord& step_record(std::size_t s) const {
    return steps[s];
  }
  [[nodiscard]] RW_HOST_DEVICE std::int32_t operand(std::uint32_t k) const { return operands[k]; }
  [[nodiscard]] RW_HOST_DEVICE const SendRecord& send_record(std::uint32_t k) const {
    return send_records[k];
  }
  [[nodiscard]] RW_HOST_DEVICE std::uint32_t num_sends() const { return num_send_ends; }
  [[nodiscard]] RW_HOST_DEVICE SendEnd& send_end(std::uint32_t end) const { return sends[end]; }
  [[nodiscard]] RW_HOST_DEVICE ReceiveEnd& receive_end(std::int32_t end) const {
    return receives[end];
  }
};

}  // namespace ropewalk::executor
