// Messages between two GPUs of one host by copy engines: no kernel is launched, and no
// multiprocessor taken from computation.
//
// A copy's addresses must be known when it is enqueued, and each rank knows its own buffer alone.
// So the hosts of both ranks meet (message_words.h): who comes first with its end of a message says
// where in a window its buffer lies, and who comes second, who knows both, copies. Neither waits
// for the other. Where the first rank's buffer is in no window kernels carry the message, which
// both find alike. In the order of the ranks' streams:
//
//   who is first:   begins;  tells the other that its buffer is ready;        waits until it is
//   done who is second:  begins;                                                   waits until it
//   is done
//     its lane:     waits for that;  waits for ready;  copies;  says done, to both
//
// A lane is a stream for the messages to or from one peer, so that a copy that waits for its peer
// keeps none of the rank's other messages waiting: messages of one group run at once, whatever the
// order in which their peers call for them. The words count messages: no graph can capture this.
//
// Operations of a stream have no deadline. A watch (message_watch.h) ends waits at the deadline and
// where the rank is to stop. A copy behind such a wait runs, unasked; so the watch first sets a
// word for the other rank, which waits for that to be 0 before it takes the message for done.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "executor/block/launch.h"
#include "handshake/message_watch.h"
#include "handshake/message_words.h"
#include "handshake/stream_operations.h"
#include "transport/window/device/cuda_api.h"

namespace ropewalk::handshake {

/// A message that goes by copy engines, on one of its ranks.
struct CopiedMessage {
  int peer = -1;
  MessageEnd end = MessageEnd::kSends;
  std::uint64_t number = 0;  ///< among those of its direction
  bool copies = false;       ///< this rank
  MessageBuffer theirs;      ///< where this rank copies: the peer's buffer
  std::uint64_t own = 0;     ///< address of this rank's buffer
  std::uint64_t peers = 0;   ///< where this rank copies: address of the peer's; set by the caller
};

/// Threads: one at a time. The GPU's context is current in every call, and when it is made and
/// destroyed.
class CopiedMessages {
 public:
  /// More would take many streams.
  static constexpr int kMostRanks = 8;

  /// @param words in memory that the GPU reaches; it and `control` outlive this
  /// @pre cuda.stream_batch and cuda.copy are there, the GPU writes 64-bit words; words.ranks() is
  /// at most kMostRanks
  /// @throws Error kCuda
  CopiedMessages(const transport::window::CudaApi& cuda, const MessageWords& words,
                 executor::Control& control, int rank);
  /// @pre nothing that it enqueued is at work
  ~CopiedMessages();
  CopiedMessages(const CopiedMessages&) = delete;
  CopiedMessages& operator=(const CopiedMessages&) = delete;

  /// A wait may last so long; zero is for ever.
  void set_timeout(std::chrono::nanoseconds limit) noexcept;

  /// This rank comes with its end of the next message to or from `peer`. Waits where its host is
  /// MessageWords::kMostAhead messages ahead of the peer's.
  /// @param address of `buffer` on this rank
  /// @return nothing where kernels carry it
  /// @throws Error kInvalidUsage where the ranks' lengths differ; kTimeout, kAborted
  [[nodiscard]] std::optional<CopiedMessage> meet(int peer, MessageEnd end,
                                                  const MessageBuffer& buffer,
                                                  std::uint64_t address);
  /// Enqueues the beginning of messages that run at once, at most one in each direction to and from
  /// each peer, and the copies that this rank makes. @throws Error kCuda
  void begin(const std::vector<CopiedMessage>& messages, transport::window::CuStream stream);
  /// What is enqueued on the stream next runs when all of them are done. @throws Error kCuda
  void end(const std::vector<CopiedMessage>& messages, transport::window::CuStream stream);

 private:
  struct Lane {
    transport::window::CuStream stream = nullptr;
    std::uint64_t next = 0;  // number of the next message
  };
  [[nodiscard]] Lane& lane(int peer, MessageEnd end) noexcept {
    return lanes_[static_cast<std::size_t>(peer)][static_cast<std::size_t>(end)];
  }
  void copy(const CopiedMessage& message);

  const transport::window::CudaApi& cuda_;
  const MessageWords words_;
  executor::Control& control_;
  const int rank_;
  std::chrono::nanoseconds timeout_{0};
  std::vector<std::array<Lane, 2>> lanes_;  // by peer
  StreamOperations operations_;
  MessageWatch watch_;
};

}  // namespace ropewalk::handshake
