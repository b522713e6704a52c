// The step walker: the one loop that runs every schedule, on host threads and on CUDA blocks.
//
// A *Team* is the group of threads that does the work of one strand: one host thread, or the
// threads of a CUDA block. It offers the primitives; all of the team calls each of them:
//
//   bool wait_arrival(ReceiveEnd&, std::size_t bytes)
//                                     the next chunk of the link, of that size, is there (acquire)
//   bool wait_room(SendEnd&, bool staged)
//                                     the next header, and slot if staged, is free (acquire)
//   bool wait_consumed(SendEnd&, n)   the reader is done with chunk n (acquire)
//   void transfer(Strand&, const Call&, const Transfer&)
//                                     copy or combine the sources into the destinations
//   void publish(SendEnd&)              make the filled slot visible (release), count it
//   void release(ReceiveEnd&)         hand the read slot back to the writer (release), count it
//   void mismatch(...)                the two ends were called differently; does not return
//   void wrong_size(...)              a chunk has another size than expected, or than a slot
//                                     holds; does not return
//
// A wait returns true when its condition holds. On a GPU it spins until then, or until the abort
// flag; a host team may return false at once: walk() then returns, and is called again later to go
// on from the same place. So one host thread can drive many strands, and a strand never blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/types.h"
#include "executor/fifo.h"
#include "executor/program.h"

#ifdef __CUDACC__
#define RW_HOST_DEVICE __host__ __device__
#else
#define RW_HOST_DEVICE
#endif

namespace ropewalk::executor {

/// What one call asks for; the same for all its strands.
struct Call {
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  std::size_t count = 0;  ///< elements of a unit (schedule/layout.h)
  DataType type = DataType::kFloat32;
  std::size_t element_bytes = 4;
  RedOp op = RedOp::kSum;
  bool scaled = false;        ///< multiply this rank's input by `scalar`
  std::uint64_t scalar = 0;   ///< one element, in the low bytes
  std::uint32_t divisor = 1;  ///< applied to finished values
  bool in_place = false;
  bool check_tags = true;
  std::size_t address_bytes = ~std::size_t{0};  ///< smallest chunk that goes by address
  /// Smallest such chunk that its sender may help to copy.
  std::size_t share_bytes = ~std::size_t{0};
  CallTag tag;
};

/// One operand of a transfer: memory of this process, or of another one.
struct Source {
  const std::byte* data = nullptr;
  std::uint64_t remote = 0;
  int process = 0;                   ///< 0: `data` counts; else `remote` in the process of this pid
  const ReceiveEnd* link = nullptr;  ///< where the chunk came from, if it did
};

struct Transfer {
  std::uint32_t num_sources = 0;
  std::uint32_t num_destinations = 0;
  std::int32_t scaled_source = -1;
  std::uint32_t divisor = 1;
  std::size_t count = 0;  ///< elements
};

/// A program at work: its links, its share of the data, and how far it is.
struct Strand {
  const Program* program = nullptr;
  std::vector<SendEnd*> sends;        ///< in the order of Program::send_peers
  std::vector<ReceiveEnd*> receives;  ///< in the order of Program::receive_peers
  std::size_t begin = 0;              ///< first element of this channel's range in each unit
  std::size_t length = 0;             ///< its elements
  std::size_t part_length = 0;        ///< elements of a part (the last ones may have fewer)
  std::size_t chunk_length = 0;       ///< elements of a part that one round moves
  std::size_t rounds = 0;
  // Progress.
  std::size_t round = 0;
  std::size_t step = 0;
  std::size_t drained = 0;
  // Scratch of the step at work.
  std::vector<Source> sources;
  std::vector<std::byte*> destinations;
};

struct Slice {
  std::size_t begin = 0;  ///< elements from the unit's start
  std::size_t count = 0;
};

/// The elements of `part` that round `round` moves; empty for parts that have no more.
RW_HOST_DEVICE inline Slice slice_of(const Strand& strand, std::int32_t part, std::size_t round) {
  const std::size_t part_begin = strand.part_length * static_cast<std::size_t>(part);
  if (part_begin >= strand.length) return {0, 0};
  const std::size_t left = strand.length - part_begin;
  const std::size_t part_count = left < strand.part_length ? left : strand.part_length;
  const std::size_t offset = strand.chunk_length * round;
  if (offset >= part_count) return {0, 0};
  const std::size_t rest = part_count - offset;
  return {strand.begin + part_begin + offset,
          rest < strand.chunk_length ? rest : strand.chunk_length};
}

/// True when all links of the step are ready.
template <typename Team>
RW_HOST_DEVICE bool step_ready(Team& team, Strand& strand, const StepRecord& step,
                               std::size_t bytes) {
  const Program& program = *strand.program;
  for (std::uint32_t k = 0; k < step.num_operands; ++k) {
    const std::int32_t operand = program.operands[step.first_operand + k];
    if (operand < 0) continue;
    if (!team.wait_arrival(*strand.receives[static_cast<std::size_t>(operand)], bytes))
      return false;
  }
  for (std::uint32_t k = 0; k < step.num_sends; ++k) {
    SendEnd& link = *strand.sends[program.sends[step.first_send + k].end];
    if (!team.wait_room(link, bytes > kInlineBytes)) return false;
  }
  return true;
}

/// Runs one step on one slice. @pre step_ready()
template <typename Team>
RW_HOST_DEVICE void run_step(Team& team, Strand& strand, const Call& call, const StepRecord& step,
                             Slice slice) {
  const Program& program = *strand.program;
  const std::size_t bytes = slice.count * call.element_bytes;
  const auto place = [&](std::int32_t index) {
    return (static_cast<std::size_t>(index) * call.count + slice.begin) * call.element_bytes;
  };

  Transfer transfer;
  transfer.count = slice.count;
  transfer.num_sources = step.num_operands;
  if (step.finished) transfer.divisor = call.divisor;
  for (std::uint32_t k = 0; k < step.num_operands; ++k) {
    const std::int32_t operand = program.operands[step.first_operand + k];
    Source& source = strand.sources[k];
    source = Source{};
    if (operand == kOwnInput) {
      source.data = call.input + place(step.input_index);
      if (call.scaled) transfer.scaled_source = static_cast<std::int32_t>(k);
    } else if (operand == kOwnOutput) {
      source.data = call.output + place(step.output_index);
    } else {
      ReceiveEnd& link = *strand.receives[static_cast<std::size_t>(operand)];
      source.link = &link;
      const std::uint64_t chunk = link.received + 1;
      SlotHeader* slot = link.header(chunk);
      if (call.check_tags && !(slot->tag == call.tag)) team.mismatch(link.peer, slot->tag, call);
      if (slot->bytes != bytes) team.wrong_size(link.peer, slot->bytes, bytes);
      switch (slot->kind) {
        case SlotKind::kInline: source.data = slot->inline_data; break;
        case SlotKind::kStaged: source.data = link.data(chunk); break;
        case SlotKind::kAddress:
          if (link.process == 0) {
            source.data = reinterpret_cast<const std::byte*>(slot->address);
          } else {
            source.remote = slot->address;
            source.process = link.process;
          }
          break;
      }
    }
  }

  // What may go by address: this rank's input or output as it is, and what is written to the output
  // (schedule/check.h, DirectSend). The former is there already: its readers can start before this
  // rank has made its own copy.
  const std::int32_t only =
      step.num_operands == 1 ? program.operands[step.first_operand] : std::int32_t{0};
  const bool is_there = (only == kOwnInput && !call.scaled) || only == kOwnOutput;
  const std::byte* given = is_there ? strand.sources[0].data : nullptr;
  if (step.write_output) {
    std::byte* output = call.output + place(step.output_index);
    strand.destinations[transfer.num_destinations++] = output;
    if (!is_there) given = output;
  }
  const auto by_address = [&](const SendRecord& send, const SendEnd& link) {
    return given != nullptr && bytes >= call.address_bytes && link.address_allowed &&
           (call.in_place ? send.address_in_place : send.address_out_of_place);
  };
  for (std::uint32_t k = 0; k < step.num_sends; ++k) {
    const SendRecord& send = program.sends[step.first_send + k];
    SendEnd& link = *strand.sends[send.end];
    const std::uint64_t chunk = link.published + 1;
    SlotHeader* slot = link.header(chunk);
    slot->tag = call.tag;
    slot->bytes = static_cast<std::uint32_t>(bytes);
    if (link.drain_all) link.drain_to = chunk;
    if (by_address(send, link)) {
      slot->kind = SlotKind::kAddress;
      slot->address = reinterpret_cast<std::uint64_t>(given);
      link.drain_to = chunk;
      if (is_there) team.publish(link);
    } else if (bytes <= kInlineBytes) {
      slot->kind = SlotKind::kInline;
      strand.destinations[transfer.num_destinations++] = slot->inline_data;
    } else {
      // Chunks that are larger than a slot are cut only where all go by address.
      if (bytes > link.shape.slot_bytes) team.wrong_size(link.peer, bytes, link.shape.slot_bytes);
      slot->kind = SlotKind::kStaged;
      strand.destinations[transfer.num_destinations++] = link.data(chunk);
    }
  }

  if (transfer.num_destinations > 0) team.transfer(strand, call, transfer);
  for (std::uint32_t k = 0; k < step.num_sends; ++k) {
    const SendRecord& send = program.sends[step.first_send + k];
    SendEnd& link = *strand.sends[send.end];
    if (!(is_there && by_address(send, link))) team.publish(link);
  }
  for (std::uint32_t k = 0; k < step.num_operands; ++k) {
    const std::int32_t operand = program.operands[step.first_operand + k];
    if (operand >= 0) team.release(*strand.receives[static_cast<std::size_t>(operand)]);
  }
}

/// Goes on with a strand as far as it can. @return true when it is done: the output is complete and
/// no peer needs this rank's buffers any more
template <typename Team>
RW_HOST_DEVICE bool walk(Team& team, Strand& strand, const Call& call) {
  const std::size_t num_steps = strand.program->steps.size();
  for (; strand.round < strand.rounds; ++strand.round) {
    for (; strand.step < num_steps; ++strand.step) {
      const StepRecord& step = strand.program->steps[strand.step];
      // All ranks cut a block alike, so sender and receiver skip the same empty chunks.
      const Slice slice = slice_of(strand, step.part, strand.round);
      if (slice.count == 0) continue;
      if (!step_ready(team, strand, step, slice.count * call.element_bytes)) return false;
      run_step(team, strand, call, step, slice);
    }
    strand.step = 0;
  }
  for (; strand.drained < strand.sends.size(); ++strand.drained) {
    SendEnd& link = *strand.sends[strand.drained];
    if (link.drain_to != 0 && !team.wait_consumed(link, link.drain_to)) return false;
    link.drain_to = 0;
  }
  return true;
}

}  // namespace ropewalk::executor
