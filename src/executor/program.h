// A rank's step list in the form the walker reads: flat arrays of plain records.
//
// Made once per schedule, rank and channel; shared by all calls. The records hold no pointers, so
// that the arrays can be copied to a GPU as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "schedule/check.h"
#include "schedule/schedule.h"

namespace ropewalk::executor {

inline constexpr std::int32_t kOwnInput = -1;
inline constexpr std::int32_t kOwnOutput = -2;
inline constexpr std::int32_t kNowhere = -1;

struct StepRecord {
  std::int32_t part = 0;
  std::int32_t input_index = kNowhere;   ///< unit index of the block in the input buffer
  std::int32_t output_index = kNowhere;  ///< unit index of the block in the output buffer
  std::uint32_t first_operand = 0;
  std::uint32_t num_operands = 0;
  std::uint32_t first_send = 0;
  std::uint32_t num_sends = 0;
  std::uint32_t lag = 0;  ///< rounds (schedule/lags.h)
  bool write_output = false;
  bool finished = false;
};

/// One destination link of a step. The flags say when the receiver may be given the address of the
/// user's buffer instead of a copy (schedule/check.h, DirectSend).
struct SendRecord {
  std::uint32_t end = 0;  ///< index into Program::send_peers
  bool address_out_of_place = false;
  bool address_in_place = false;
};

struct Program {
  int channel = 0;
  int parts = 1;
  std::vector<StepRecord> steps;
  std::vector<std::int32_t> operands;  ///< index into receive_peers, or kOwnInput, kOwnOutput
  std::vector<SendRecord> sends;
  std::vector<int> receive_peers;  ///< ranks that this strand receives from, one link each
  std::vector<int> send_peers;
  std::uint32_t max_operands = 0;
  std::uint32_t max_sends = 0;
};

/// @pre `report` is check(schedule)'s and accepts
Program make_program(const schedule::Schedule& schedule, const schedule::CheckReport& report,
                     int rank, int channel);

/// `lags`: one for each step.
void set_lags(Program& program, const std::vector<std::uint32_t>& lags);

/// The program of one send to, or one receive from, one peer.
Program make_send_program();
Program make_receive_program();

}  // namespace ropewalk::executor
