// The arguments of a launch: the call, the programs, the links. One block runs one channel.
//
// Everything here is passed by value as the kernel's parameter, or lies in device memory and is
// used by one launch at a time, in stream order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/block/links.h"
#include "executor/block/stage.h"
#include "executor/call.h"
#include "executor/link_end.h"
#include "executor/step.h"

namespace ropewalk::executor {

inline constexpr std::uint32_t kMaxBlocks = 64;  ///< channels of a launch
inline constexpr unsigned kMaxThreads = 512;     ///< of a block, that move data
/// What a block has beside them for protocol simple: makers and tellers (staged_walk.h).
inline constexpr unsigned kControlThreads = 64;
constexpr unsigned launch_threads(Protocol protocol, unsigned threads) {
  return threads + (protocol == Protocol::kSimple ? kControlThreads : 0);
}

/// The ends of the links that a program uses, in its order: they begin every packed program, behind
/// its header. A block has a copy of the program and works on the ends in it.
struct PackedEnds {
  std::uint32_t num_send_ends = 0;
  std::uint32_t num_receive_ends = 0;
};
template <typename Header>
RW_HOST_DEVICE SendEnd* send_ends_of(const Header* header) noexcept {
  static_assert(sizeof(Header) % alignof(SendEnd) == 0);
  return reinterpret_cast<SendEnd*>(const_cast<Header*>(header) + 1);
}
template <typename Header>
RW_HOST_DEVICE ReceiveEnd* receive_ends_of(const Header* header) noexcept {
  return reinterpret_cast<ReceiveEnd*>(send_ends_of(header) + header->ends.num_send_ends);
}

/// A Program as one piece of memory: this header, the ends, StepRecords, operands, SendRecords.
struct alignas(16) PackedProgram {
  PackedEnds ends;
  std::uint32_t num_steps = 0;
  std::uint32_t num_operands = 0;
  std::uint32_t num_sends = 0;
  std::uint32_t last_lag = 0;  ///< the largest one

  [[nodiscard]] RW_HOST_DEVICE const StepRecord* steps() const noexcept {
    return reinterpret_cast<const StepRecord*>(receive_ends_of(this) + ends.num_receive_ends);
  }
  [[nodiscard]] RW_HOST_DEVICE const std::int32_t* operands() const noexcept {
    return reinterpret_cast<const std::int32_t*>(steps() + num_steps);
  }
  [[nodiscard]] RW_HOST_DEVICE const SendRecord* sends() const noexcept {
    return reinterpret_cast<const SendRecord*>(operands() + num_operands);
  }
};

/// A step as FlaggedWalk reads it. Its locations follow each other: its operands, its output, then
/// the links that it sends to.
struct FlaggedStepRecord {
  std::int32_t part = 0;
  std::int32_t input_index = kNowhere;  ///< as StepRecord's
  std::int32_t output_index = kNowhere;
  std::uint16_t first_location = 0;
  std::uint16_t num_sources = 0;
  std::uint16_t num_destinations = 0;
  std::int16_t own_input = -1;  ///< which of the operands is this rank's input, or -1
  bool finished = false;
};
/// Where a step's data comes from, or goes to.
struct FlaggedLocationRecord {
  static constexpr std::int16_t kInput = -1;
  static constexpr std::int16_t kOutput = -2;
  static constexpr std::int16_t kNone = -3;
  std::uint16_t step = 0;
  std::int16_t end = kNone;  ///< of the program's, or one of the above
  std::uint16_t chunk = 0;   ///< of the chunks that the link carries in a round
  bool sends = false;
  bool last = false;  ///< of a link's chunks that it sends
};
/// A Program for links whose data carries its flags: this header, the ends, the steps, the
/// locations.
struct alignas(16) FlaggedProgram {
  PackedEnds ends;
  std::uint32_t num_steps = 0;
  std::uint32_t num_locations = 0;

  [[nodiscard]] RW_HOST_DEVICE const FlaggedStepRecord* steps() const noexcept {
    return reinterpret_cast<const FlaggedStepRecord*>(receive_ends_of(this) +
                                                      ends.num_receive_ends);
  }
  [[nodiscard]] RW_HOST_DEVICE const FlaggedLocationRecord* locations() const noexcept {
    return reinterpret_cast<const FlaggedLocationRecord*>(steps() + num_steps);
  }
};

/// The offset to add to addresses of this rank's buffers, for a peer in another process.
struct Shift {
  std::int64_t input = 0;
  std::int64_t output = 0;
};
/// A peer of another process that sees this rank's buffers, registered ones.
struct Seen {
  std::int32_t peer = -1;
  Shift shift;
};
inline constexpr std::uint32_t kMaxSeen = 8;  ///< that a launch tells of; to others data is staged

/// Why a block stopped. Written by the first that does, read by the host.
enum class StopReason : std::uint32_t {
  kNone,
  kAborted,
  kTimeout,
  kMismatch,
  kWrongSize,
  kWrongLocation,   ///< of an output in its window (handshake.h)
  kMessageTimeout,  ///< of a message by copy engines; `peer` has its other end
};
struct StopRecord {
  std::uint32_t reason = 0;  ///< StopReason; stored last
  std::int32_t peer = -1;
  CallTag own;  ///< kMismatch, kWrongLocation, and kTimeout of a collective; else of no elements
  CallTag theirs;
  std::uint64_t got = 0;  ///< kWrongSize: bytes; kWrongLocation: as OutputLocation packs them
  std::uint64_t expected = 0;
};

/// Through which host and kernels reach each other while a kernel runs: memory of the host that the
/// device sees.
struct Control {
  std::uint32_t abort = 0;  ///< by the host: all blocks end soon
  StopRecord stop;
};

/// Tags of a rank's last collectives that its peers remember, for when they wait long: call n's is
/// in entry n % kBoardTags. A tag of no elements is none.
inline constexpr std::uint32_t kBoardTags = 8;

/// Where the blocks of a launch note when they began and ended, on their device's clock: memory of
/// the host that the device sees, two words for each block. A word is a stamp, whose number tells
/// which launch it is of: the memory is used again, and a graph that is replayed stamps anew.
struct LaunchStamps {
  std::uint64_t* words = nullptr;  ///< of block 0; null: nothing is noted
  std::uint16_t launch = 0;

  static constexpr unsigned kTimeBits = 48;
  static constexpr std::uint64_t kTimeMask = (std::uint64_t{1} << kTimeBits) - 1;
  [[nodiscard]] static RW_HOST_DEVICE constexpr std::uint64_t stamp(std::uint16_t launch,
                                                                    std::uint64_t clock_ns) {
    return std::uint64_t{launch} << kTimeBits | (clock_ns & kTimeMask);
  }
};

/// Shares and parts of channels are multiples of it, in bytes: a line of ll128, and of caches.
inline constexpr std::size_t kShareGranule = 128;

/// What each of `pieces` pieces of `units` has at most: whole granules. All three count the same,
/// elements or bytes.
constexpr std::size_t whole_share(std::size_t units, std::size_t pieces, std::size_t granule) {
  return ((units + pieces - 1) / pieces + granule - 1) / granule * granule;
}

/// What every launch needs of the other ranks beside the ends of links.
struct LaunchLinks {
  Control* control = nullptr;
  /// By rank: where it remembers this rank's tags, null for one over a network; or null.
  CallTag* const* boards = nullptr;
  const CallTag* board = nullptr;  ///< [rank][kBoardTags]: the others' tags
  /// Where there are network links, in memory of the host: where this rank leaves its last tag, to
  /// travel with data that carries its flags; and those that came, as `board`. Else null.
  CallTag* network_tag = nullptr;
  const CallTag* network_board = nullptr;
  /// Where there are windows between hosts: by rank, where such a rank leaves its tags; else null.
  const CallTag* const* far_boards = nullptr;
  std::uint64_t timeout_ns = 0;  ///< longest wait; 0 is for ever
  std::uint32_t num_ranks = 0;
  std::uint32_t rank = 0;
  LaunchStamps stamps;

  /// The launch notes when its blocks ran, or sends over network links: it needs kernels that do
  /// (KernelKind).
  [[nodiscard]] constexpr bool noted() const noexcept {
    return stamps.words != nullptr || network_tag != nullptr;
  }
};

/// For all threads of block `number`, when what came before it is over.
template <typename Block>
RW_HOST_DEVICE void stamp_begin(const Block& block, const LaunchStamps& stamps,
                                std::uint32_t number) {
  if (stamps.words == nullptr || block.thread() != 0) return;
  block.store_relaxed(stamps.words + std::size_t{2} * number,
                      LaunchStamps::stamp(stamps.launch, block.clock_ns()));
}
/// For all threads of block `number`, after a barrier behind its work. A block that was stopped has
/// no end.
template <typename Block>
RW_HOST_DEVICE void stamp_end(const Block& block, const LaunchStamps& stamps, std::uint32_t number,
                              bool stopped) {
  if (stamps.words == nullptr || block.thread() != 0 || stopped) return;
  block.store_relaxed(stamps.words + std::size_t{2} * number + 1,
                      LaunchStamps::stamp(stamps.launch, block.clock_ns()));
}

/// Tells the peers this rank's call, in case they wait for it. For all threads of a block.
template <typename Block>
RW_HOST_DEVICE void leave_tag(const Block& block, const LaunchLinks& links, const CallTag& tag) {
  if (links.network_tag != nullptr && block.thread() == 0) {
    block.store_tag(links.network_tag, tag);
  }
  if (links.boards == nullptr) return;
  // The last threads: the first ones have links to make ready.
  const unsigned thread = block.size() - 1 - block.thread();
  for (std::uint32_t k = thread; k < links.num_ranks; k += block.size()) {
    if (k == links.rank || links.boards[k] == nullptr) continue;
    block.store_tag(links.boards[k] + tag.call % kBoardTags, tag);
  }
}

/// Checks whether a peer issued a different call than `own`, and records the difference. For a
/// block that waits.
template <typename Block>
RW_HOST_DEVICE bool called_otherwise(const Block& block, const LaunchLinks& links,
                                     const CallTag* own, StopRecord& record) {
  if (links.board == nullptr || own == nullptr) return false;
  for (std::uint32_t r = 0; r < links.num_ranks; ++r) {
    if (r == links.rank) continue;
    // NOLINTBEGIN(bugprone-implicit-widening-of-multiplication-result): some hundred tags
    const CallTag* const boards[] = {
        links.board + r * kBoardTags,
        links.network_board == nullptr ? nullptr : links.network_board + r * kBoardTags,
        links.far_boards == nullptr ? nullptr : links.far_boards[r],
    };
    // NOLINTEND(bugprone-implicit-widening-of-multiplication-result)
    for (const CallTag* board : boards) {
      if (board == nullptr) continue;
      const CallTag theirs = block.load_tag(board + own->call % kBoardTags);
      if (theirs.count == 0 || theirs.call != own->call || theirs == *own) continue;
      record.reason = static_cast<std::uint32_t>(StopReason::kMismatch);
      record.peer = static_cast<std::int32_t>(r);
      record.own = *own;
      record.theirs = theirs;
      return true;
    }
  }
  return false;
}

/// What the largest of a launch's programs need of a block's memory.
struct ProgramRoom {
  // Of protocol simple.
  std::uint32_t max_operands = 0;  ///< of any step
  std::uint32_t max_sends = 0;
  // Of the others.
  std::uint32_t max_sources = 0;    ///< of any step
  std::uint32_t max_steps = 0;      ///< of any program
  std::uint32_t max_locations = 0;  ///< of any program
  std::uint32_t max_ends = 0;       ///< of any program, in one direction; at most a block's threads
};

/// A collective: block b runs channel b. Divisions are made on the host: they take a GPU long.
struct LaunchArgs {
  LaunchLinks links;
  Call call;
  std::size_t output_bytes = 0;  ///< of the whole output buffer
  /// Channel c carries elements [c * share, (c + 1) * share) of each unit...
  std::size_t share = 0;
  /// ...or, where this is not null, from begins[2 * c] up to begins[2 * c + 2], with parts of
  /// begins[2 * c + 1] elements. In device memory.
  const std::uint64_t* begins = nullptr;
  std::size_t part_length = 0;   ///< elements of a part, of the channel that has most
  std::size_t chunk_length = 0;  ///< elements
  std::uint32_t rounds = 0;
  std::uint32_t program_bytes = 0;  ///< of the largest program, a multiple of 16
  ProgramRoom room;
  // Of the protocols other than simple.
  std::uint32_t slot_stride = 0;        ///< bytes from slot to slot
  std::uint32_t chunk_stride = 0;       ///< bytes from chunk to chunk in a slot
  const std::byte* programs = nullptr;  ///< one each program_bytes
  bool waits_together = false;          ///< it is one for KernelKind::kManySources
  // Who sees both buffers: the ranks of this process, and some others.
  bool seen_in_process = false;
  std::uint32_t num_seen = 0;
  Seen seen[kMaxSeen];
};
// Kernel parameters may take 4 KiB on every device.
static_assert(sizeof(LaunchArgs) <= 4096);

/// An address in one round: in this rank's memory, or in a slot, with the flags beside its data.
struct alignas(16) FlaggedLocation {
  std::byte* data = nullptr;  ///< null: nowhere
  std::uint32_t flag = 0;     ///< 0: this rank's memory
};
/// The data from which each round computes a link's slot address.
struct alignas(16) FlaggedOrigin {
  const std::uint64_t* rounds =
      nullptr;                  ///< the link's counter of rounds before this launch, or null
  std::byte* memory = nullptr;  ///< the chunk's in slot 0
};
struct alignas(16) FlaggedShape {
  std::uint32_t bytes = 0;
  std::uint16_t first_location = 0;
  std::uint16_t num_sources = 0;
  std::uint16_t num_destinations = 0;
  std::int16_t scaled_source = -1;
  std::uint32_t divisor = 1;
};

/// Memory that the threads of a block share.
RW_HOST_DEVICE inline std::size_t shared_bytes(const LaunchArgs& args, Protocol protocol) {
  if (protocol != Protocol::kSimple) {
    return args.program_bytes + args.room.max_steps * sizeof(FlaggedShape) +
           args.room.max_locations * (sizeof(FlaggedLocation) + sizeof(FlaggedOrigin));
  }
  return args.program_bytes + stage_bytes(args.room.max_operands, args.room.max_sends);
}

/// A send to, or a receive from, one peer. Both ends choose the protocol, the channels and the
/// chunk by the size alone, so they choose identically.
struct Message {
  std::byte* data = nullptr;
  /// Of this link's channels: SendEnds where it sends, else ReceiveEnds. In device memory.
  const void* ends = nullptr;
  std::size_t bytes = 0;
  std::size_t chunk_bytes = 0;
  std::int64_t shift = 0;  ///< sends: peer's address minus own
  std::int32_t peer = -1;
  std::uint16_t first_block = 0;
  std::uint16_t channels = 1;
  Protocol protocol = Protocol::kSimple;
  bool sends = false;
  bool visible = false;  ///< sends: the peer sees `data`
};
inline constexpr std::uint32_t kMaxMessages = 64;  ///< of a launch

/// Messages to and from different peers, all at once: at most one for each peer and direction.
struct MessageArgs {
  LaunchLinks links;
  std::size_t address_bytes = 0;  ///< as Call's
  std::uint32_t num_messages = 0;
  bool check_tags = true;
  Message messages[kMaxMessages];
};
static_assert(sizeof(MessageArgs) <= 4096);

/// What a kernel of ll or ll128 has code for beside what every call needs. Code that a launch does
/// not use costs it time all the same: notes 0.1 to 0.2 us (8 bytes to 64 KiB), many sources 4 to
/// 15% of the time of two ranks (two H200). Protocol simple has one kernel for all.
enum class KernelKind : std::uint8_t {
  kLeast,
  kNotes,        ///< for LaunchLinks::noted()
  kManySources,  ///< waits for several sources of a step at once; pays where there are more than
                 ///< kFewSources, and ranks wait for each other
};
inline constexpr int kNumKernelKinds = 3;
/// Sources that are waited for one after the other: one of two is this rank's own.
inline constexpr std::uint32_t kFewSources = 2;

constexpr KernelKind kind_of(const LaunchArgs& args) noexcept {
  if (args.links.noted()) return KernelKind::kNotes;
  return args.waits_together ? KernelKind::kManySources : KernelKind::kLeast;
}
constexpr KernelKind kind_of(const MessageArgs& args) noexcept {
  return args.links.noted() ? KernelKind::kNotes : KernelKind::kLeast;
}

}  // namespace ropewalk::executor
