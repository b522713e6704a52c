// What a launch hands to its blocks: the call, the programs, the links. One block runs one channel.
//
// Everything here is passed by value as the kernel's parameter, or lies in device memory and is
// used by one launch at a time, in stream order.
#pragma once

#include <cstddef>
#include <cstdint>

#include "executor/block/links.h"
#include "executor/call.h"
#include "executor/program.h"

namespace ropewalk::executor {

inline constexpr std::uint32_t kMaxBlocks = 64;  ///< channels of a launch
inline constexpr std::uint32_t kMaxPeers = 32;   ///< ranks of a communicator on one host

/// A Program as one piece of memory: this header, StepRecords, operands, SendRecords. `end` and the
/// operands name links by the peer's rank.
struct alignas(16) PackedProgram {
  std::uint32_t num_steps = 0;
  std::uint32_t num_operands = 0;
  std::uint32_t num_sends = 0;

  [[nodiscard]] RW_HOST_DEVICE const StepRecord* steps() const noexcept {
    return reinterpret_cast<const StepRecord*>(this + 1);
  }
  [[nodiscard]] RW_HOST_DEVICE const std::int32_t* operands() const noexcept {
    return reinterpret_cast<const std::int32_t*>(steps() + num_steps);
  }
  [[nodiscard]] RW_HOST_DEVICE const SendRecord* sends() const noexcept {
    return reinterpret_cast<const SendRecord*>(operands() + num_operands);
  }
};

/// What must be added to the addresses of this rank's buffers, for a peer of another process.
struct Shift {
  std::int64_t input = 0;
  std::int64_t output = 0;
};
inline constexpr std::uint32_t kMaxShifted = 8;  ///< peers that may have one

/// Why a block stopped. Written by the first that does, read by the host.
enum class StopReason : std::uint32_t { kNone, kAborted, kTimeout, kMismatch, kWrongSize };
struct StopRecord {
  std::uint32_t reason = 0;  ///< StopReason; stored last
  std::int32_t peer = -1;
  CallTag own;
  CallTag theirs;
  std::uint64_t got = 0;  ///< kWrongSize: bytes
  std::uint64_t expected = 0;
};

/// Through which host and kernels reach each other while a kernel runs: memory of the host that the
/// device sees.
struct Control {
  std::uint32_t abort = 0;  ///< by the host: all blocks end soon
  StopRecord stop;
};

/// What every launch needs to reach the other ranks.
struct LaunchLinks {
  BlockSendEnd* sends = nullptr;        ///< [channel][rank]
  BlockReceiveEnd* receives = nullptr;  ///< [channel][rank]
  Control* control = nullptr;
  std::uint64_t timeout_ns = 0;  ///< longest wait; 0 is for ever
  std::uint32_t num_ranks = 0;
};

/// A collective: block b runs channel b. Divisions are made on the host: they take a GPU long.
struct LaunchArgs {
  LaunchLinks links;
  Call call;
  std::size_t output_bytes = 0;  ///< of the whole output buffer
  /// Channel c carries elements [c * share, (c + 1) * share) of each unit...
  std::size_t share = 0;
  /// ...or, where this is not null, [begins[c], begins[c + 1]). In device memory.
  const std::uint64_t* begins = nullptr;
  std::size_t part_length = 0;   ///< elements of a part, of every channel
  std::size_t chunk_length = 0;  ///< elements
  std::uint32_t rounds = 0;
  std::uint32_t program_bytes = 0;  ///< of the largest program, a multiple of 16
  std::uint32_t max_operands = 0;
  std::uint32_t max_sends = 0;
  const std::byte* programs = nullptr;  ///< one each program_bytes
  std::uint32_t visible = 0;            ///< bit r: rank r sees both buffers
  Shift shifts[kMaxShifted];            ///< of the first ranks; the others have none
};
static_assert(kMaxPeers <= 32);
// Kernel parameters may take 4 KiB on every device.
static_assert(sizeof(LaunchArgs) <= 4096);

/// Memory that the threads of a block share.
RW_HOST_DEVICE inline std::size_t shared_bytes(const LaunchArgs& args) {
  return args.program_bytes +
         args.links.num_ranks * (sizeof(BlockSendEnd) + sizeof(BlockReceiveEnd)) +
         args.max_operands * sizeof(Source) + (args.max_sends + 1) * sizeof(Destination);
}

/// A send to, or a receive from, one peer. Both ends choose the protocol, the channels and the
/// chunk by the size alone, so they choose alike.
struct Message {
  std::byte* data = nullptr;
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
inline constexpr std::uint32_t kMaxMessages = 2 * kMaxPeers;

/// Messages to and from different peers, all at once: at most one for each peer and direction.
struct MessageArgs {
  LaunchLinks links[kNumProtocols];
  std::size_t address_bytes = 0;  ///< as Call's
  std::uint32_t num_messages = 0;
  bool check_tags = true;
  Message messages[kMaxMessages];
};
static_assert(sizeof(MessageArgs) <= 4096);

}  // namespace ropewalk::executor
