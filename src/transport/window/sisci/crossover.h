// From which size on a transfer by DMA is faster than stores of the CPU.
//
// A transfer has its price before its first byte moves, and then moves bytes at another rate than
// the CPU. Both depend on adapter, link and host, so they are measured when a connection is made.
#pragma once

#include <array>
#include <cstddef>
#include <span>

namespace ropewalk::transport::window::sisci {

/// One size, by both methods.
struct TimedCopies {
  std::size_t bytes = 0;
  double stores_us = 0;    ///< stores into the other end's window, and its copy out of there
  double transfer_us = 0;  ///< DMA into registered memory
};

/// The sizes to measure, rising.
inline constexpr std::array<std::size_t, 5> kTimedSizes = {4 << 10, 8 << 10, 16 << 10, 32 << 10,
                                                           64 << 10};
/// Where nothing was measured.
inline constexpr std::size_t kUsualCrossover = 8 << 10;
/// Beyond that the CPU has better to do, whatever it is faster at.
inline constexpr std::size_t kMostStored = 256 << 10;

/// The smallest of the measured sizes from which on transfers are faster; beyond the largest where
/// the lines through the last two meet, at most kMostStored.
/// @param timed sizes rising
std::size_t crossover(std::span<const TimedCopies> timed);

}  // namespace ropewalk::transport::window::sisci
