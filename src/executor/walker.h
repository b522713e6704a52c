// The step walker: the one loop that runs every schedule, on host threads and on CUDA blocks.
//
// A *Team* is the group of threads that does the work of one strand: one host thread, or the
// threads of a CUDA block. It offers the primitives:
//
//   bool all(n, ready)                ready(k) for k < n, each by one thread of the team; true when
//                                     all of them are. All of the team see what was waited for. (A
//                                     team whose data carries its flags waits later, in describe()
//                                     and transfer().)
//   void each(n, body)                body(k) for k < n, each by one thread of the team, always the
//                                     same one for one k
//   void sync()                       all of the team see what each other's bodies did
//   void end_step()                   the same, for what publish() and release() did
//
// called by all of the team, and within their bodies, by one thread for one link:
//
//   bool wait_arrival(ReceiveEnd&, std::size_t bytes)
//                                     the next chunk of the link, of that size, is there (acquire)
//   bool wait_room(SendEnd&, std::size_t bytes)
//                                     there is room for the next chunk, of that size (acquire)
//   bool wait_consumed(SendEnd&, n)   the reader is done with chunk n (acquire)
//   Source arrived(ReceiveEnd&, const Call&, std::size_t bytes)
//                                     where the chunk's data is; compares the two ends' calls
//   Destination describe(SendEnd&, const Call&, std::size_t bytes, const std::byte* given)
//                                     prepares the next chunk; where its data goes, nowhere when it
//                                     is `given` by address
//   void publish(SendEnd&)            make the filled slot visible (release), count it
//   void release(ReceiveEnd&, const Source&)
//                                     hand the read slot back to the writer (release), count it
//
// and by all of the team again:
//
//   void transfer(Strand&, const Call&, const Transfer&)
//                                     copy or combine the sources into the destinations
//
// A wait returns true when its condition holds. On a GPU it spins until then, or until the abort
// flag; a host team may return false at once: walk() then returns, and is called again later to go
// on from the same place. So one host thread can drive many strands, and a strand never blocks.
//
// A *Strand* (host: below; CUDA: block/strand.h) is a program at work: it gives the program's
// records, the ends of its links, room for the operands of a step, and remembers how far it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/host_device.h"
#include "executor/call.h"
#include "executor/fifo.h"
#include "executor/program.h"

namespace ropewalk::executor {

/// A program at work on the host: its links, its share of the data, and how far it is.
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
  // Scratch of the step at work.
  std::vector<Source> sources;
  std::vector<Destination> destinations;

  [[nodiscard]] std::size_t num_steps() const noexcept { return program->steps.size(); }
  [[nodiscard]] const StepRecord& step_record(std::size_t s) const noexcept {
    return program->steps[s];
  }
  [[nodiscard]] std::int32_t operand(std::uint32_t k) const noexcept {
    return program->operands[k];
  }
  [[nodiscard]] const SendRecord& send_record(std::uint32_t k) const noexcept {
    return program->sends[k];
  }
  [[nodiscard]] std::uint32_t num_sends() const noexcept {
    return static_cast<std::uint32_t>(sends.size());
  }
  [[nodiscard]] SendEnd& send_end(std::uint32_t end) const noexcept { return *sends[end]; }
  [[nodiscard]] ReceiveEnd& receive_end(std::int32_t end) const noexcept {
    return *receives[static_cast<std::size_t>(end)];
  }
};

struct Slice {
  std::size_t begin = 0;  ///< elements from the unit's start
  std::size_t count = 0;
};

/// The elements of `part` that round `round` moves; empty for parts that have no more.
template <typename Strand>
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
template <typename Team, typename Strand>
RW_HOST_DEVICE bool step_ready(Team& team, Strand& strand, const StepRecord& step,
                               std::size_t bytes) {
  return team.all(step.num_operands + step.num_sends, [&](std::uint32_t k) {
    if (k >= step.num_operands) {
      const SendRecord& send = strand.send_record(step.first_send + k - step.num_operands);
      return team.wait_room(strand.send_end(send.end), bytes);
    }
    const std::int32_t operand = strand.operand(step.first_operand + k);
    return operand < 0 || team.wait_arrival(strand.receive_end(operand), bytes);
  });
}

/// Runs one step on one slice. @pre step_ready()
template <typename Team, typename Strand>
RW_HOST_DEVICE void run_step(Team& team, Strand& strand, const Call& call, const StepRecord& step,
                             Slice slice) {
  const std::size_t bytes = slice.count * call.element_bytes;
  const auto place = [&](std::int32_t index) {
    return (static_cast<std::size_t>(index) * call.count + slice.begin) * call.element_bytes;
  };
  // What may go by address: this rank's input or output as it is, and what is written to the output
  // (schedule/check.h, DirectSend). The former is there already: its readers can start before this
  // rank has made its own copy.
  const std::int32_t only =
      step.num_operands == 1 ? strand.operand(step.first_operand) : std::int32_t{0};
  const std::byte* input = call.input + (step.input_index < 0 ? 0 : place(step.input_index));
  std::byte* output = call.output + (step.output_index < 0 ? 0 : place(step.output_index));
  const bool is_there = (only == kOwnInput && !call.scaled) || only == kOwnOutput;
  const std::byte* given = step.write_output ? output : nullptr;
  if (is_there) given = only == kOwnInput ? input : output;
  const auto by_address = [&](const SendRecord& send, const auto& link) {
    return given != nullptr && bytes >= call.address_bytes && link.address_allowed &&
           (call.in_place ? send.address_in_place : send.address_out_of_place);
  };

  Transfer transfer;
  transfer.count = slice.count;
  transfer.num_sources = step.num_operands;
  transfer.num_destinations = step.num_sends + 1;
  if (step.finished) transfer.divisor = call.divisor;
  if (call.scaled) {
    for (std::uint32_t k = 0; k < step.num_operands; ++k) {
      if (strand.operand(step.first_operand + k) == kOwnInput) {
        transfer.scaled_source = static_cast<std::int32_t>(k);
      }
    }
  }
  team.each(step.num_operands, [&](std::uint32_t k) {
    const std::int32_t operand = strand.operand(step.first_operand + k);
    Source& source = strand.sources[k];
    if (operand >= 0) {
      source = team.arrived(strand.receive_end(operand), call, bytes);
    } else {
      source = Source{};
      source.data = operand == kOwnInput ? input : output;
    }
  });
  team.each(step.num_sends + 1, [&](std::uint32_t k) {
    if (k == 0) {
      strand.destinations[0] = Destination{step.write_output ? output : nullptr};
      return;
    }
    const SendRecord& send = strand.send_record(step.first_send + k - 1);
    auto& link = strand.send_end(send.end);
    const bool gives = by_address(send, link);
    strand.destinations[k] = team.describe(link, call, bytes, gives ? given : nullptr);
    if (gives && is_there) team.publish(link);
  });
  team.sync();
  team.transfer(strand, call, transfer);
  team.sync();
  team.each(step.num_sends, [&](std::uint32_t k) {
    const SendRecord& send = strand.send_record(step.first_send + k);
    auto& link = strand.send_end(send.end);
    if (!(is_there && by_address(send, link))) team.publish(link);
  });
  team.each(step.num_operands, [&](std::uint32_t k) {
    const std::int32_t operand = strand.operand(step.first_operand + k);
    if (operand >= 0) team.release(strand.receive_end(operand), strand.sources[k]);
  });
  team.end_step();
}

/// Goes on with a strand as far as it can. @return true when it is done: the output is complete and
/// no peer needs this rank's buffers any more
template <typename Team, typename Strand>
RW_HOST_DEVICE bool walk(Team& team, Strand& strand, const Call& call) {
  const std::size_t num_steps = strand.num_steps();
  for (; strand.rounds > strand.round; ++strand.round) {
    for (; num_steps > strand.step; ++strand.step) {
      const StepRecord& step = strand.step_record(strand.step);
      // All ranks cut a block alike, so sender and receiver skip the same empty chunks.
      const Slice slice = slice_of(strand, step.part, strand.round);
      if (slice.count == 0) continue;
      if (!step_ready(team, strand, step, slice.count * call.element_bytes)) return false;
      run_step(team, strand, call, step, slice);
    }
    strand.step = 0;
  }
  return team.all(strand.num_sends(), [&](std::uint32_t k) {
    auto& link = strand.send_end(k);
    if (link.drain_to == 0) return true;
    if (!team.wait_consumed(link, link.drain_to)) return false;
    link.drain_to = 0;
    return true;
  });
}

}  // namespace ropewalk::executor
