// A rank's step list in the form the walker reads: flat arrays of plain records.
//
// Made once per schedule, rank and channel; shared by all calls. The records hold no pointers, so
// that the arrays can be copied to a GPU as they are.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "executor/step.h"
#include "schedule/check.h"
#include "schedule/schedule.h"

namespace ropewalk::executor {

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

/// A part of a channel that a step list sends to a peer.
struct PartSent {
  int channel = 0;
  int part = 0;
  int peer = -1;
};

/// What each round of the program sends: a part that goes to several peers, or to one several
/// times, is there as often.
std::vector<PartSent> parts_sent(const Program& program);

/// The program of one send to, or one receive from, one peer.
Program make_send_program();
Program make_receive_program();

}  // namespace ropewalk::executor
