#include "handshake/handshake_words.h"

#include <array>
#include <bit>

namespace ropewalk::handshake {
namespace {

using TagWords = std::array<std::uint64_t, 2>;
static_assert(sizeof(TagWords) == sizeof(executor::CallTag));

// Each bit of the result depends on each of `word`: the finalizer of splitmix64.
std::uint64_t scrambled(std::uint64_t word) noexcept {
  word += 0x9e3779b97f4a7c15;
  word = (word ^ word >> 30U) * 0xbf58476d1ce4e5b9;
  word = (word ^ word >> 27U) * 0x94d049bb133111eb;
  return word ^ word >> 31U;
}

}  // namespace

std::uint64_t handshake_value(const HandshakeCall& call, bool check_tags) noexcept {
  std::uint64_t value = scrambled(call.location);
  if (check_tags) {
    for (const std::uint64_t word : std::bit_cast<TagWords>(call.tag)) {
      value = scrambled(value ^ word);
    }
  }
  value &= ~std::uint64_t{7};
  return value == 0 ? 8 : value;
}

void HandshakeWords::remember(int rank, const HandshakeCall& call, std::uint64_t value,
                              std::optional<std::size_t> captured) const noexcept {
  const std::size_t number =
      captured.has_value() ? kRunCalls + *captured % kCapturedCalls : call.tag.call % kRunCalls;
  std::uint64_t* const words = entry(rank, number);
  const auto tag = std::bit_cast<TagWords>(call.tag);
  store(words[0], 0);
  store(words[1], call.location);
  store(words[2], tag[0]);
  store(words[3], tag[1]);
  store(words[0], value);
}

HandshakeWords::Remembered HandshakeWords::read(int rank, std::size_t number) const noexcept {
  const std::uint64_t* const words = entry(rank, number);
  Remembered found;
  found.value = load(words[0]);
  if (found.value == 0) return {};
  found.call.location = load(words[1]);
  found.call.tag = std::bit_cast<executor::CallTag>(TagWords{load(words[2]), load(words[3])});
  return load(words[0]) == found.value ? found : Remembered{};
}

std::optional<HandshakeCall> HandshakeWords::find_value(int rank,
                                                        std::uint64_t value) const noexcept {
  for (std::size_t number = 0; value != 0 && number < kEntries; ++number) {
    const Remembered found = read(rank, number);
    if (found.value == value) return found.call;
  }
  return std::nullopt;
}

std::optional<HandshakeCall> HandshakeWords::find_call(int rank,
                                                       std::uint32_t number) const noexcept {
  const Remembered last = read(rank, number % kRunCalls);
  if (last.value != 0 && last.call.tag.call == number) return last.call;
  for (std::size_t i = kRunCalls; i < kEntries; ++i) {
    const Remembered found = read(rank, i);
    if (found.value != 0 && found.call.tag.call == number) return found.call;
  }
  return std::nullopt;
}

}  // namespace ropewalk::handshake
