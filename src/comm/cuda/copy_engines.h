// Collectives of one host's GPUs by copy engines, so that no multiprocessor is taken from
// computation. Messages go by handshake/copied_messages.h.
//
// A call is, in the order of the caller's stream: a handshake in which every rank hears that all
// outputs may be written; copies of this rank's input straight into the peers' outputs
// (comm/copy_plan.h), those of long calls on streams of their own, so that several engines work at
// once; and a handshake in which it hears that all of its own output has come. Handshakes are
// memory operations of the stream (handshake/stream_handshake.h), or else kernels of one warp
// (executor/block/handshake.h). So a graph captures a call as those and copies.
//
// All ranks must find the same: that the output lies in a buffer which was registered as symmetric
// (link/registered_buffers.h), and how far from its start. The handshakes check that; what they
// cannot do is to stop copies that are enqueued behind them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "comm/copy_plan.h"
#include "comm/cuda/shared_handshake.h"
#include "comm/device_group.h"
#include "comm/executor.h"
#include "executor/block/handshake.h"
#include "executor/cuda/owned.h"
#include "link/cuda/device_blocks.h"
#include "link/cuda/device_links.h"
#include "link/registered_buffers.h"

namespace ropewalk::comm {

/// What one call's buffers make of it.
struct CopiedCall {
  std::vector<RankCopy> copies;
  std::vector<trace::SentBytes> sent;  ///< to other ranks: by peer
  std::uint64_t location = 0;          ///< executor::OutputLocation, packed
};

/// Threads: one at a time. Its device is current in every call, and when it is made and destroyed.
class CopyEngines {
 public:
  /// @param use kAuto or kOn, the same on all ranks, which reach each other's memory
  /// @param by_stream null: kernels do the handshakes
  /// `links` and `blocks` outlive it.
  /// @throws Error kCuda
  CopyEngines(link::DeviceLinks& links, link::DeviceBlocks& blocks, int rank, int size,
              CopyEngineUse use, bool check_tags, std::unique_ptr<SharedHandshake> by_stream);

  /// As DeviceGroup::copied_from.
  [[nodiscard]] std::optional<std::size_t> from_bytes(Collective collective) const noexcept;
  /// Nothing where kernels are to make the call: of another operation, a short one with kAuto, or
  /// with an output that is in no symmetric buffer.
  [[nodiscard]] std::optional<CopiedCall> copied(const CollectiveCall& call, const Extent& extent,
                                                 const link::RegisteredBuffers& buffers);
  /// Enqueues it. @param stamps of one block
  /// @param captured a graph captures it
  /// @throws Error kCuda
  void run(const CopiedCall& call, const executor::CallTag& tag, std::uint64_t timeout_ns,
           const executor::LaunchStamps& stamps, bool captured, cudaStream_t stream);
  /// Messages by copy engines; null where kernels carry all of them.
  [[nodiscard]] handshake::CopiedMessages* messages() const noexcept {
    return by_stream_ == nullptr ? nullptr : by_stream_->messages.get();
  }
  /// From so many bytes on they do, where a buffer is in a symmetric window.
  [[nodiscard]] std::size_t message_bytes() const noexcept {
    return use_ == CopyEngineUse::kOn ? 1 : kLeastCopiedMessage;
  }
  /// Also those beside which there is one in the other direction: a rank that comes second with
  /// both copies both, at half the rate each, since one engine of a GPU serves all memory of other
  /// processes' (two H200).
  [[nodiscard]] bool takes_exchanges() const noexcept { return use_ == CopyEngineUse::kOn; }
  /// Kernels make a call that was just enqueued: others may find that it is not theirs.
  void note(const executor::CallTag& tag, bool captured) noexcept {
    if (by_stream_ != nullptr) by_stream_->handshake->note(tag, captured);
  }

 private:
  // A stream beside the caller's, and an event behind what is on it.
  struct Lane {
    executor::Stream stream;
    executor::Event done{cudaEventDisableTiming};
  };
  void prepare_kernel(link::DeviceBlocks& blocks, int size, bool check_tags);
  void shake_hands(executor::HandshakeArgs& args, bool enters, cudaStream_t stream) const;
  [[nodiscard]] std::size_t lanes_for(const std::vector<RankCopy>& copies, bool instead,
                                      cudaStream_t stream) const;
  void copy(const std::vector<RankCopy>& copies, cudaStream_t stream);

  link::DeviceLinks& links_;
  int rank_;
  CopyEngineUse use_;
  bool told_ = false;  // that a call was left to kernels
  std::unique_ptr<SharedHandshake> by_stream_;
  // Without it.
  executor::HandshakeArgs args_;
  std::shared_ptr<link::DeviceBlock> sends_;
  std::shared_ptr<link::DeviceBlock> receives_;
  std::shared_ptr<link::DeviceBlock> entered_;
  int priority_ = 0;

  executor::Event ready_{cudaEventDisableTiming};
  std::vector<std::unique_ptr<Lane>> lanes_;
};

}  // namespace ropewalk::comm
