// How a block of threads walks a step list over links of protocol simple: in stages, so that some
// of its threads always move data.
//
// A step takes a block through waits for its links, a copy, a fence and flags for the peers. One SM
// copies 256 KiB in some 6 us, and the rest takes as long when one comes after the other. So each
// is the work of threads of its own, and up to kStages steps are at work at once:
//
//   makers    one warp. Reads the step list, waits for a step's links, side by side, and writes
//             down where its data is and where it goes (a BlockStage).
//   movers    all other threads. Copy or combine.
//   tellers   one warp. Makes what was moved visible, then tells the peers of it. A fence takes
//             microseconds where links are busy, so one serves all steps that are done.
//
// They hand a stage on by barriers, tellers back to makers by a counter in memory of the block;
// another one tells tellers what else is done. Movers take the steps in order, all together, so
// that a step sees what earlier ones wrote to this rank's output. (NCCL's protocol Simple shares
// out its threads alike: primitives of src/device/prims_simple.h there.)
//
// A Block is what differs between a CUDA block (cuda/cuda_block.h) and threads of the host that
// stand in for one (block/host_block.h):
//
//   unsigned thread(), size()         this thread's number, and how many there are
//   void sync(), bool sync_or(bool)   barrier; with the disjunction of all threads' values
//   kWarp                             threads that go together
//   void sync_some(id, n)             barrier `id` (< kStageBarriers) of n threads
//   void arrive_some(id, n)           is one of them, and waits for none
//   bool any_of_warp(bool)            the disjunction of a warp's values; called by all of it
//   void sync_warp()                  barrier of a warp
//   void add_word(word*)              adds 1 in memory of the block after what the warp did
//   void wait_word(word*, value)      waits until a word has that value; called by all of a warp
//   bool has_word(word*, value)       whether it has, and then what was done before that is seen
//   load(const T*), store(Pack*)      of data that another GPU may have written
//   load_own(const T*)                of data that this block wrote, or a launch before it
//   load_line(), store_line()         a line of an ll link; the former waits
//   look_at_line()                    the same as it is now
//   first_piece(), kPieces            which of the eight pieces of a line of ll128 are this
//                                     thread's
//   load_pieces(), store_pieces()     these; the former waits
//   look_at_piece(), has_flag()       these of one line, as they are now; whether its flag is there
//   words_of(), set_words()           a Piece's words
//   wait_together(condition)          wait() of threads that go together (a line's, and more)
//   all_of_group(bool)                whether it holds for all of these
//   prologue()                        comes before what an earlier launch wrote is read
//   load_acquire, load_relaxed, store_release, store_relaxed      of counters, system-wide
//   fence_release()                   before store_relaxed(): what this thread has seen done
//   load_tag(), store_tag()           a CallTag that another GPU writes, or reads, at once
//   bool wait(condition)              false when the block must stop: aborted, called otherwise
//                                     than a peer, or out of time
//   clock_ns()                        of the device, for stamps (launch.h)
//   void stop(StopRecord)             tells the host, and makes all further waits fail
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/block/plain_transfer.h"
#include "executor/block/strand.h"
#include "executor/chunk.h"
#include "executor/step.h"

namespace ropewalk::executor {

/// The movers of a block, as plain_transfer.h sees them.
template <typename Block>
class Movers {
 public:
  RW_HOST_DEVICE Movers(Block& block, unsigned number) : block_(block), number_(number) {}
  [[nodiscard]] RW_HOST_DEVICE unsigned thread() const { return block_.thread(); }
  [[nodiscard]] RW_HOST_DEVICE unsigned size() const { return number_; }
  template <typename T>
  RW_HOST_DEVICE T load(const T* from) const {
    return block_.load(from);
  }
  RW_HOST_DEVICE void store(Pack* to, const Pack& pack) const { block_.store(to, pack); }

 private:
  Block& block_;
  unsigned number_;
};

/// Runs a strand. A block that must stop walks on to the end of the list, but waits for nothing and
/// moves nothing: so all its threads pass the same barriers.
template <typename Block, typename Element, RedOp kOp>
class StagedWalk {
 public:
  /// `output_bytes`: of the whole output buffer. The block has more than two warps.
  RW_HOST_DEVICE StagedWalk(Block& block, BlockStrand& strand, const Call& call,
                            std::size_t output_bytes)
      : block_(block),
        strand_(strand),
        call_(call),
        output_bytes_(output_bytes),
        movers_(block.size() - 2 * Block::kWarp) {}

  /// Called by all threads of the block.
  RW_HOST_DEVICE void run() {
    if (block_.thread() < movers_) {
      move();
    } else if (block_.thread() < movers_ + Block::kWarp) {
      make();
    } else {
      tell();
    }
  }

  /// After run(): this thread knows that the block was told to stop.
  [[nodiscard]] RW_HOST_DEVICE bool stopped() const { return stopped_; }

  // For arrived_chunk() and describe_chunk().
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

 private:
  // ---- makers ----
  RW_HOST_DEVICE void make() {
    const unsigned lane = block_.thread() - movers_;
    std::uint32_t turn = 0;
    const std::size_t num_steps = strand_.num_steps();
    // Turns and lags: schedule/lags.h.
    for (std::size_t t = 0; t < strand_.rounds + strand_.last_lag; ++t) {
      for (std::size_t s = 0; s < num_steps; ++s) {
        const StepRecord& step = strand_.step_record(s);
        const std::size_t round = t - step.lag;
        if (step.lag > t || round >= strand_.rounds) continue;
        // All ranks cut a block identically, so sender and receiver skip the same empty chunks.
        const Slice slice = slice_of(strand_, step.part, round);
        if (slice.count == 0) continue;
        const StepAtWork work = at_work(strand_, call_, step, slice);
        wait_for_links(step, work.bytes, lane);
        write_down(free_stage(turn), step, work, lane);
        hand_on(turn++);
      }
    }
    BlockStage& end = free_stage(turn);
    if (lane == 0) end.last = true;
    hand_on(turn);
    for (std::uint32_t k = lane; k < strand_.num_sends(); k += Block::kWarp) {
      SendEnd& link = strand_.send_end(k);
      if (link.drain_to != 0 && wait_consumed(link, link.drain_to)) link.drain_to = 0;
    }
  }
  RW_HOST_DEVICE BlockStage& free_stage(std::uint32_t turn) {
    BlockStage& stage = stage_at(turn);
    block_.wait_word(&stage.told, turn / kStages);
    return stage;
  }
  RW_HOST_DEVICE void hand_on(std::uint32_t turn) {
    block_.arrive_some(ready_id(turn), movers_ + Block::kWarp);
  }

  RW_HOST_DEVICE void wait_for_links(const StepRecord& step, std::size_t bytes, unsigned lane) {
    const std::uint32_t n = step.num_operands + step.num_sends;
    for (std::uint32_t k = lane; k < n && !stopped_; k += Block::kWarp) {
      bool there = true;
      if (k >= step.num_operands) {
        const SendRecord& send = strand_.send_record(step.first_send + k - step.num_operands);
        there = wait_room(strand_.send_end(send.end), bytes);
      } else if (const std::int32_t operand = strand_.operand(step.first_operand + k);
                 operand >= 0) {
        there = wait_arrival(strand_.receive_end(operand));
      }
      if (!there) stopped_ = true;
    }
    stopped_ = block_.any_of_warp(stopped_);
  }
  RW_HOST_DEVICE bool wait_arrival(const ReceiveEnd& link) {
    const std::uint64_t next = link.received + 1;
    const std::uint64_t* sequence = &link.header(next)->sequence;
    return block_.wait([&] { return block_.load_acquire(sequence) == next; });
  }
  RW_HOST_DEVICE bool wait_room(SendEnd& link, std::size_t bytes) {
    const std::uint64_t next = link.published + 1;
    const std::uint64_t window = link.shape.window(bytes);
    return next <= window || wait_consumed(link, next - window);
  }
  RW_HOST_DEVICE bool wait_consumed(SendEnd& link, std::uint64_t number) {
    if (link.consumed_seen >= number) return true;
    return !stopped_ && block_.wait([&] {
      return (link.consumed_seen = block_.load_acquire(link.consumed_at)) >= number;
    });
  }

  RW_HOST_DEVICE void write_down(BlockStage& stage, const StepRecord& step, const StepAtWork& work,
                                 unsigned lane) {
    for (std::uint32_t k = lane; k < step.num_operands; k += Block::kWarp) {
      const std::int32_t operand = strand_.operand(step.first_operand + k);
      stage.releases[k] = Notice{};
      if (operand < 0) {
        stage.sources[k] = own_source(work, operand);
      } else if (!stopped_) {
        ReceiveEnd& link = strand_.receive_end(operand);
        stage.sources[k] = arrived_chunk(*this, link, call_, work.bytes);
        stage.releases[k] = {link.consumed_at, ++link.received};
      }
    }
    for (std::uint32_t k = lane; k < step.num_sends + 1; k += Block::kWarp) {
      if (k == 0) {
        stage.destinations[0] = Destination{step.write_output ? work.output : nullptr};
        continue;
      }
      const SendRecord& send = strand_.send_record(step.first_send + k - 1);
      stage.publications[k - 1] = Notice{};
      if (!stopped_) describe(stage, k, strand_.send_end(send.end), send, work);
    }
    stopped_ = block_.any_of_warp(stopped_);
    if (lane != 0) return;
    stage.transfer = work.transfer;
    stage.num_releases = step.num_operands;
    stage.num_publications = step.num_sends;
    stage.stopped = stopped_;
    stage.last = false;
  }
  RW_HOST_DEVICE void describe(BlockStage& stage, std::uint32_t k, SendEnd& link,
                               const SendRecord& send, const StepAtWork& work) {
    const bool gives = goes_by_address(work, call_, send, link);
    const std::byte* given = nullptr;
    if (gives) {
      // Addresses are given as the peer sees them.
      const bool is_output =
          work.given >= call_.output && work.given < call_.output + output_bytes_;
      given = work.given + (is_output ? link.output_shift : link.input_shift);
    }
    stage.destinations[k] = describe_chunk(*this, link, call_, work.bytes, given);
    const std::uint64_t number = ++link.published;
    const Notice notice{&link.header(number)->sequence, number};
    if (gives && work.is_input) {
      block_.store_release(notice.at, notice.number);
    } else {
      stage.publications[k - 1] = notice;
    }
  }

  // ---- movers ----
  RW_HOST_DEVICE void move() {
    Movers<Block> movers(block_, movers_);
    for (std::uint32_t turn = 0;; ++turn) {
      const BlockStage& stage = stage_at(turn);
      block_.sync_some(ready_id(turn), movers_ + Block::kWarp);
      const bool last = stage.last;
      if (!last && !stage.stopped) {
        transfer_plain<Element, kOp>(
            movers, BlockTransfer{stage.sources, stage.destinations, stage.transfer, call_.scalar});
      }
      block_.sync_warp();
      if (block_.thread() % Block::kWarp == 0) block_.add_word(&stage_at(turn).moved);
      block_.arrive_some(done_id(turn), movers_ + Block::kWarp);
      if (last) return;
    }
  }

  // ---- tellers ----
  RW_HOST_DEVICE void tell() {
    const unsigned lane = block_.thread() - movers_ - Block::kWarp;
    for (std::uint32_t turn = 0;;) {
      wait_moved(turn);
      if (stage_at(turn).last) return;
      std::uint32_t end = turn + 1;
      while (end - turn < kStages) {
        const bool there = block_.has_word(&stage_at(end).moved, all_warps(end));
        if (block_.any_of_warp(!there) || stage_at(end).last) break;
        wait_moved(end++);  // does not wait
      }
      bool publishes = false;
      for (std::uint32_t t = turn; t < end; ++t) {
        publishes = publishes || stage_at(t).num_publications > 0;
        if (!stage_at(t).stopped) release(stage_at(t), lane);
      }
      if (publishes) block_.fence_release();
      for (std::uint32_t t = turn; t < end; ++t) {
        if (!stage_at(t).stopped) publish(stage_at(t), lane);
        block_.sync_warp();
        if (lane == 0) block_.add_word(&stage_at(t).told);
      }
      turn = end;
    }
  }
  RW_HOST_DEVICE void wait_moved(std::uint32_t turn) {
    block_.sync_some(done_id(turn), movers_ + Block::kWarp);
  }
  // The movers have stored the data elsewhere.
  RW_HOST_DEVICE void release(const BlockStage& stage, unsigned lane) {
    for (std::uint32_t k = lane; k < stage.num_releases; k += Block::kWarp) {
      const Notice& notice = stage.releases[k];
      if (notice.at != nullptr) block_.store_relaxed(notice.at, notice.number);
    }
  }
  RW_HOST_DEVICE void publish(const BlockStage& stage, unsigned lane) {
    for (std::uint32_t k = lane; k < stage.num_publications; k += Block::kWarp) {
      const Notice& notice = stage.publications[k];
      if (notice.at != nullptr) block_.store_relaxed(notice.at, notice.number);
    }
  }

  [[nodiscard]] RW_HOST_DEVICE BlockStage& stage_at(std::uint32_t turn) const {
    return strand_.stages[turn % kStages];
  }
  RW_HOST_DEVICE static std::uint32_t ready_id(std::uint32_t turn) { return turn % kStages; }
  RW_HOST_DEVICE static std::uint32_t done_id(std::uint32_t turn) {
    return kStages + turn % kStages;
  }
  // BlockStage::moved when all movers are done with step `turn`.
  [[nodiscard]] RW_HOST_DEVICE std::uint32_t all_warps(std::uint32_t turn) const {
    return (turn / kStages + 1) * (movers_ / Block::kWarp);
  }

  Block& block_;
  BlockStrand& strand_;
  const Call& call_;
  std::size_t output_bytes_;
  unsigned movers_;
  bool stopped_ = false;  // makers: agreed on by the warp
};

}  // namespace ropewalk::executor
