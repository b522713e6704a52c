// A block of threads as a Team of the step walker (executor/walker.h).
//
// All threads of the block walk the list together. What concerns one link is done by one of them,
// so the links of a step are waited for side by side; data is moved by all.
//
// A Block is what differs between a CUDA block (cuda/cuda_block.h) and threads of the host that
// stand in for one (block/host_block.h):
//
//   unsigned thread(), size()         this thread's number, and how many there are
//   void sync(), bool sync_or(bool)   barrier; with the disjunction of all threads' values
//   load(const T*), store(Pack*)      of data that another GPU may have written
//   load_lines(), store_line()        lines of an ll link; the former waits
//   first_piece(), kPieces            which of the eight pieces of a line of ll128 are this
//   thread's load_pieces(), store_pieces()     these; the former waits prologue() before what an
//   earlier launch wrote is read load_acquire, store_release, store_relaxed, fence     of counters,
//   system-wide bool wait(condition)              false when the block must stop: aborted, or out
//   of time void stop(StopRecord)             tells the host, and makes all further waits fail
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/block/launch.h"
#include "executor/block/transfer.h"
#include "executor/chunk.h"
#include "executor/walker.h"

namespace ropewalk::executor {

/// A program at work in a block: the walker's Strand. All arrays are shared by the block.
struct BlockStrand {
  const StepRecord* steps = nullptr;
  const std::int32_t* operands = nullptr;
  const SendRecord* send_records = nullptr;
  BlockSendEnd* sends = nullptr;        ///< by rank (of a message: the only one)
  BlockReceiveEnd* receives = nullptr;  ///< the same
  Source* sources = nullptr;
  Destination* destinations = nullptr;
  std::uint32_t num_links = 0;  ///< sends to drain at the end
  std::size_t num_records = 0;
  // This thread's copy: all threads go the same way.
  std::size_t begin = 0;
  std::size_t length = 0;
  std::size_t part_length = 0;
  std::size_t chunk_length = 0;
  std::size_t rounds = 0;
  std::size_t round = 0;
  std::size_t step = 0;

  [[nodiscard]] RW_HOST_DEVICE std::size_t num_steps() const { return num_records; }
  [[nodiscard]] RW_HOST_DEVICE const StepRecord& step_record(std::size_t s) const {
    return steps[s];
  }
  [[nodiscard]] RW_HOST_DEVICE std::int32_t operand(std::uint32_t k) const { return operands[k]; }
  [[nodiscard]] RW_HOST_DEVICE const SendRecord& send_record(std::uint32_t k) const {
    return send_records[k];
  }
  [[nodiscard]] RW_HOST_DEVICE std::uint32_t num_sends() const { return num_links; }
  [[nodiscard]] RW_HOST_DEVICE BlockSendEnd& send_end(std::uint32_t peer) const {
    return sends[peer];
  }
  [[nodiscard]] RW_HOST_DEVICE BlockReceiveEnd& receive_end(std::int32_t peer) const {
    return receives[peer];
  }
};

/// What both protocols share. A thread that must stop (stopped_) walks on with the others to the
/// end of the list, but waits for nothing and moves nothing: so all pass the same barriers.
template <typename Block>
class BlockTeam {
 public:
  /// `output_bytes`: of the whole output buffer.
  RW_HOST_DEVICE BlockTeam(Block& block, std::size_t output_bytes)
      : block_(block), output_bytes_(output_bytes) {}

  template <typename Body>
  RW_HOST_DEVICE void each(std::uint32_t n, Body&& body) {
    for (std::uint32_t k = block_.thread(); k < n; k += block_.size()) body(k);
  }
  RW_HOST_DEVICE bool wait_consumed(BlockSendEnd& link, std::uint64_t number) {
    if (link.consumed_seen >= number) return true;
    return !stopped_ && block_.wait([&] {
      return (link.consumed_seen = block_.load_acquire(link.consumed_at)) >= number;
    });
  }

  RW_HOST_DEVICE void mismatch(int peer, const CallTag& theirs, const Call& call) {
    StopRecord record;
    record.reason = static_cast<std::uint32_t>(StopReason::kMismatch);
    record.peer = peer;
    record.own = call.tag;
    record.theirs = theirs;
    block_.stop(record);
    stopped_ = true;
  }
  RW_HOST_DEVICE void wrong_size(int peer, std::size_t got, std::size_t expected) {
    if (stopped_) return;
    StopRecord record;
    record.reason = static_cast<std::uint32_t>(StopReason::kWrongSize);
    record.peer = peer;
    record.got = got;
    record.expected = expected;
    block_.stop(record);
    stopped_ = true;
  }

 protected:
  RW_HOST_DEVICE bool wait_window(BlockSendEnd& link, std::uint64_t window) {
    const std::uint64_t next = link.published + 1;
    return next <= window || wait_consumed(link, next - window);
  }

  Block& block_;
  std::size_t output_bytes_;
  bool stopped_ = false;
};

/// Lines that carry their flags: nothing is waited for but the data itself, and a step takes two
/// barriers. So chunks are counted when a step begins, and a Source remembers its number.
template <Protocol kProtocol, typename Block, typename Element, RedOp kOp>
class ProtocolTeam : public BlockTeam<Block> {
 public:
  using BlockTeam<Block>::BlockTeam;

  template <typename Ready>
  RW_HOST_DEVICE bool all(std::uint32_t /*n*/, Ready&& /*ready*/) {
    return true;
  }
  RW_HOST_DEVICE void sync() {
    if constexpr (kProtocol == Protocol::kLl128) {
      // The threads of a line go together, so all must know whether one has to stop.
      this->stopped_ = this->block_.sync_or(this->stopped_);
    } else {
      this->block_.sync();
    }
  }
  RW_HOST_DEVICE void end_step() {}

  RW_HOST_DEVICE bool wait_arrival(BlockReceiveEnd& /*link*/, std::size_t /*bytes*/) {
    return true;
  }
  RW_HOST_DEVICE bool wait_room(BlockSendEnd& /*link*/, std::size_t /*bytes*/) { return true; }
  RW_HOST_DEVICE Source arrived(BlockReceiveEnd& link, const Call& /*call*/,
                                std::size_t /*bytes*/) {
    const std::uint64_t chunk = ++link.received;
    Source source;
    source.data = flagged_slot(kProtocol, link.memory, link.shape, chunk);
    source.remote = chunk;
    source.flag = flag_of(chunk);
    return source;
  }
  RW_HOST_DEVICE Destination describe(BlockSendEnd& link, const Call& /*call*/, std::size_t bytes,
                                      const std::byte* /*given*/) {
    if (bytes > link.shape.slot_bytes) this->wrong_size(link.peer, bytes, link.shape.slot_bytes);
    if (!this->wait_window(link, link.shape.slots)) this->stopped_ = true;
    const std::uint64_t chunk = ++link.published;
    // One that must stop has no room to write to.
    if (this->stopped_) return Destination{};
    return Destination{flagged_slot(kProtocol, link.memory, link.shape, chunk), flag_of(chunk)};
  }
  RW_HOST_DEVICE void publish(BlockSendEnd& /*link*/) {}
  RW_HOST_DEVICE void release(BlockReceiveEnd& link, const Source& source) {
    // The writer wants room now and then: told of half the slots at once, it never waits in vain.
    // Relaxed: what was read has been used by its readers before the barrier.
    if (!this->stopped_ && (source.remote & (link.shape.slots / 2 - 1)) == 0) {
      this->block_.store_relaxed(link.consumed_at, source.remote);
    }
  }
  RW_HOST_DEVICE void transfer(BlockStrand& strand, const Call& call, const Transfer& transfer) {
    if (this->stopped_) return;
    const BlockTransfer all{strand.sources, strand.destinations, transfer, call.scalar};
    const bool done = kProtocol == Protocol::kLl ? transfer_ll<Element, kOp>(this->block_, all)
                                                 : transfer_ll128<Element, kOp>(this->block_, all);
    if (!done) this->stopped_ = true;
  }
};

/// Headers and slots; data, fence, flag.
template <typename Block, typename Element, RedOp kOp>
class ProtocolTeam<Protocol::kSimple, Block, Element, kOp> : public BlockTeam<Block> {
 public:
  using BlockTeam<Block>::BlockTeam;

  template <typename Ready>
  RW_HOST_DEVICE bool all(std::uint32_t n, Ready&& ready) {
    for (std::uint32_t k = this->block_.thread(); k < n && !this->stopped_;
         k += this->block_.size()) {
      if (!ready(k)) this->stopped_ = true;
    }
    sync();
    return true;
  }
  /// Also agrees on whether any thread must stop.
  RW_HOST_DEVICE void sync() { this->stopped_ = this->block_.sync_or(this->stopped_); }
  RW_HOST_DEVICE void end_step() { sync(); }

  RW_HOST_DEVICE bool wait_arrival(BlockReceiveEnd& link, std::size_t /*bytes*/) {
    const std::uint64_t next = link.received + 1;
    const std::uint64_t* sequence = &link.header(next)->sequence;
    return this->block_.wait([&] { return this->block_.load_acquire(sequence) == next; });
  }
  RW_HOST_DEVICE bool wait_room(BlockSendEnd& link, std::size_t bytes) {
    return this->wait_window(link, bytes > kInlineBytes ? link.shape.slots : link.shape.headers);
  }
  RW_HOST_DEVICE Source arrived(BlockReceiveEnd& link, const Call& call, std::size_t bytes) {
    if (this->stopped_) return Source{};
    return arrived_chunk(*this, link, call, bytes);
  }
  RW_HOST_DEVICE Destination describe(BlockSendEnd& link, const Call& call, std::size_t bytes,
                                      const std::byte* given) {
    if (this->stopped_) return Destination{};
    if (given != nullptr) {
      // Addresses are given as the peer sees them.
      const bool is_output = given >= call.output && given < call.output + this->output_bytes_;
      given += is_output ? link.output_shift : link.input_shift;
    }
    return describe_chunk(*this, link, call, bytes, given);
  }
  RW_HOST_DEVICE void publish(BlockSendEnd& link) {
    if (this->stopped_) return;
    const std::uint64_t next = ++link.published;
    // The whole block's stores come before the barrier that this thread has passed.
    this->block_.store_release(&link.header(next)->sequence, next);
  }
  RW_HOST_DEVICE void release(BlockReceiveEnd& link, const Source& /*source*/) {
    if (this->stopped_) return;
    const std::uint64_t chunk = ++link.received;
    // Relaxed: what was read has been stored elsewhere by its readers before the barrier.
    this->block_.store_relaxed(link.consumed_at, chunk);
  }
  RW_HOST_DEVICE void transfer(BlockStrand& strand, const Call& call, const Transfer& transfer) {
    if (this->stopped_) return;
    const BlockTransfer all{strand.sources, strand.destinations, transfer, call.scalar};
    transfer_plain<Element, kOp>(this->block_, all);
  }
};

/// One channel of a collective, from the first load to the last store. `shared` is
/// shared_bytes(args) of memory of this block, aligned to 16.
template <Protocol kProtocol, typename Element, RedOp kOp, typename Block>
RW_HOST_DEVICE void run_channel(Block& block, const LaunchArgs& args, std::uint32_t channel,
                                std::byte* shared) {
  const std::uint32_t n = args.links.num_ranks;
  BlockStrand strand;
  std::byte* room = shared;
  const auto take = [&](std::size_t bytes) {
    std::byte* place = room;
    room += bytes;
    return place;
  };
  auto* program = reinterpret_cast<PackedProgram*>(take(args.program_bytes));
  strand.sends = reinterpret_cast<BlockSendEnd*>(take(n * sizeof(BlockSendEnd)));
  strand.receives = reinterpret_cast<BlockReceiveEnd*>(take(n * sizeof(BlockReceiveEnd)));
  strand.sources = reinterpret_cast<Source*>(take(args.max_operands * sizeof(Source)));
  strand.destinations = reinterpret_cast<Destination*>(room);
  strand.num_links = n;

  // All of these are on their way at once: a launch waits for memory a single time.
  const auto fetch = [&](void* to, const void* from, std::size_t bytes) {
    for (std::size_t i = block.thread(); i < bytes / sizeof(Pack); i += block.size()) {
      static_cast<Pack*>(to)[i] = static_cast<const Pack*>(from)[i];
    }
  };
  BlockSendEnd* sends = args.links.sends + std::size_t{channel} * n;
  BlockReceiveEnd* receives = args.links.receives + std::size_t{channel} * n;
  fetch(program, args.programs + std::size_t{channel} * args.program_bytes, args.program_bytes);
  block.prologue();
  fetch(strand.sends, sends, n * sizeof(BlockSendEnd));
  fetch(strand.receives, receives, n * sizeof(BlockReceiveEnd));
  if (args.begins != nullptr) {
    strand.begin = args.begins[channel];
    strand.length = args.begins[channel + 1] - strand.begin;
  } else {
    const std::size_t begin = args.share * channel;
    strand.begin = begin < args.call.count ? begin : args.call.count;
    const std::size_t left = args.call.count - strand.begin;
    strand.length = left < args.share ? left : args.share;
  }
  strand.part_length = args.part_length;
  strand.chunk_length = args.chunk_length;
  strand.rounds = args.rounds;
  block.sync();
  strand.steps = program->steps();
  strand.operands = program->operands();
  strand.send_records = program->sends();
  strand.num_records = program->num_steps;
  if constexpr (kProtocol == Protocol::kSimple) {
    for (std::uint32_t k = block.thread(); k < n; k += block.size()) {
      strand.sends[k].address_allowed = (args.visible >> k & 1U) != 0;
      strand.sends[k].input_shift = k < kMaxShifted ? args.shifts[k].input : 0;
      strand.sends[k].output_shift = k < kMaxShifted ? args.shifts[k].output : 0;
    }
    block.sync();
  }

  ProtocolTeam<kProtocol, Block, Element, kOp> team(block, args.output_bytes);
  walk(team, strand, args.call);
  block.sync();
  for (std::uint32_t k = block.thread(); k < n; k += block.size()) {
    sends[k].published = strand.sends[k].published;
    sends[k].consumed_seen = strand.sends[k].consumed_seen;
    sends[k].drain_to = strand.sends[k].drain_to;
    receives[k].received = strand.receives[k].received;
  }
}

/// What the threads of a block share while it carries a message.
struct MessageShared {
  StepRecord step;
  std::int32_t operand = 0;
  SendRecord send;
  BlockSendEnd send_end;
  BlockReceiveEnd receive_end;
  Source source;
  Destination destinations[2];
};

/// One channel of one message: a program of one step, as executor/program.h's make_send_program()
/// and make_receive_program().
template <Protocol kProtocol, typename Block>
RW_HOST_DEVICE void run_message_by(Block& block, const MessageArgs& args, const Message& message,
                                   std::uint32_t channel, MessageShared& shared) {
  const LaunchLinks& links = args.links[static_cast<std::size_t>(kProtocol)];
  BlockStrand strand;
  strand.steps = &shared.step;
  strand.operands = &shared.operand;
  strand.send_records = &shared.send;
  strand.num_records = 1;
  strand.sends = &shared.send_end;
  strand.receives = &shared.receive_end;
  strand.sources = &shared.source;
  strand.destinations = shared.destinations;
  strand.num_links = message.sends ? 1 : 0;
  const std::size_t place =
      std::size_t{channel} * links.num_ranks + static_cast<std::size_t>(message.peer);
  block.prologue();
  if (block.thread() == 0) {
    shared.step = StepRecord{};
    shared.step.num_operands = 1;
    shared.send = SendRecord{0, true, true};
    if (message.sends) {
      shared.step.input_index = 0;
      shared.step.num_sends = 1;
      shared.operand = kOwnInput;
      shared.send_end = links.sends[place];
      shared.send_end.address_allowed = message.visible;
      shared.send_end.input_shift = message.shift;
    } else {
      shared.step.output_index = 0;
      shared.step.write_output = true;
      shared.operand = 0;
      shared.receive_end = links.receives[place];
    }
  }
  Call call;
  call.input = message.data;
  call.output = message.data;
  call.count = message.bytes;
  call.element_bytes = 1;
  call.address_bytes = args.address_bytes;
  call.check_tags = args.check_tags;
  call.tag.count = message.bytes;
  call.tag.collective = kPointToPoint;
  // Shares of whole packs.
  const std::size_t packs = (message.bytes + sizeof(Pack) - 1) / sizeof(Pack);
  const std::size_t share = (packs + message.channels - 1) / message.channels * sizeof(Pack);
  const std::size_t begin = share * channel;
  strand.begin = begin < message.bytes ? begin : message.bytes;
  strand.length = message.bytes - strand.begin < share ? message.bytes - strand.begin : share;
  strand.part_length = strand.length;
  strand.chunk_length = message.chunk_bytes;
  strand.rounds = (strand.length + message.chunk_bytes - 1) / message.chunk_bytes;
  block.sync();
  ProtocolTeam<kProtocol, Block, CopiedElement, RedOp::kSum> team(block, 0);
  walk(team, strand, call);
  block.sync();
  if (block.thread() == 0) {
    if (message.sends) {
      links.sends[place] = shared.send_end;
    } else {
      links.receives[place] = shared.receive_end;
    }
  }
}

/// What block `number` of a launch of messages does.
template <typename Block>
RW_HOST_DEVICE void run_message(Block& block, const MessageArgs& args, std::uint32_t number,
                                MessageShared& shared) {
  std::uint32_t m = 0;
  while (m + 1 < args.num_messages && args.messages[m + 1].first_block <= number) ++m;
  const Message& message = args.messages[m];
  const std::uint32_t channel = number - message.first_block;
  switch (message.protocol) {
    case Protocol::kSimple:
      run_message_by<Protocol::kSimple>(block, args, message, channel, shared);
      break;
    case Protocol::kLl: run_message_by<Protocol::kLl>(block, args, message, channel, shared); break;
    case Protocol::kLl128:
      run_message_by<Protocol::kLl128>(block, args, message, channel, shared);
      break;
  }
}

}  // namespace ropewalk::executor
