// The walk of a block over links whose data carries its flags: the walk with the least latency.
//
// Such data needs no separate signal: a word has arrived when its flag has. So in each round all
// locations of all steps are made ready at once, a thread each, and after one barrier the words of
// all steps are moved with no barrier between: a thread has the same words of a block in every
// step. A slot takes all chunks that a round sends over a link (pack.h), so within a round nobody
// waits for room, and a schedule that the checker has accepted for bounded FIFOs cannot block.
// Before a round the writer waits until the reader has begun the round kFlaggedSlots - 1 before it,
// which it can without the writer's help.
//
// Counters of links count rounds. Everything that does not depend on them is done before the
// prologue, while an earlier launch runs. The writer hears what was read in one round at the start
// of the next: a launch does not end with data in flight.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/block/flagged_transfer.h"
#include "executor/block/launch.h"
#include "executor/block/posts.h"
#include "executor/step.h"

namespace ropewalk::executor {

/// A FlaggedProgram at work in a block. The block shares the arrays; numbers are each thread's
/// copy, since all threads take the same branches.
struct FlaggedStrand {
  const FlaggedStepRecord* steps = nullptr;
  const FlaggedLocationRecord* locations = nullptr;
  std::uint32_t num_steps = 0;
  std::uint32_t num_locations = 0;
  // The program's ends, of which only what launches do not change counts: the counters are read,
  // and kept, where they lie in device memory.
  const SendEnd* sends = nullptr;
  const ReceiveEnd* receives = nullptr;
  std::uint32_t num_send_ends = 0;     ///< at most the threads of the block
  std::uint32_t num_receive_ends = 0;  ///< the same
  // Room for the round at work.
  FlaggedShape* shapes = nullptr;    ///< by step
  FlaggedLocation* at = nullptr;     ///< by location
  FlaggedOrigin* origins = nullptr;  ///< by location
  std::uint32_t slot_stride = 0;
  std::uint32_t chunk_stride = 0;
  std::size_t begin = 0;  ///< as Strand's
  std::size_t length = 0;
  std::size_t part_length = 0;
  std::size_t chunk_length = 0;
  std::uint32_t rounds = 0;
  bool posts = false;  ///< some links are over a network
};

/// `kKind`: of the kernel. Only kNotes has what network links need (FlaggedStrand::posts).
template <Protocol kProtocol, typename Element, RedOp kOp, KernelKind kKind, typename Block>
class FlaggedWalk {
 public:
  RW_HOST_DEVICE FlaggedWalk(Block& block, const FlaggedStrand& strand, const Call& call)
      : block_(block), strand_(strand), call_(call), link_(block.size() - 1 - block.thread()) {
    if constexpr (kKeepsAddresses) find_counters();
  }

  /// Lays out the round at work, as far as the links' counters do not matter.
  RW_HOST_DEVICE void lay_out() {
    if constexpr (!kKeepsAddresses) find_counters();
    const unsigned thread = block_.thread();
    RW_ROLLED
    for (std::uint32_t j = thread; j < strand_.num_locations; j += block_.size()) {
      const FlaggedLocationRecord& record = strand_.locations[j];
      FlaggedLocation location;
      FlaggedOrigin origin;
      if (record.end >= 0) {
        origin.rounds = record.sends ? &strand_.sends[record.end].kept->published
                                     : &strand_.receives[record.end].kept->received;
        origin.memory = (record.sends ? strand_.sends[record.end].memory
                                      : strand_.receives[record.end].memory) +
                        std::size_t{record.chunk} * strand_.chunk_stride;
      } else if (record.end != FlaggedLocationRecord::kNone) {
        const FlaggedStepRecord& step = strand_.steps[record.step];
        const Slice slice = slice_of(strand_, step.part, round_);
        const bool is_input = record.end == FlaggedLocationRecord::kInput;
        const auto index =
            static_cast<std::size_t>(is_input ? step.input_index : step.output_index);
        location.data = (is_input ? const_cast<std::byte*>(call_.input) : call_.output) +
                        (index * call_.count + slice.begin) * call_.element_bytes;
      }
      strand_.at[j] = location;
      strand_.origins[j] = origin;
    }
    RW_ROLLED
    for (std::uint32_t s = block_.size() - 1 - thread; s < strand_.num_steps; s += block_.size()) {
      const FlaggedStepRecord& step = strand_.steps[s];
      FlaggedShape shape;
      shape.bytes = static_cast<std::uint32_t>(slice_of(strand_, step.part, round_).count *
                                               call_.element_bytes);
      shape.first_location = step.first_location;
      shape.num_sources = step.num_sources;
      shape.num_destinations = step.num_destinations;
      if (call_.scaled) shape.scaled_source = step.own_input;
      if (step.finished) shape.divisor = call_.divisor;
      strand_.shapes[s] = shape;
    }
  }

  /// All rounds, of which the first is laid out. Returns when the output is complete, or the block
  /// was told to stop.
  RW_HOST_DEVICE void run() {
    RW_ROLLED
    while (strand_.rounds > round_) {
      find_slots();
      // The threads of a line of ll128 go together, so all must know whether one has to stop.
      stopped_ = block_.sync_or(stopped_);
      if (stopped_) return;
      keep_counters();
      if constexpr (kKind == KernelKind::kNotes && kProtocol == Protocol::kLl) {
        if (strand_.posts) post();
      }
      RW_ROLLED
      for (std::uint32_t s = 0; s < strand_.num_steps; ++s) {
        const FlaggedShape shape = strand_.shapes[s];
        if (shape.bytes == 0 || stopped_) continue;
        const FlaggedLocation* locations = strand_.at + shape.first_location;
        stopped_ =
            kProtocol == Protocol::kLl
                ? !transfer_ll<Element, kOp, kKind>(block_, shape, locations, call_.scalar)
                : !transfer_ll128<Element, kOp, kKind>(block_, shape, locations, call_.scalar);
      }
      if (++round_ == strand_.rounds) return;
      block_.sync();
      lay_out();
    }
  }

  /// After run(): this thread knows that the block was told to stop.
  [[nodiscard]] RW_HOST_DEVICE bool stopped() const { return stopped_; }

 private:
  // Ll128 needs its registers while it moves data, and reads the addresses in every round.
  static constexpr bool kKeepsAddresses = kProtocol == Protocol::kLl;

  // Reads the addresses of counters, so that no address is waited for later.
  RW_HOST_DEVICE void find_counters() {
    if constexpr (!kKeepsAddresses) {
      kept_send_ = nullptr;
      kept_receive_ = nullptr;
    }
    if (link_ < strand_.num_send_ends) {
      kept_send_ = strand_.sends[link_].kept;
      consumed_by_peer_ = strand_.sends[link_].consumed_at;
    }
    if (link_ < strand_.num_receive_ends) {
      kept_receive_ = strand_.receives[link_].kept;
      consumed_here_ = strand_.receives[link_].consumed_at;
    }
  }
  // One thread for each operand and destination finds its slot; one for each link checks that there
  // is room.
  RW_HOST_DEVICE void find_slots() {
    if (kept_send_ != nullptr) {
      const std::uint64_t turn = block_.load(&kept_send_->published) + 1 + round_;
      std::uint64_t consumed = block_.load_relaxed(consumed_by_peer_);
      sent_ = turn;
      if (consumed + kFlaggedSlots < turn) {
        const bool has_room = block_.wait([&] {
          consumed = block_.load_acquire(consumed_by_peer_);
          return consumed + kFlaggedSlots >= turn;
        });
        if (!has_room) stopped_ = true;
      }
    }
    if (kept_receive_ != nullptr) {
      received_ = block_.load(&kept_receive_->received) + 1 + round_;
    }
    RW_ROLLED
    for (std::uint32_t j = block_.thread(); j < strand_.num_locations; j += block_.size()) {
      const FlaggedOrigin origin = strand_.origins[j];
      if (origin.rounds == nullptr) continue;
      const auto turn = static_cast<std::uint32_t>(block_.load(origin.rounds)) + 1 + round_;
      FlaggedLocation location;
      location.data = origin.memory + std::size_t{(turn - 1) % kFlaggedSlots} * strand_.slot_stride;
      location.flag = flag_of(turn);
      strand_.at[j] = location;
    }
  }

  // Tells network links what this round sends. After the barrier: there is room, and what stood
  // there has been read.
  RW_HOST_DEVICE void post() {
    RW_ROLLED
    for (std::uint32_t j = block_.thread(); j < strand_.num_locations; j += block_.size()) {
      const FlaggedLocationRecord& record = strand_.locations[j];
      if (!record.sends || strand_.sends[record.end].posts == nullptr) continue;
      const SendEnd& end = strand_.sends[record.end];
      Post post;
      post.flag = strand_.at[j].flag;  // this thread's
      post.bytes = strand_.shapes[record.step].bytes;
      post.offset = record.chunk * strand_.chunk_stride;
      post.last = record.last;
      block_.store_relaxed(end.posts + Post::index(post.flag, record.chunk), post.word());
    }
  }

  // Nobody reads the counters after the barrier of the last round.
  RW_HOST_DEVICE void keep_counters() {
    const bool last = round_ + 1 == strand_.rounds;
    if (kept_receive_ != nullptr) {
      // Relaxed: a barrier separates this from the reads of earlier data.
      block_.store_relaxed(consumed_here_, received_ - 1);
      if (last) kept_receive_->received = received_;
    }
    if (kept_send_ != nullptr && last) kept_send_->published = sent_;
  }

  Block& block_;
  const FlaggedStrand& strand_;
  const Call& call_;
  std::uint32_t round_ = 0;
  bool stopped_ = false;
  // The ends that this thread keeps the counters of: of each direction the one of this number.
  std::uint32_t link_;
  SendCounters* kept_send_ = nullptr;        // null: none
  ReceiveCounters* kept_receive_ = nullptr;  // null: none
  const std::uint64_t* consumed_by_peer_ = nullptr;
  std::uint64_t* consumed_here_ = nullptr;
  std::uint64_t sent_ = 0;
  std::uint64_t received_ = 0;
};

}  // namespace ropewalk::executor
