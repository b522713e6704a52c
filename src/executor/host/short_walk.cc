#include "executor/host/short_walk.h"

#include <array>
#include <cstring>
#include <span>
#include <utility>

#include "executor/host/kernels.h"

namespace ropewalk::executor {
namespace {

// Whether no value of the sum is rounded, scaled or divided other than by the processor's addition.
bool is_plain_sum(const Call& call) {
  return call.op == RedOp::kSum && call.type == DataType::kFloat32;
}

template <typename Vector>
std::size_t add(std::span<const void* const> sources, std::span<void* const> destinations,
                std::size_t begin, std::size_t end) {
  std::size_t at = begin;
  for (; at + sizeof(Vector) <= end; at += sizeof(Vector)) {
    Vector sum;
    std::memcpy(&sum, static_cast<const std::byte*>(sources[0]) + at, sizeof sum);
    for (const void* source : sources.subspan(1)) {
      Vector more;
      std::memcpy(&more, static_cast<const std::byte*>(source) + at, sizeof more);
      sum += more;
    }
    for (void* destination : destinations) {
      std::memcpy(static_cast<std::byte*>(destination) + at, &sum, sizeof sum);
    }
  }
  return at;
}

// The best kernel takes longer to be found than these few elements to be added. The same bits:
// kernels add in the order of the sources, too. But kernels need fewer stores for longer data, and
// those to lines that no cache holds wait in the store buffer, with all later ones behind them.
void add_floats(std::span<const void* const> sources, std::span<void* const> destinations,
                std::size_t bytes) {
  using Four = float __attribute__((vector_size(16)));
  using Two = float __attribute__((vector_size(8)));
  std::size_t at = add<Four>(sources, destinations, 0, bytes);
  at = add<Two>(sources, destinations, at, bytes);
  add<float>(sources, destinations, at, bytes);
}

}  // namespace

void ShortWalk::prepare(const Strand& strand, const Call& call) {
  steps_.clear();
  operands_.clear();
  sends_.clear();
  at_ = 0;
  if (strand.rounds != 1 || strand.last_lag != 0 || call.scaled) return;
  const auto offset = [&](std::int32_t index, Slice slice) {
    return index < 0 ? 0 : slice_offset(call, index, slice);
  };
  std::vector<Step> steps;
  for (std::size_t s = 0; s < strand.num_steps(); ++s) {
    const StepRecord& record = strand.step_record(s);
    Step step;
    step.slice = slice_of(strand, record.part, 0);
    if (step.slice.count == 0) continue;
    step.number = s;
    step.bytes = step.slice.count * call.element_bytes;
    if (step.bytes > kMostBytes || step.bytes >= call.address_bytes) return;
    if (record.num_operands == 0 || record.num_operands > kMostOperands) return;
    if (record.num_sends > kMostSends) return;
    step.first_operand = static_cast<std::uint32_t>(operands_.size());
    step.num_operands = record.num_operands;
    for (std::uint32_t k = 0; k < record.num_operands; ++k) {
      const std::int32_t from = strand.operand(record.first_operand + k);
      Operand operand;
      if (from >= 0) {
        operand.link = strand.receives[static_cast<std::size_t>(from)];
        if (operand.link == nullptr) return;
      } else {
        operand.in_output = from == kOwnOutput;
        operand.offset =
            offset(operand.in_output ? record.output_index : record.input_index, step.slice);
      }
      operands_.push_back(operand);
    }
    step.first_send = static_cast<std::uint32_t>(sends_.size());
    step.num_sends = record.num_sends;
    for (std::uint32_t k = 0; k < record.num_sends; ++k) {
      SendEnd* const end = strand.sends[strand.send_record(record.first_send + k).end];
      // Over network links a call ends when all is consumed.
      if (end == nullptr || end->drain_all) return;
      sends_.push_back(end);
    }
    step.shares_slot = step.num_sends > 1 && HostTeam::may_share(strand, *sends_[step.first_send],
                                                                 *sends_.back(), step.bytes);
    step.writes_output = record.write_output;
    step.output_offset = offset(record.output_index, step.slice);
    step.divisor = record.finished ? call.divisor : 1;
    steps.push_back(step);
  }
  steps_ = std::move(steps);
}

std::byte* ShortWalk::describe_shared(HostTeam& team, const Call& call, const Step& step) const {
  const std::span sends(sends_.data() + step.first_send, step.num_sends);
  std::byte* const slot = team.describe(*sends[0], call, step.bytes, nullptr).data;
  for (SendEnd* send : sends.subspan(1)) team.share(*send, call, step.bytes, *sends[0]);
  return slot;
}

void ShortWalk::send_shared(HostTeam& team, const Call& call, const Step& step,
                            const std::byte* source) const {
  copy(describe_shared(team, call, step), source, step.bytes, kInlineBytes);
  for (SendEnd* send : std::span(sends_.data() + step.first_send, step.num_sends)) {
    team.publish(*send);
  }
}

void ShortWalk::run_combining(HostTeam& team, Strand& strand, const Call& call,
                              const Step& step) const {
  const std::span operands(operands_.data() + step.first_operand, step.num_operands);
  const std::span sends(sends_.data() + step.first_send, step.num_sends);
  std::array<const void*, kMostOperands> sources;
  for (std::size_t k = 0; k < operands.size(); ++k) {
    const Operand& operand = operands[k];
    if (operand.link == nullptr) {
      sources[k] = (operand.in_output ? call.output : call.input) + operand.offset;
      continue;
    }
    sources[k] = team.arrived(*operand.link, call, step.bytes).data;
    if (is_given(*operand.link)) {
      run_step(team, strand, call, strand.step_record(step.number), step.slice);
      return;
    }
  }
  std::array<void*, kMostSends + 1> destinations;
  std::size_t num_destinations = 0;
  if (step.writes_output) destinations[num_destinations++] = call.output + step.output_offset;
  if (step.shares_slot) {
    destinations[num_destinations++] = describe_shared(team, call, step);
  } else {
    for (SendEnd* send : sends) {
      destinations[num_destinations++] = team.describe(*send, call, step.bytes, nullptr).data;
    }
  }
  const std::span from(sources.data(), operands.size());
  const std::span to(destinations.data(), num_destinations);
  if (step.divisor <= 1 && step.bytes <= kOneStore && is_plain_sum(call)) {
    add_floats(from, to, step.bytes);
  } else if (!to.empty()) {
    CombineArgs args;
    args.type = call.type;
    args.op = call.op;
    args.sources = from;
    args.destinations = to;
    args.count = step.slice.count;
    args.divisor = step.divisor;
    combine(args);
  }
  for (SendEnd* send : sends) team.publish(*send);
  for (const Operand& operand : operands) {
    if (operand.link != nullptr) team.release(*operand.link, {});
  }
}

}  // namespace ropewalk::executor
