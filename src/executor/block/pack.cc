#include "executor/block/pack.h"

#include <algorithm>
#include <cstring>

namespace ropewalk::executor {
namespace {

std::uint32_t packed_bytes(const Program& program) {
  const std::size_t bytes = sizeof(PackedProgram) + program.steps.size() * sizeof(StepRecord) +
                            program.operands.size() * sizeof(std::int32_t) +
                            program.sends.size() * sizeof(SendRecord);
  return static_cast<std::uint32_t>((bytes + 15) / 16 * 16);
}

}  // namespace

PackedPrograms pack(const std::vector<Program>& programs) {
  PackedPrograms packed;
  for (const Program& program : programs) {
    packed.stride = std::max(packed.stride, packed_bytes(program));
    packed.max_operands = std::max(packed.max_operands, program.max_operands);
    packed.max_sends = std::max(packed.max_sends, program.max_sends);
  }
  packed.bytes.resize(programs.size() * packed.stride);
  for (std::size_t c = 0; c < programs.size(); ++c) {
    const Program& program = programs[c];
    std::byte* to = packed.bytes.data() + c * packed.stride;
    PackedProgram header;
    header.num_steps = static_cast<std::uint32_t>(program.steps.size());
    header.num_operands = static_cast<std::uint32_t>(program.operands.size());
    header.num_sends = static_cast<std::uint32_t>(program.sends.size());
    const auto put = [&](const void* from, std::size_t bytes) {
      if (bytes > 0) std::memcpy(to, from, bytes);
      to += bytes;
    };
    put(&header, sizeof header);
    put(program.steps.data(), program.steps.size() * sizeof(StepRecord));
    // A block finds its links by the peer's rank.
    std::vector<std::int32_t> operands = program.operands;
    for (std::int32_t& operand : operands) {
      if (operand >= 0) operand = program.receive_peers[static_cast<std::size_t>(operand)];
    }
    put(operands.data(), operands.size() * sizeof(std::int32_t));
    std::vector<SendRecord> sends = program.sends;
    for (SendRecord& send : sends) {
      send.end = static_cast<std::uint32_t>(program.send_peers[send.end]);
    }
    put(sends.data(), sends.size() * sizeof(SendRecord));
  }
  return packed;
}

}  // namespace ropewalk::executor
