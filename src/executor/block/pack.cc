#include "executor/block/pack.h"

#include <algorithm>
#include <cstring>
#include <map>

namespace ropewalk::executor {
namespace {

// Pieces of memory one behind the other.
class Piece {
 public:
  template <typename T>
  void put(const T* from, std::size_t n) {
    const auto* begin = reinterpret_cast<const std::byte*>(from);
    bytes_.insert(bytes_.end(), begin, begin + n * sizeof(T));
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

void join(const std::vector<Piece>& pieces, PackedPrograms& packed) {
  std::size_t most = 0;
  for (const Piece& piece : pieces) most = std::max(most, piece.bytes().size());
  packed.stride = static_cast<std::uint32_t>((most + 15) / 16 * 16);
  packed.bytes.resize(pieces.size() * packed.stride);
  for (std::size_t c = 0; c < pieces.size(); ++c) {
    std::copy(pieces[c].bytes().begin(), pieces[c].bytes().end(),
              packed.bytes.begin() + static_cast<std::ptrdiff_t>(c * packed.stride));
  }
}

void put_ends(const Program& program, BlockEnds& ends, Piece& piece) {
  for (const int peer : program.send_peers) {
    const SendEnd end = ends.send_end(program.channel, peer);
    piece.put(&end, 1);
  }
  for (const int peer : program.receive_peers) {
    const ReceiveEnd end = ends.receive_end(program.channel, peer);
    piece.put(&end, 1);
  }
}

PackedEnds count_ends(const Program& program, ProgramRoom& room) {
  PackedEnds ends;
  ends.num_send_ends = static_cast<std::uint32_t>(program.send_peers.size());
  ends.num_receive_ends = static_cast<std::uint32_t>(program.receive_peers.size());
  room.max_ends = std::max({room.max_ends, ends.num_send_ends, ends.num_receive_ends});
  return ends;
}

// Numbers the chunks of each link in the order in which a round has them.
class ChunkCounter {
 public:
  std::uint16_t next(std::int32_t end) { return used_[end]++; }
  [[nodiscard]] std::uint32_t most() const {
    std::uint32_t chunks = 0;
    for (const auto& [end, n] : used_) chunks = std::max<std::uint32_t>(chunks, n);
    return chunks;
  }

 private:
  std::map<std::int32_t, std::uint16_t> used_;
};

Piece flagged(const Program& program, BlockEnds& ends, PackedPrograms& packed) {
  std::vector<FlaggedStepRecord> steps;
  std::vector<FlaggedLocationRecord> locations;
  ChunkCounter received;
  ChunkCounter sent;
  for (const StepRecord& step : program.steps) {
    FlaggedStepRecord record;
    record.part = step.part;
    record.input_index = step.input_index;
    record.output_index = step.output_index;
    record.finished = step.finished;
    record.first_location = static_cast<std::uint16_t>(locations.size());
    record.num_sources = static_cast<std::uint16_t>(step.num_operands);
    packed.room.max_sources = std::max(packed.room.max_sources, step.num_operands);
    record.num_destinations = static_cast<std::uint16_t>(step.num_sends + 1);
    const auto number = static_cast<std::uint16_t>(steps.size());
    for (std::uint32_t k = 0; k < step.num_operands; ++k) {
      const std::int32_t operand = program.operands[step.first_operand + k];
      FlaggedLocationRecord location;
      location.step = number;
      if (operand >= 0) {
        location.end = static_cast<std::int16_t>(operand);
        location.chunk = received.next(operand);
      } else {
        location.end =
            operand == kOwnInput ? FlaggedLocationRecord::kInput : FlaggedLocationRecord::kOutput;
        if (operand == kOwnInput) record.own_input = static_cast<std::int16_t>(k);
      }
      locations.push_back(location);
    }
    FlaggedLocationRecord output;
    output.step = number;
    output.end = step.write_output ? FlaggedLocationRecord::kOutput : FlaggedLocationRecord::kNone;
    locations.push_back(output);
    for (std::uint32_t k = 0; k < step.num_sends; ++k) {
      const auto end = static_cast<std::int32_t>(program.sends[step.first_send + k].end);
      FlaggedLocationRecord location;
      location.step = number;
      location.end = static_cast<std::int16_t>(end);
      location.chunk = sent.next(end);
      location.sends = true;
      locations.push_back(location);
    }
    steps.push_back(record);
  }
  // The last chunk of each link that it sends.
  std::map<std::int16_t, bool> seen;
  for (auto location = locations.rbegin(); location != locations.rend(); ++location) {
    if (location->sends) location->last = seen.emplace(location->end, true).second;
  }
  FlaggedProgram header;
  header.num_steps = static_cast<std::uint32_t>(steps.size());
  header.num_locations = static_cast<std::uint32_t>(locations.size());
  header.ends = count_ends(program, packed.room);
  packed.room.max_steps = std::max(packed.room.max_steps, header.num_steps);
  packed.room.max_locations = std::max(packed.room.max_locations, header.num_locations);
  packed.max_chunks = std::max({packed.max_chunks, sent.most(), received.most()});
  Piece piece;
  piece.put(&header, 1);
  put_ends(program, ends, piece);
  piece.put(steps.data(), steps.size());
  piece.put(locations.data(), locations.size());
  return piece;
}

}  // namespace

PackedPrograms pack(const std::vector<Program>& programs, BlockEnds& ends) {
  PackedPrograms packed;
  std::vector<Piece> pieces;
  for (const Program& program : programs) {
    packed.room.max_operands = std::max(packed.room.max_operands, program.max_operands);
    packed.room.max_sends = std::max(packed.room.max_sends, program.max_sends);
    PackedProgram header;
    header.ends = count_ends(program, packed.room);
    header.num_steps = static_cast<std::uint32_t>(program.steps.size());
    header.num_operands = static_cast<std::uint32_t>(program.operands.size());
    header.num_sends = static_cast<std::uint32_t>(program.sends.size());
    for (const StepRecord& step : program.steps) {
      header.last_lag = std::max(header.last_lag, step.lag);
    }
    Piece& piece = pieces.emplace_back();
    piece.put(&header, 1);
    put_ends(program, ends, piece);
    piece.put(program.steps.data(), program.steps.size());
    piece.put(program.operands.data(), program.operands.size());
    piece.put(program.sends.data(), program.sends.size());
  }
  join(pieces, packed);
  return packed;
}

PackedPrograms pack_flagged(const std::vector<Program>& programs, BlockEnds& ends) {
  PackedPrograms packed;
  std::vector<Piece> pieces;
  for (const Program& program : programs) pieces.push_back(flagged(program, ends, packed));
  join(pieces, packed);
  return packed;
}

}  // namespace ropewalk::executor
