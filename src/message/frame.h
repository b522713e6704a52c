// What one chunk of a network link carries for windows: a put's piece, a signal, a get's request or
// a piece of its answer, a flush or its acknowledgement.
//
// Each chunk says by itself where its data belongs, so that a put is cut into chunks of any size.
// They are handled in the order of the link, which is that in which they were started: a signal
// after the data of the puts before it.
#pragma once

#include <cstdint>
#include <optional>

#include "executor/fifo.h"

namespace ropewalk::message {

enum class FrameKind : std::uint8_t {
  kPut = 1,
  kSignal,
  kGet,
  kAnswer,
  kFlush,
  kFlushed,
  kQueued,  ///< lines of a queue of kernels (kernel_queues.h), their data alone
  kTaken,   ///< how many the kernels have taken
};

struct Frame {
  FrameKind kind = FrameKind::kPut;
  std::uint16_t slot = 0;    ///< kSignal, kQueued, kTaken
  std::uint32_t number = 0;  ///< of the window; kAnswer, kFlush and kFlushed: of the operation
  /// kPut: offset in the window; kAnswer: in the operation's data; kSignal: by how much;
  /// kTaken: lines since the window's beginning
  std::uint64_t value = 0;
};

/// What kGet carries besides, as data.
struct GetRequest {
  std::uint64_t bytes = 0;
  std::uint32_t operation = 0;
  std::uint32_t unused = 0;
};

/// A chunk's description has room for all of it.
inline executor::CallTag to_tag(const Frame& frame) {
  executor::CallTag tag;
  tag.count = frame.value;
  tag.call = frame.number;
  tag.root = frame.slot;
  tag.collective = static_cast<std::uint8_t>(frame.kind);
  return tag;
}

/// @return nothing for what is no frame
inline std::optional<Frame> frame_of(const executor::CallTag& tag) {
  if (tag.collective < static_cast<std::uint8_t>(FrameKind::kPut) ||
      tag.collective > static_cast<std::uint8_t>(FrameKind::kTaken)) {
    return std::nullopt;
  }
  return Frame{static_cast<FrameKind>(tag.collective), tag.root, tag.call, tag.count};
}

}  // namespace ropewalk::message
