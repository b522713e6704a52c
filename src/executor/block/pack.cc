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

// The peer that an operand of a program receives from, or what it is instead.
std::int32_t peer_of(const Program& program, std::int32_t operand) {
  return operand < 0 ? operand : program.receive_peers[static_cast<std::size_t>(operand)];
}

// Numbers the chunks of each link in the order in which a round has them.
class ChunkCounter {
 public:
  std::uint16_t next(int peer) { return used_[peer]++; }
  [[nodiscard]] std::uint32_t mask() const {
    std::uint32_t bits = 0;
    for (const auto& [peer, chunks] : used_) bits |= 1U << static_cast<unsigned>(peer);
    return bits;
  }
  [[nodiscard]] std::uint32_t most() const {
    std::uint32_t chunks = 0;
    for (const auto& [peer, n] : used_) chunks = std::max<std::uint32_t>(chunks, n);
    return chunks;
  }

 private:
  std::map<int, std::uint16_t> used_;
};

Piece flagged(const Program& program, PackedPrograms& packed) {
  std::vector<FlaggedStepRecord> steps;
  std::vector<FlaggedPlaceRecord> places;
  ChunkCounter received;
  ChunkCounter sent;
  for (const StepRecord& step : program.steps) {
    FlaggedStepRecord record;
    record.part = step.part;
    record.input_index = step.input_index;
    record.output_index = step.output_index;
    record.finished = step.finished;
    record.first_place = static_cast<std::uint16_t>(places.size());
    record.num_sources = static_cast<std::uint16_t>(step.num_operands);
    record.num_destinations = static_cast<std::uint16_t>(step.num_sends + 1);
    const auto number = static_cast<std::uint16_t>(steps.size());
    for (std::uint32_t k = 0; k < step.num_operands; ++k) {
      const std::int32_t peer = peer_of(program, program.operands[step.first_operand + k]);
      FlaggedPlaceRecord place;
      place.step = number;
      if (peer >= 0) {
        place.peer = static_cast<std::int16_t>(peer);
        place.chunk = received.next(peer);
      } else {
        place.peer = peer == kOwnInput ? FlaggedPlaceRecord::kInput : FlaggedPlaceRecord::kOutput;
        if (peer == kOwnInput) record.own_input = static_cast<std::int16_t>(k);
      }
      places.push_back(place);
    }
    FlaggedPlaceRecord output;
    output.step = number;
    output.peer = step.write_output ? FlaggedPlaceRecord::kOutput : FlaggedPlaceRecord::kNone;
    places.push_back(output);
    for (std::uint32_t k = 0; k < step.num_sends; ++k) {
      const int peer = program.send_peers[program.sends[step.first_send + k].end];
      FlaggedPlaceRecord place;
      place.step = number;
      place.peer = static_cast<std::int16_t>(peer);
      place.chunk = sent.next(peer);
      place.sends = true;
      places.push_back(place);
    }
    steps.push_back(record);
  }
  FlaggedProgram header;
  header.num_steps = static_cast<std::uint32_t>(steps.size());
  header.num_places = static_cast<std::uint32_t>(places.size());
  header.sends_to = sent.mask();
  header.receives_from = received.mask();
  packed.room.max_steps = std::max(packed.room.max_steps, header.num_steps);
  packed.room.max_places = std::max(packed.room.max_places, header.num_places);
  packed.max_chunks = std::max({packed.max_chunks, sent.most(), received.most()});
  Piece piece;
  piece.put(&header, 1);
  piece.put(steps.data(), steps.size());
  piece.put(places.data(), places.size());
  return piece;
}

}  // namespace

PackedPrograms pack(const std::vector<Program>& programs) {
  PackedPrograms packed;
  std::vector<Piece> pieces;
  for (const Program& program : programs) {
    packed.room.max_operands = std::max(packed.room.max_operands, program.max_operands);
    packed.room.max_sends = std::max(packed.room.max_sends, program.max_sends);
    // A block finds its links by the peer's rank.
    std::vector<std::int32_t> operands = program.operands;
    for (std::int32_t& operand : operands) operand = peer_of(program, operand);
    std::vector<SendRecord> sends = program.sends;
    for (SendRecord& send : sends) {
      send.end = static_cast<std::uint32_t>(program.send_peers[send.end]);
    }
    PackedProgram header;
    header.num_steps = static_cast<std::uint32_t>(program.steps.size());
    header.num_operands = static_cast<std::uint32_t>(operands.size());
    header.num_sends = static_cast<std::uint32_t>(sends.size());
    for (const StepRecord& step : program.steps) {
      header.last_lag = std::max(header.last_lag, step.lag);
    }
    Piece& piece = pieces.emplace_back();
    piece.put(&header, 1);
    piece.put(program.steps.data(), program.steps.size());
    piece.put(operands.data(), operands.size());
    piece.put(sends.data(), sends.size());
  }
  join(pieces, packed);
  return packed;
}

PackedPrograms pack_flagged(const std::vector<Program>& programs) {
  PackedPrograms packed;
  std::vector<Piece> pieces;
  for (const Program& program : programs) pieces.push_back(flagged(program, packed));
  join(pieces, packed);
  return packed;
}

}  // namespace ropewalk::executor
