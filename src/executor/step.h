// A step of a rank's program, for host threads (walker.h) and CUDA blocks (block/) alike: its
// record, the slice of the data that it works on in a round, and what it moves.
//
// Includes only what compiles on a GPU without the host's library.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/call.h"

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

/// Where a slice of the unit `index` begins, in bytes from the start of the input or output.
RW_HOST_DEVICE inline std::size_t slice_offset(const Call& call, std::int32_t index, Slice slice) {
  return (static_cast<std::size_t>(index) * call.count + slice.begin) * call.element_bytes;
}

/// A step on one slice: what moves, from where and to where.
struct StepAtWork {
  Transfer transfer;
  std::size_t bytes = 0;  ///< of a chunk
  const std::byte* input = nullptr;
  std::byte* output = nullptr;
  // What may go by address: this rank's input or output as it is, and what is written to the output
  // (schedule/check.h, DirectSend). The former is there already: its readers can start before this
  // rank has made its own copy.
  const std::byte* given = nullptr;
  bool is_there = false;
  bool is_input = false;  ///< is_there, and nothing in this call has written it
};

template <typename Strand>
RW_HOST_DEVICE StepAtWork at_work(const Strand& strand, const Call& call, const StepRecord& step,
                                  Slice slice) {
  const std::int32_t only =
      step.num_operands == 1 ? strand.operand(step.first_operand) : std::int32_t{0};
  StepAtWork work;
  work.bytes = slice.count * call.element_bytes;
  const auto offset = [&](std::int32_t index) {
    return index < 0 ? 0 : slice_offset(call, index, slice);
  };
  work.input = call.input + offset(step.input_index);
  work.output = call.output + offset(step.output_index);
  work.is_input = only == kOwnInput && !call.scaled && !call.in_place;
  work.is_there = (only == kOwnInput && !call.scaled) || only == kOwnOutput;
  work.given = step.write_output ? work.output : nullptr;
  if (work.is_there) work.given = only == kOwnInput ? work.input : work.output;

  Transfer& transfer = work.transfer;
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
  return work;
}

/// Whether a chunk of the step goes by address over a link.
template <typename SendEnd>
RW_HOST_DEVICE bool goes_by_address(const StepAtWork& work, const Call& call,
                                    const SendRecord& send, const SendEnd& link) {
  return work.given != nullptr && work.bytes >= call.address_bytes && link.address_allowed &&
         (call.in_place ? send.address_in_place : send.address_out_of_place);
}

/// An operand that is this rank's own memory.
RW_HOST_DEVICE inline Source own_source(const StepAtWork& work, std::int32_t operand) {
  Source source;
  source.data = operand == kOwnInput ? work.input : work.output;
  return source;
}

}  // namespace ropewalk::executor
