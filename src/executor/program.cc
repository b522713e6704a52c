#include "executor/program.h"

#include <algorithm>

#include "core/error.h"
#include "schedule/layout.h"

namespace ropewalk::executor {
namespace {

// Index of `peer` in `peers`, appended when it is new.
std::uint32_t index_of(std::vector<int>& peers, int peer) {
  const auto found = std::find(peers.begin(), peers.end(), peer);
  if (found != peers.end()) return static_cast<std::uint32_t>(found - peers.begin());
  peers.push_back(peer);
  return static_cast<std::uint32_t>(peers.size() - 1);
}

}  // namespace

Program make_program(const schedule::Schedule& schedule, const schedule::CheckReport& report,
                     int rank, int channel) {
  RW_ASSERT(report.accepted);
  Program program;
  program.channel = channel;
  program.parts = schedule.parts;
  const auto r = static_cast<std::size_t>(rank);
  const auto c = static_cast<std::size_t>(channel);
  const schedule::StepList& steps = schedule.programs[r][c];
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const schedule::Step& step = steps[s];
    StepRecord record;
    const int unit = step.block / schedule.parts;
    record.part = step.block % schedule.parts;
    record.input_index =
        schedule::input_index(schedule.collective, schedule.num_ranks, schedule.root, unit, rank)
            .value_or(kNowhere);
    record.output_index =
        schedule::output_index(schedule.collective, schedule.num_ranks, schedule.root, unit, rank)
            .value_or(kNowhere);
    record.write_output = step.write_output;
    record.finished = step.finished;
    record.first_operand = static_cast<std::uint32_t>(program.operands.size());
    record.num_operands = static_cast<std::uint32_t>(step.operands.size());
    for (const schedule::Operand& operand : step.operands) {
      switch (operand.kind) {
        case schedule::Operand::Kind::kInput: program.operands.push_back(kOwnInput); break;
        case schedule::Operand::Kind::kOutput: program.operands.push_back(kOwnOutput); break;
        case schedule::Operand::Kind::kLink:
          program.operands.push_back(
              static_cast<std::int32_t>(index_of(program.receive_peers, operand.peer)));
          break;
      }
    }
    record.first_send = static_cast<std::uint32_t>(program.sends.size());
    record.num_sends = static_cast<std::uint32_t>(step.send.size());
    for (std::size_t k = 0; k < step.send.size(); ++k) {
      const schedule::DirectSend& direct = report.direct[r][c][s][k];
      program.sends.push_back(
          {index_of(program.send_peers, step.send[k]), direct.out_of_place, direct.in_place});
    }
    program.max_operands = std::max(program.max_operands, record.num_operands);
    program.max_sends = std::max(program.max_sends, record.num_sends);
    program.steps.push_back(record);
  }
  return program;
}

void set_lags(Program& program, const std::vector<std::uint32_t>& lags) {
  RW_ASSERT(lags.size() == program.steps.size());
  for (std::size_t s = 0; s < lags.size(); ++s) program.steps[s].lag = lags[s];
}

std::vector<PartSent> parts_sent(const Program& program) {
  std::vector<PartSent> sent;
  for (const StepRecord& step : program.steps) {
    for (std::uint32_t k = 0; k < step.num_sends; ++k) {
      const SendRecord& send = program.sends[step.first_send + k];
      sent.push_back({program.channel, step.part, program.send_peers[send.end]});
    }
  }
  return sent;
}

Program make_send_program() {
  Program program;
  StepRecord step;
  step.input_index = 0;
  step.num_operands = 1;
  step.num_sends = 1;
  program.steps = {step};
  program.operands = {kOwnInput};
  program.sends = {{0, true, true}};
  program.send_peers = {0};
  program.max_operands = 1;
  program.max_sends = 1;
  return program;
}

Program make_receive_program() {
  Program program;
  StepRecord step;
  step.output_index = 0;
  step.num_operands = 1;
  step.write_output = true;
  program.steps = {step};
  program.operands = {0};
  program.receive_peers = {0};
  program.max_operands = 1;
  return program;
}

}  // namespace ropewalk::executor
