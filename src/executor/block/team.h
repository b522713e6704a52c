// A block of threads as a Team of the step walker (executor/walker.h), over links of protocol
// simple.
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
//   load_own(const T*)                of data that this block wrote, or a launch before it
//   load_line(), store_line()         a line of an ll link; the former waits
//   first_piece(), kPieces            which of the eight pieces of a line of ll128 are this
//                                     thread's
//   load_pieces(), store_pieces()     these; the former waits
//   prologue()                        comes before what an earlier launch wrote is read
//   load_acquire, load_relaxed, store_release, store_relaxed      of counters, system-wide
//   load_tag(), store_tag()           a CallTag that another GPU writes, or reads, at once
//   bool wait(condition)              false when the block must stop: aborted, called otherwise
//                                     than a peer, or out of time
//   void stop(StopRecord)             tells the host, and makes all further waits fail
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/block/plain_transfer.h"
#include "executor/block/strand.h"
#include "executor/chunk.h"
#include "executor/walker.h"

namespace ropewalk::executor {

/// Headers and slots; data, fence, flag. A thread that must stop (stopped_) walks on with the
/// others to the end of the list, but waits for nothing and moves nothing: so all pass the same
/// barriers.
template <typename Block, typename Element, RedOp kOp>
class SimpleTeam {
 public:
  /// `output_bytes`: of the whole output buffer.
  RW_HOST_DEVICE SimpleTeam(Block& block, std::size_t output_bytes)
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

  template <typename Ready>
  RW_HOST_DEVICE bool all(std::uint32_t n, Ready&& ready) {
    for (std::uint32_t k = block_.thread(); k < n && !stopped_; k += block_.size()) {
      if (!ready(k)) stopped_ = true;
    }
    sync();
    return true;
  }
  /// Also agrees on whether any thread must stop.
  RW_HOST_DEVICE void sync() { stopped_ = block_.sync_or(stopped_); }
  RW_HOST_DEVICE void end_step() { sync(); }

  RW_HOST_DEVICE bool wait_arrival(BlockReceiveEnd& link, std::size_t /*bytes*/) {
    const std::uint64_t next = link.received + 1;
    const std::uint64_t* sequence = &link.header(next)->sequence;
    return block_.wait([&] { return block_.load_acquire(sequence) == next; });
  }
  RW_HOST_DEVICE bool wait_room(BlockSendEnd& link, std::size_t bytes) {
    return wait_window(link, bytes > kInlineBytes ? link.shape.slots : link.shape.headers);
  }
  RW_HOST_DEVICE Source arrived(BlockReceiveEnd& link, const Call& call, std::size_t bytes) {
    if (stopped_) return Source{};
    return arrived_chunk(*this, link, call, bytes);
  }
  RW_HOST_DEVICE Destination describe(BlockSendEnd& link, const Call& call, std::size_t bytes,
                                      const std::byte* given) {
    if (stopped_) return Destination{};
    if (given != nullptr) {
      // Addresses are given as the peer sees them.
      const bool is_output = given >= call.output && given < call.output + output_bytes_;
      given += is_output ? link.output_shift : link.input_shift;
    }
    return describe_chunk(*this, link, call, bytes, given);
  }
  RW_HOST_DEVICE void publish(BlockSendEnd& link) {
    if (stopped_) return;
    const std::uint64_t next = ++link.published;
    // The whole block's stores come before the barrier that this thread has passed.
    block_.store_release(&link.header(next)->sequence, next);
  }
  RW_HOST_DEVICE void release(BlockReceiveEnd& link, const Source& /*source*/) {
    if (stopped_) return;
    const std::uint64_t chunk = ++link.received;
    // Relaxed: what was read has been stored elsewhere by its readers before the barrier.
    block_.store_relaxed(link.consumed_at, chunk);
  }
  RW_HOST_DEVICE void transfer(BlockStrand& strand, const Call& call, const Transfer& transfer) {
    if (stopped_) return;
    const BlockTransfer all{strand.sources, strand.destinations, transfer, call.scalar};
    transfer_plain<Element, kOp>(block_, all);
  }

 private:
  RW_HOST_DEVICE bool wait_window(BlockSendEnd& link, std::uint64_t window) {
    const std::uint64_t next = link.published + 1;
    return next <= window || wait_consumed(link, next - window);
  }

  Block& block_;
  std::size_t output_bytes_;
  bool stopped_ = false;
};

}  // namespace ropewalk::executor
