#include "schedule/contributions.h"

#include <bit>
#include <cstddef>

namespace ropewalk::schedule {
namespace {

constexpr int kWordBits = 64;

std::size_t word_of(int rank) { return static_cast<std::size_t>(rank / kWordBits); }
std::uint64_t bit_of(int rank) { return std::uint64_t{1} << (rank % kWordBits); }

}  // namespace

Contributions Contributions::of(int rank) {
  Contributions one;
  one.size_ = 1;
  one.single_ = rank;
  return one;
}

bool Contributions::contains(int rank) const noexcept {
  if (bits_ == nullptr) return size_ == 1 && single_ == rank;
  return ((*bits_)[word_of(rank)] & bit_of(rank)) != 0;
}

std::optional<int> Contributions::first() const noexcept {
  if (size_ == 0) return std::nullopt;
  if (bits_ == nullptr) return single_;
  for (std::size_t w = 0; w < bits_->size(); ++w) {
    if ((*bits_)[w] != 0) {
      return static_cast<int>(w) * kWordBits + std::countr_zero((*bits_)[w]);
    }
  }
  return std::nullopt;
}

std::optional<int> Contributions::first_missing(int num_ranks) const noexcept {
  if (size_ == num_ranks) return std::nullopt;
  for (int rank = 0; rank < num_ranks; ++rank) {
    if (!contains(rank)) return rank;
  }
  return std::nullopt;
}

Contributions::Bits& Contributions::own_bits(int num_ranks) {
  if (bits_ == nullptr) {
    bits_ = std::make_shared<Bits>(word_of(num_ranks - 1) + 1);
    if (size_ == 1) (*bits_)[word_of(single_)] |= bit_of(single_);
  } else if (bits_.use_count() > 1) {
    bits_ = std::make_shared<Bits>(*bits_);
  }
  return *bits_;
}

std::optional<int> Contributions::merge(const Contributions& other, int num_ranks) {
  if (other.size_ == 0) return std::nullopt;
  if (size_ == 0) {
    *this = other;
    return std::nullopt;
  }
  std::optional<int> twice;
  Bits& bits = own_bits(num_ranks);
  if (other.bits_ == nullptr) {
    std::uint64_t& word = bits[word_of(other.single_)];
    if ((word & bit_of(other.single_)) != 0) return other.single_;
    word |= bit_of(other.single_);
    ++size_;
    return std::nullopt;
  }
  for (std::size_t w = 0; w < bits.size(); ++w) {
    const std::uint64_t theirs = (*other.bits_)[w];
    const std::uint64_t both = bits[w] & theirs;
    if (both != 0 && !twice) twice = static_cast<int>(w) * kWordBits + std::countr_zero(both);
    size_ += std::popcount(theirs & ~bits[w]);
    bits[w] |= theirs;
  }
  return twice;
}

}  // namespace ropewalk::schedule
