// The handshakes around copies between GPUs, which copy engines make (comm/cuda/copy_engines.h):
// one warp on the stream of the copies, before them and behind them.
//
// Each rank sends every other one a few words over their link of protocol ll, and waits for theirs.
// Before the copies they say that the rank's output may be written; behind them, that its copies to
// that peer are done. So a rank copies nothing into a peer that is not there yet, and goes on when
// all of its output has come. The links' counters number the handshakes, in device memory: calls
// follow each other without the host, and graphs are replayed.
//
// The first word is where the rank's output lies in its window, which the ranks have promised to be
// alike: copies go to the addresses that follow from it. Before the copies the rank's call comes
// with it. A difference ends the operation by the name of the rank. What waits ends as every kernel
// does: at the deadline, when the host says so, and when a peer issued another call, to which it
// comes by other kernels.
//
// A kernel cannot take back what was enqueued behind it: the copies of a rank that gave up run all
// the same, into the windows of the others.
#pragma once

#include <cstddef>
#include <cstdint>

#include "core/host_device.h"
#include "executor/block/launch.h"
#include "executor/block/links.h"

namespace ropewalk::executor {

/// Where an output lies: in which registered window, and how far from its start.
struct OutputLocation {
  std::uint64_t window = 0;  ///< its number; told modulo 2^16
  std::uint64_t offset = 0;  ///< bytes, below 2^48

  static constexpr unsigned kOffsetBits = 48;
  [[nodiscard]] constexpr std::uint64_t packed() const noexcept {
    return window << kOffsetBits | (offset & ((std::uint64_t{1} << kOffsetBits) - 1));
  }
  [[nodiscard]] static constexpr OutputLocation unpacked(std::uint64_t word) noexcept {
    return {word >> kOffsetBits, word & ((std::uint64_t{1} << kOffsetBits) - 1)};
  }
};

/// Words of a handshake over one link: a location, and before the copies a tag.
inline constexpr int kHandshakeWords = 3;
union HandshakeTag {
  CallTag tag;
  std::uint64_t words[2];
};
static_assert(sizeof(HandshakeTag) == sizeof(CallTag));

/// Passed by value; what it points to is device memory that one launch at a time uses.
struct HandshakeArgs {
  LaunchLinks links;
  CallTag tag;  ///< with kByCopyEngines
  /// Of protocol ll, to and from each peer.
  const SendEnd* sends = nullptr;
  const ReceiveEnd* receives = nullptr;
  std::uint32_t* entered = nullptr;  ///< 1 when the handshake before the copies ended well
  std::uint64_t location = 0;        ///< OutputLocation::packed()
  std::uint32_t num_peers = 0;
  std::uint32_t slot_stride = 0;  ///< bytes from slot to slot
  bool check_tags = true;
  bool enters = true;  ///< before the copies; else behind them
};

/// For all threads of a block, of a launch that begins when all before it is over. It has no
/// prologue(): what comes behind it would begin meanwhile, and hold multiprocessors.
template <typename Block>
RW_HOST_DEVICE void run_handshake(Block& block, const HandshakeArgs& args) {
  if (args.enters) {
    if (args.check_tags) leave_tag(block, args.links, args.tag);
    stamp_begin(block, args.links.stamps, 0);
  }
  const auto slot = [&](std::byte* memory, std::uint64_t turn) {
    return memory + (turn - 1) % kFlaggedSlots * args.slot_stride;
  };
  // Peers must not take copies for done that may have gone to a wrong location.
  bool stopped = !args.enters && block.load(args.entered) == 0;
  // What the stream did before is over for the peers, too.
  block.fence_release();
  const HandshakeTag own = {args.tag};
  const std::uint64_t words[kHandshakeWords] = {args.location, own.words[0], own.words[1]};
  const int num_words = args.enters ? kHandshakeWords : 1;
  constexpr std::size_t kLine = 16;
  RW_ROLLED
  for (std::uint32_t k = block.thread(); k < args.num_peers && !stopped; k += block.size()) {
    const SendEnd& end = args.sends[k];
    const std::uint64_t turn = block.load(&end.kept->published) + 1;
    const bool has_room =
        block.wait([&] { return block.load_acquire(end.consumed_at) + kFlaggedSlots >= turn; });
    if (!has_room) {
      stopped = true;
      break;
    }
    std::byte* to = slot(end.memory, turn);
    for (int w = 0; w < num_words; ++w, to += kLine) {
      block.store_line(to, flag_of(static_cast<std::uint32_t>(turn)), words[w]);
    }
    end.kept->published = turn;
  }
  RW_ROLLED
  for (std::uint32_t k = block.thread(); k < args.num_peers && !stopped; k += block.size()) {
    const ReceiveEnd& end = args.receives[k];
    const std::uint64_t turn = block.load(&end.kept->received) + 1;
    // As FlaggedWalk: what came before this turn has been read.
    block.store_relaxed(end.consumed_at, turn - 1);
    std::uint64_t theirs[kHandshakeWords] = {words[0], words[1], words[2]};
    const std::byte* from = slot(end.memory, turn);
    for (int w = 0; w < num_words && !stopped; ++w, from += kLine) {
      stopped = !block.load_line(from, flag_of(static_cast<std::uint32_t>(turn)), theirs[w]);
    }
    if (stopped) break;
    end.kept->received = turn;
    StopRecord record;
    if (args.check_tags && (theirs[1] != words[1] || theirs[2] != words[2])) {
      HandshakeTag tag = own;
      tag.words[0] = theirs[1];
      tag.words[1] = theirs[2];
      record.reason = static_cast<std::uint32_t>(StopReason::kMismatch);
      record.theirs = tag.tag;
    } else if (theirs[0] != args.location) {
      record.reason = static_cast<std::uint32_t>(StopReason::kWrongLocation);
      record.got = theirs[0];
      record.expected = args.location;
    } else {
      continue;
    }
    record.peer = end.peer;
    record.own = args.tag;
    block.stop(record);
    stopped = true;
  }
  block.fence_release();  // and acquires: the peers' copies are there for what follows
  stopped = block.sync_or(stopped);
  if (!args.enters) {
    stamp_end(block, args.links.stamps, 0, stopped);
  } else if (block.thread() == 0) {
    *args.entered = stopped ? 0 : 1;
  }
}

}  // namespace ropewalk::executor
