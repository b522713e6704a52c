// What links bring for windows in the memory of one GPU: data and counters are written in the
// order of one stream, and nobody waits for it on the host.
//
// Data is copied into pinned memory first, so that the link's slot is free at once, and the driver
// needs no memory of its own, for which it would wait for kernels that may wait for this data.
//
// Threads: one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "transport/window/device/gpu.h"

namespace ropewalk::message {

class GpuInbox {
 public:
  /// The most bytes of one put.
  static constexpr std::size_t kMostBytes = std::size_t{128} << 10U;

  /// @pre `gpu` was warmed up
  /// @throws Error kCuda
  explicit GpuInbox(transport::window::Gpu& gpu);
  ~GpuInbox();
  GpuInbox(const GpuInbox&) = delete;
  GpuInbox& operator=(const GpuInbox&) = delete;

  /// Writes to `to`, an address of the GPU, what is at `from` now. @pre 0 < bytes <= kMostBytes
  /// @throws Error kCuda; kTimeout, if the GPU moves nothing for 10 s
  void put(std::uint64_t to, const std::byte* from, std::size_t bytes);
  /// Sets a counter, which the GPU and the host see after all that was put before.
  /// @throws Error kCuda
  void raise(std::uint64_t counter, std::uint64_t value);
  /// All is written. @throws Error kCuda
  [[nodiscard]] bool idle();
  /// Waits until it is. @throws as put()
  void settle();

 private:
  static constexpr std::size_t kPieces = 8;
  struct Piece {
    transport::window::MarkWord mark;
    std::uint64_t last = 0;  // what the mark becomes when the stream has read the piece
  };

  // Where the next `bytes` go; the stream has read what was there.
  std::byte* take(std::size_t bytes);

  transport::window::Gpu& gpu_;
  transport::window::CuStream stream_ = nullptr;
  std::byte* pieces_ = nullptr;  // pinned
  std::array<Piece, kPieces> in_use_;
  std::size_t piece_ = 0;  // being filled,
  std::size_t used_ = 0;   // so far
  bool pending_ = false;
};

}  // namespace ropewalk::message
