#include "transport/checksum.h"

#include <array>
#include <bit>
#include <cstring>

namespace ropewalk::transport {
namespace {

// Odd constants with about as many ones as zeros, from the digits of pi.
constexpr std::uint64_t kMultiplyA = 0x243f6a8885a308d3;
constexpr std::uint64_t kMultiplyB = 0x9216d5d98979fb1b;

std::uint64_t step(std::uint64_t lane, std::uint64_t word) noexcept {
  return std::rotl(lane ^ (word * kMultiplyA), 29) * kMultiplyB;
}

}  // namespace

std::uint64_t checksum(const void* data, std::size_t bytes) noexcept {
  const auto* at = static_cast<const std::byte*>(data);
  std::array<std::uint64_t, 4> lanes = {kMultiplyA, kMultiplyB, ~kMultiplyA, ~kMultiplyB};
  std::uint64_t left = bytes;
  std::array<std::uint64_t, 4> words{};
  for (; left >= sizeof words; left -= sizeof words, at += sizeof words) {
    std::memcpy(words.data(), at, sizeof words);
    for (std::size_t i = 0; i < lanes.size(); ++i) lanes[i] = step(lanes[i], words[i]);
  }
  words = {};
  if (left > 0) std::memcpy(words.data(), at, left);
  std::uint64_t sum = bytes * kMultiplyB;
  for (std::size_t i = 0; i < lanes.size(); ++i) sum = step(sum, step(lanes[i], words[i]));
  sum ^= sum >> 32;
  sum *= kMultiplyA;
  return sum ^ sum >> 29;
}

}  // namespace ropewalk::transport
