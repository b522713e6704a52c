// The work of a block in a launch: one channel of a collective or of a message.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/block/flagged_walk.h"
#include "executor/block/launch.h"
#include "executor/block/staged_walk.h"
#include "executor/block/strand.h"
#include "executor/step.h"

namespace ropewalk::executor {

template <typename Block>
RW_HOST_DEVICE void read_counters(const Block& block, SendEnd& send) {
  send.published = block.load(&send.kept->published);
  send.consumed_seen = block.load(&send.kept->consumed_seen);
  send.drain_to = block.load(&send.kept->drain_to);
}
template <typename Block>
RW_HOST_DEVICE void read_counters(const Block& block, ReceiveEnd& receive) {
  receive.received = block.load(&receive.kept->received);
}
/// Protocol simple's counters, as the earlier launch left them, and the buffers that this launch
/// may send by address.
template <typename Block>
RW_HOST_DEVICE void read_counters(const Block& block, const BlockStrand& strand,
                                  const LaunchArgs& args) {
  // Bypasses cached values from before the prologue.
  for (std::uint32_t k = block.thread(); k < strand.num_send_ends; k += block.size()) {
    SendEnd& send = strand.sends[k];
    read_counters(block, send);
    send.address_allowed = send.in_process && args.seen_in_process;
    for (std::uint32_t i = 0; i < args.num_seen; ++i) {
      if (args.seen[i].peer != send.peer || send.always_staged) continue;
      send.address_allowed = true;
      send.input_shift = args.seen[i].shift.input;
      send.output_shift = args.seen[i].shift.output;
    }
  }
  // By the last threads, so that these loads do not wait for those.
  for (std::uint32_t k = block.size() - 1 - block.thread(); k < strand.num_receive_ends;
       k += block.size()) {
    read_counters(block, strand.receives[k]);
  }
}
template <typename Block>
RW_HOST_DEVICE void keep_counters(const Block& block, const BlockStrand& strand) {
  for (std::uint32_t k = block.thread(); k < strand.num_send_ends; k += block.size()) {
    *strand.sends[k].kept = strand.sends[k];
  }
  for (std::uint32_t k = block.thread(); k < strand.num_receive_ends; k += block.size()) {
    *strand.receives[k].kept = strand.receives[k];
  }
}

/// As leave_tag(), by the first channel of a launch.
template <typename Block>
RW_HOST_DEVICE void leave_tag(const Block& block, const LaunchArgs& args, std::uint32_t channel) {
  if (channel == 0 && args.call.check_tags) leave_tag(block, args.links, args.call.tag);
}

/// The elements of a channel.
template <typename Strand>
RW_HOST_DEVICE void lay_share(Strand& strand, const LaunchArgs& args, std::uint32_t channel) {
  if (args.begins != nullptr) {
    const std::uint64_t* const bounds = args.begins + std::size_t{2} * channel;
    strand.begin = bounds[0];
    strand.part_length = bounds[1];
    strand.length = bounds[2] - strand.begin;
  } else {
    const std::size_t begin = args.share * channel;
    strand.begin = begin < args.call.count ? begin : args.call.count;
    const std::size_t left = args.call.count - strand.begin;
    strand.length = left < args.share ? left : args.share;
    strand.part_length = args.part_length;
  }
  strand.chunk_length = args.chunk_length;
  strand.rounds = args.rounds;
}

/// Runs a FlaggedWalk after the prologue. Its threads end one by one: where the end is noted, they
/// wait for each other, as the next launch would for the last of them.
template <KernelKind kKind, typename Block, typename Walk>
RW_HOST_DEVICE void run_stamped(Block& block, Walk& walk, const LaunchStamps& stamps,
                                std::uint32_t number) {
  if constexpr (kKind == KernelKind::kNotes) stamp_begin(block, stamps, number);
  walk.run();
  if constexpr (kKind == KernelKind::kNotes) {
    if (stamps.words == nullptr) return;
    stamp_end(block, stamps, number, block.sync_or(walk.stopped()));
  }
}

/// One channel of a collective, from the first load to the last store. `shared` is
/// shared_bytes(args, kProtocol) of memory of this block, aligned to 16.
///
/// `kKind`: kind_of(args); any for simple.
template <Protocol kProtocol, typename Element, RedOp kOp, KernelKind kKind, typename Block>
RW_HOST_DEVICE void run_channel(Block& block, const LaunchArgs& args, std::uint32_t channel,
                                std::byte* shared) {
  std::byte* room = shared;
  const auto take = [&](std::size_t bytes) {
    std::byte* begin = room;
    room += bytes;
    return begin;
  };
  std::byte* program = take(args.program_bytes);
  // This load runs while an earlier launch may still be running; the ends' counters, which that
  // launch may change, are loaded after the prologue.
  const auto fetch = [&](void* to, const void* from, std::size_t bytes) {
    RW_ROLLED
    for (std::size_t i = block.thread(); i < bytes / sizeof(Pack); i += block.size()) {
      static_cast<Pack*>(to)[i] = static_cast<const Pack*>(from)[i];
    }
  };
  fetch(program, args.programs + std::size_t{channel} * args.program_bytes, args.program_bytes);
  leave_tag(block, args, channel);
  block.sync();

  if constexpr (kProtocol == Protocol::kSimple) {
    const auto* packed = reinterpret_cast<const PackedProgram*>(program);
    BlockStrand strand;
    lay_share(strand, args, channel);
    strand.steps = packed->steps();
    strand.operands = packed->operands();
    strand.send_records = packed->sends();
    strand.num_records = packed->num_steps;
    strand.last_lag = packed->last_lag;
    strand.sends = send_ends_of(packed);
    strand.receives = receive_ends_of(packed);
    strand.num_send_ends = packed->ends.num_send_ends;
    strand.num_receive_ends = packed->ends.num_receive_ends;
    strand.stages = reinterpret_cast<BlockStage*>(room);
    if (block.thread() == 0) (void)lay_stages(room, args.room.max_operands, args.room.max_sends);
    block.prologue();
    stamp_begin(block, args.links.stamps, channel);
    read_counters(block, strand, args);
    block.sync();
    StagedWalk<Block, Element, kOp> walk(block, strand, args.call, args.output_bytes);
    walk.run();
    const bool stopped = block.sync_or(walk.stopped());  // before the counters are kept
    keep_counters(block, strand);
    stamp_end(block, args.links.stamps, channel, stopped);
  } else {
    const auto* packed = reinterpret_cast<const FlaggedProgram*>(program);
    FlaggedStrand strand;
    lay_share(strand, args, channel);
    strand.steps = packed->steps();
    strand.locations = packed->locations();
    strand.num_steps = packed->num_steps;
    strand.num_locations = packed->num_locations;
    strand.sends = send_ends_of(packed);
    strand.receives = receive_ends_of(packed);
    strand.num_send_ends = packed->ends.num_send_ends;
    strand.num_receive_ends = packed->ends.num_receive_ends;
    strand.shapes =
        reinterpret_cast<FlaggedShape*>(take(args.room.max_steps * sizeof(FlaggedShape)));
    strand.at =
        reinterpret_cast<FlaggedLocation*>(take(args.room.max_locations * sizeof(FlaggedLocation)));
    strand.origins = reinterpret_cast<FlaggedOrigin*>(room);
    strand.slot_stride = args.slot_stride;
    strand.chunk_stride = args.chunk_stride;
    strand.posts = args.links.network_tag != nullptr;
    FlaggedWalk<kProtocol, Element, kOp, kKind, Block> walk(block, strand, args.call);
    walk.lay_out();
    block.prologue();
    run_stamped<kKind>(block, walk, args.links.stamps, channel);
  }
}

/// What the threads of a block share while it carries a message.
struct MessageShared {
  SendEnd send_end;
  ReceiveEnd receive_end;
  // Of protocol simple.
  StepRecord step;
  std::int32_t operand = 0;
  SendRecord send;
  alignas(16) std::byte stages[stage_bytes(1, 1)];
  // Of the others.
  FlaggedStepRecord flagged_step;
  FlaggedLocationRecord locations[3];
  FlaggedShape shape;
  FlaggedLocation at[3];
  FlaggedOrigin origins[3];
};

/// Bytes [begin, begin + length) of a message: of one of its channels.
struct MessageShare {
  std::size_t begin = 0;
  std::size_t length = 0;
};
RW_HOST_DEVICE inline MessageShare share_of(const Message& message, std::uint32_t channel) {
  // Shares of whole packs.
  const std::size_t packs = (message.bytes + sizeof(Pack) - 1) / sizeof(Pack);
  const std::size_t share = (packs + message.channels - 1) / message.channels * sizeof(Pack);
  const std::size_t begin = share * channel;
  MessageShare own;
  own.begin = begin < message.bytes ? begin : message.bytes;
  own.length = message.bytes - own.begin < share ? message.bytes - own.begin : share;
  return own;
}

RW_HOST_DEVICE inline Call call_of(const Message& message, const MessageArgs& args) {
  Call call;
  call.input = message.data;
  call.output = message.data;
  call.count = message.bytes;
  call.element_bytes = 1;
  call.address_bytes = args.address_bytes;
  call.check_tags = args.check_tags;
  call.tag.count = message.bytes;
  call.tag.collective = kPointToPoint;
  return call;
}

/// One channel of one message by protocol simple: a program of one step, as executor/program.h's
/// make_send_program() and make_receive_program().
template <typename Block>
RW_HOST_DEVICE void run_simple_message(Block& block, const MessageArgs& args,
                                       const Message& message, std::uint32_t channel,
                                       MessageShared& shared) {
  const std::uint32_t number = message.first_block + channel;
  BlockStrand strand;
  strand.steps = &shared.step;
  strand.operands = &shared.operand;
  strand.send_records = &shared.send;
  strand.num_records = 1;
  strand.sends = &shared.send_end;
  strand.receives = &shared.receive_end;
  strand.stages = reinterpret_cast<BlockStage*>(shared.stages);
  strand.num_send_ends = message.sends ? 1 : 0;
  strand.num_receive_ends = message.sends ? 0 : 1;
  if (block.thread() == 0) {
    (void)lay_stages(shared.stages, 1, 1);
    shared.step = StepRecord{};
    shared.step.num_operands = 1;
    shared.send = SendRecord{0, true, true};
    if (message.sends) {
      shared.step.input_index = 0;
      shared.step.num_sends = 1;
      shared.operand = kOwnInput;
      shared.send_end = static_cast<const SendEnd*>(message.ends)[channel];
      shared.send_end.address_allowed = message.visible;
      shared.send_end.input_shift = message.shift;
    } else {
      shared.step.output_index = 0;
      shared.step.write_output = true;
      shared.operand = 0;
      shared.receive_end = static_cast<const ReceiveEnd*>(message.ends)[channel];
    }
  }
  block.prologue();
  stamp_begin(block, args.links.stamps, number);
  if (block.thread() == 0) {
    // Counters alone: an earlier launch changes nothing else of an end.
    if (message.sends) {
      read_counters(block, shared.send_end);
    } else {
      read_counters(block, shared.receive_end);
    }
  }
  const MessageShare share = share_of(message, channel);
  strand.begin = share.begin;
  strand.length = strand.part_length = share.length;
  strand.chunk_length = message.chunk_bytes;
  strand.rounds = (strand.length + message.chunk_bytes - 1) / message.chunk_bytes;
  block.sync();
  const Call call = call_of(message, args);
  StagedWalk<Block, CopiedElement, RedOp::kSum> walk(block, strand, call, 0);
  walk.run();
  const bool stopped = block.sync_or(walk.stopped());
  keep_counters(block, strand);
  stamp_end(block, args.links.stamps, number, stopped);
}

/// The same by the other protocols.
template <Protocol kProtocol, KernelKind kKind, typename Block>
RW_HOST_DEVICE void run_flagged_message(Block& block, const MessageArgs& args,
                                        const Message& message, std::uint32_t channel,
                                        MessageShared& shared) {
  FlaggedStrand strand;
  strand.steps = &shared.flagged_step;
  strand.locations = shared.locations;
  strand.num_steps = 1;
  strand.num_locations = message.sends ? 3 : 2;
  strand.sends = &shared.send_end;
  strand.receives = &shared.receive_end;
  strand.num_send_ends = message.sends ? 1 : 0;
  strand.num_receive_ends = message.sends ? 0 : 1;
  strand.shapes = &shared.shape;
  strand.at = shared.at;
  strand.origins = shared.origins;
  if (block.thread() == 0) {
    FlaggedStepRecord step;
    step.num_sources = 1;
    step.num_destinations = message.sends ? 2 : 1;
    if (message.sends) {
      step.input_index = 0;
      shared.send_end = static_cast<const SendEnd*>(message.ends)[channel];
    } else {
      step.output_index = 0;
      shared.receive_end = static_cast<const ReceiveEnd*>(message.ends)[channel];
    }
    shared.flagged_step = step;
    FlaggedLocationRecord location;
    location.end = message.sends ? FlaggedLocationRecord::kInput : std::int16_t{0};
    shared.locations[0] = location;
    location.end = message.sends ? FlaggedLocationRecord::kNone : FlaggedLocationRecord::kOutput;
    shared.locations[1] = location;
    location.end = 0;
    location.sends = location.last = true;
    shared.locations[2] = location;
  }
  const MessageShare share = share_of(message, channel);
  strand.begin = share.begin;
  strand.length = strand.part_length = share.length;
  strand.chunk_length = message.chunk_bytes;
  strand.rounds =
      static_cast<std::uint32_t>((share.length + message.chunk_bytes - 1) / message.chunk_bytes);
  block.sync();
  strand.slot_stride = static_cast<std::uint32_t>(
      flagged_bytes(kProtocol, message.sends ? shared.send_end.shape.slot_bytes
                                             : shared.receive_end.shape.slot_bytes));
  strand.posts = message.sends && shared.send_end.posts != nullptr;
  const Call call = call_of(message, args);
  FlaggedWalk<kProtocol, CopiedElement, RedOp::kSum, kKind, Block> walk(block, strand, call);
  walk.lay_out();
  block.prologue();
  run_stamped<kKind>(block, walk, args.links.stamps, message.first_block + channel);
}

/// What block `number` of a launch of messages does. `kKind`: kNotes where it is noted(), or
/// kLeast.
template <KernelKind kKind, typename Block>
RW_HOST_DEVICE void run_message(Block& block, const MessageArgs& args, std::uint32_t number,
                                MessageShared& shared) {
  std::uint32_t m = 0;
  while (m + 1 < args.num_messages && args.messages[m + 1].first_block <= number) ++m;
  const Message& message = args.messages[m];
  const std::uint32_t channel = number - message.first_block;
  switch (message.protocol) {
    case Protocol::kSimple: run_simple_message(block, args, message, channel, shared); break;
    case Protocol::kLl:
      run_flagged_message<Protocol::kLl, kKind>(block, args, message, channel, shared);
      break;
    case Protocol::kLl128:
      run_flagged_message<Protocol::kLl128, kKind>(block, args, message, channel, shared);
      break;
  }
}

}  // namespace ropewalk::executor
