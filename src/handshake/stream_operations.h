// Operations of a stream on shared words, submitted together.
#pragma once

#include <cstdint>
#include <vector>

#include "handshake/shared_words.h"
#include "transport/window/device/cuda_api.h"

namespace ropewalk::handshake {

/// Threads: one at a time.
class StreamOperations {
 public:
  /// `cuda` outlives it. @pre cuda.stream_batch is there, and the GPU writes 64-bit words
  StreamOperations(const transport::window::CudaApi& cuda, const SharedWords& words)
      : cuda_(cuda), words_(words) {}

  void write(const std::uint64_t& word, std::uint64_t value);
  /// Until the word is `value`.
  void wait_for(const std::uint64_t& word, std::uint64_t value);
  /// Until it is at least that much.
  void wait_for_least(const std::uint64_t& word, std::uint64_t value);
  /// Enqueues them all, in order; there are none afterwards.
  /// @param tried for the error. @throws Error kCuda
  void submit(transport::window::CuStream stream, const char* tried);

 private:
  void add(int operation, const std::uint64_t& word, std::uint64_t value, unsigned flags);

  const transport::window::CudaApi& cuda_;
  const SharedWords words_;
  std::vector<transport::window::CuStreamOperation> pending_;
};

}  // namespace ropewalk::handshake
