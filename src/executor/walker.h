// The step walker: the loop by which host threads run every schedule. A block has a loop of its own
// (block/staged_walk.h), since its threads share out the parts of a step, and those of several
// steps. What a step is, for both, is in step.h.
//
// A *Team* is a host thread's environment, or a test's substitute. It offers the primitives:
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
//   void transfer(Strand&, const Call&, const Transfer&)
//                                     copy or combine the sources into the destinations
//
// and perhaps
//
//   bool may_share(const Strand&, const SendEnd& owner, const SendEnd&, std::size_t bytes)
//                                     what the step sends over both links may lie in one slot
//   void share(SendEnd&, const Call&, std::size_t bytes, SendEnd& owner)
//                                     prepares the next chunk: it is the one of `owner`
//   void expect(Strand&, const Call&, const StepRecord&, Slice)
//                                     this step comes next, and is not ready
//   void foresee(Strand&, const Call&, const StepRecord&, Slice)
//                                     this step comes after the one that is run now, which only
//                                     copies in this rank's memory, and takes long
//
// A wait never blocks: it tells whether its condition holds. Where one does not, walk() returns,
// and is called again later to continue from the same step. So one thread can drive many strands.
//
// A *Strand* (host: below; CUDA: block/strand.h) is a program at work: it gives the program's
// records, the ends of its links, room for the operands of a step, and remembers how far it is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/host_device.h"
#include "executor/call.h"
#include "executor/link_end.h"
#include "executor/program.h"
#include "executor/step.h"

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
  std::uint32_t last_lag = 0;  ///< the largest of the program's (schedule/lags.h)
  /// Smallest chunk that a step puts into one slot for all its readers (host/slot_readers.h).
  std::size_t common_slot_bytes = 0;
  // Progress. A turn is a round for each step, less its lag.
  std::size_t turn = 0;
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

/// True when all links of the step are ready.
template <typename Team, typename Strand>
bool step_ready(Team& team, Strand& strand, const StepRecord& step, std::size_t bytes) {
  for (std::uint32_t k = 0; k < step.num_operands; ++k) {
    const std::int32_t operand = strand.operand(step.first_operand + k);
    if (operand >= 0 && !team.wait_arrival(strand.receive_end(operand), bytes)) return false;
  }
  for (std::uint32_t k = 0; k < step.num_sends; ++k) {
    const SendRecord& send = strand.send_record(step.first_send + k);
    if (!team.wait_room(strand.send_end(send.end), bytes)) return false;
  }
  return true;
}

/// Runs one step on one slice. @pre step_ready()
template <typename Team, typename Strand>
void run_step(Team& team, Strand& strand, const Call& call, const StepRecord& step, Slice slice) {
  const StepAtWork work = at_work(strand, call, step, slice);
  for (std::uint32_t k = 0; k < step.num_operands; ++k) {
    const std::int32_t operand = strand.operand(step.first_operand + k);
    strand.sources[k] = operand >= 0 ? team.arrived(strand.receive_end(operand), call, work.bytes)
                                     : own_source(work, operand);
  }
  strand.destinations[0] = Destination{step.write_output ? work.output : nullptr};
  [[maybe_unused]] SendEnd* owner = nullptr;  // of the slot with the step's data
  for (std::uint32_t k = 0; k < step.num_sends; ++k) {
    const SendRecord& send = strand.send_record(step.first_send + k);
    auto& link = strand.send_end(send.end);
    const bool gives = goes_by_address(work, call, send, link);
    if constexpr (requires { team.share(link, call, work.bytes, *owner); }) {
      if (!gives && owner != nullptr && team.may_share(strand, *owner, link, work.bytes)) {
        team.share(link, call, work.bytes, *owner);
        strand.destinations[k + 1] = Destination{};
        continue;
      }
      if (!gives && owner == nullptr) owner = &link;
    }
    strand.destinations[k + 1] =
        team.describe(link, call, work.bytes, gives ? work.given : nullptr);
    if (gives && work.is_there) team.publish(link);
  }
  team.transfer(strand, call, work.transfer);
  for (std::uint32_t k = 0; k < step.num_sends; ++k) {
    const SendRecord& send = strand.send_record(step.first_send + k);
    auto& link = strand.send_end(send.end);
    if (!(work.is_there && goes_by_address(work, call, send, link))) team.publish(link);
  }
  for (std::uint32_t k = 0; k < step.num_operands; ++k) {
    const std::int32_t operand = strand.operand(step.first_operand + k);
    if (operand >= 0) team.release(strand.receive_end(operand), strand.sources[k]);
  }
}

/// Whether a step only copies, in this rank's own memory.
template <typename Strand>
bool is_own_copy(const Strand& strand, const StepRecord& step) {
  return step.num_sends == 0 && step.num_operands == 1 && strand.operand(step.first_operand) < 0;
}

/// Gives the team the step after the strand's current one in this turn, if there is one.
template <typename Team, typename Strand>
void foresee_next(Team& team, Strand& strand, const Call& call) {
  for (std::size_t s = strand.step + 1; s < strand.num_steps(); ++s) {
    const StepRecord& next = strand.step_record(s);
    if (next.lag > strand.turn) continue;
    const Slice slice = slice_of(strand, next.part, strand.turn - next.lag);
    if (slice.count == 0) continue;
    team.foresee(strand, call, next, slice);
    return;
  }
}

/// Goes on with a strand as far as it can.
/// @return true when it is done: the output is complete and no peer needs this rank's buffers any
/// more
template <typename Team, typename Strand>
bool walk(Team& team, Strand& strand, const Call& call) {
  const std::size_t num_steps = strand.num_steps();
  const std::size_t turns = strand.rounds + strand.last_lag;
  for (; turns > strand.turn; ++strand.turn) {
    for (; num_steps > strand.step; ++strand.step) {
      const StepRecord& step = strand.step_record(strand.step);
      if (step.lag > strand.turn) continue;
      // All ranks cut a block identically, so sender and receiver skip the same empty chunks.
      const Slice slice = slice_of(strand, step.part, strand.turn - step.lag);
      if (slice.count == 0) continue;
      if (!step_ready(team, strand, step, slice.count * call.element_bytes)) {
        if constexpr (requires { team.expect(strand, call, step, slice); }) {
          team.expect(strand, call, step, slice);
        }
        return false;
      }
      if constexpr (requires { team.foresee(strand, call, step, slice); }) {
        const bool is_long = slice.count * call.element_bytes >= call.share_bytes;
        if (is_long && is_own_copy(strand, step)) foresee_next(team, strand, call);
      }
      run_step(team, strand, call, step, slice);
    }
    strand.step = 0;
  }
  for (std::uint32_t k = 0; k < strand.num_sends(); ++k) {
    auto& link = strand.send_end(k);
    if (link.drain_to == 0) continue;
    if (!team.wait_consumed(link, link.drain_to)) return false;
    link.drain_to = 0;
  }
  return true;
}

}  // namespace ropewalk::executor
