// The handshakes around copies by copy engines (cuda/copy_engines.h) as memory operations of the
// stream, which need no multiprocessor. executor/block/handshake.h does the same by a kernel.
//
// Each rank has for every other one two words (handshake_words.h) that the other's stream writes:
// entered, "my output may be written", and left, "my copies into yours are done". What is written
// is the call's value, which follows from what the ranks must agree on: operation, length, number
// of the call, location of the output. A rank waits until the word has its own call's value, so it
// copies nothing before all ranks have come with the same call. Then it sets the word to 0, since a
// graph that is replayed writes the same values again. A call of rank a, and what it does with b:
//
//   before the copies:  entered(b, by a) = v;  wait for entered(a, by b) == v;  set that to 0
//   behind them:        left(b, by a) = v;     wait for left(a, by b) == v;     set that to 0
//
// No word is written before it was set to 0. Rank b sets entered(b, by a) to 0 before it writes
// left(a, by b), in the order of its stream. Rank a waits for the latter before it begins its next
// call, so that it finds the former at 0. Likewise b sets left(b, by a) to 0 before it writes
// entered(a, by b) of its next call, for which a waits before it writes left(b, by a) again. So two
// words replace numbers, which operations of a graph cannot count.
//
// The value of a different call ends no wait. HandshakeWatch finds it, and ends waits at the
// deadline and where the rank gives up, by storing the value itself. What is enqueued behind such a
// wait runs: copies which no other rank may take for done. So the watch first sets a word in the
// lines of all others, and a stream that has all copies waits for that word to be 0.
#pragma once

#include <chrono>
#include <cstdint>

#include "executor/block/launch.h"
#include "handshake/handshake_watch.h"
#include "handshake/handshake_words.h"
#include "handshake/stream_operations.h"
#include "transport/window/device/cuda_api.h"

namespace ropewalk::handshake {

/// Threads: one at a time. The GPU's context is current in every call.
class StreamHandshake {
 public:
  /// @param words in memory that the GPU reaches; it and `control` outlive this
  /// @pre cuda.stream_batch is there, and the GPU writes 64-bit words
  StreamHandshake(const transport::window::CudaApi& cuda, const HandshakeWords& words,
                  executor::Control& control, int rank, bool check_tags);

  /// As HandshakeWatch::set_timeout.
  void set_timeout(std::chrono::nanoseconds limit) noexcept { watch_.set_timeout(limit); }

  /// Before the copies: what is enqueued next runs when all ranks are there.
  /// @param captured a graph captures it
  /// @throws Error kCuda
  void enter(const HandshakeCall& call, bool captured, transport::window::CuStream stream);
  /// Behind them: what is enqueued next runs when all copies into this rank are done.
  /// @throws Error kCuda
  void leave(const HandshakeCall& call, transport::window::CuStream stream);
  /// A call of this rank was enqueued that kernels make: the others may be waiting for it here.
  void note(const executor::CallTag& tag, bool captured) noexcept;

 private:
  void remember(const HandshakeCall& call, bool captured) noexcept;
  // Tells the peers, waits for them, and clears what they have told.
  void shake(std::uint64_t value, HandshakePhase phase);

  const HandshakeWords words_;
  const int rank_;
  const bool check_tags_;
  std::size_t captured_ = 0;  // calls
  StreamOperations operations_;
  HandshakeWatch watch_;
};

}  // namespace ropewalk::handshake
