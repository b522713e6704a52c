#include "tune/chunk_controller.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace ropewalk::tune {
namespace {

constexpr unsigned kPerOctave = 8;
constexpr unsigned kLeastShift = 4;
constexpr ChunkCode kDouble = kPerOctave;
// A quarter of the octave's smallest size.
constexpr ChunkCode kStep = 2;

// What is better by less than this may be noise, and is not worth another chunk.
constexpr double kBetter = 0.97;
// What takes so much longer than the best is not tried to the end.
constexpr double kHopeless = 1.3;
constexpr int kLeastSamples = 2;
constexpr int kMostMisses = 2;
// Calls that take so much longer than they did: something has changed.
constexpr double kChanged = 1.5;

}  // namespace

std::size_t chunk_bytes(ChunkCode code) noexcept {
  const unsigned at = code - 1U;
  return std::size_t{kPerOctave + at % kPerOctave} << (at / kPerOctave + kLeastShift);
}

ChunkCode chunk_code(std::size_t bytes) noexcept {
  // The top bit of `bytes`, and the three below it.
  const auto top = static_cast<unsigned>(std::bit_width(bytes)) - 1U;
  const unsigned octave = top - std::bit_width(kPerOctave) + 1U - kLeastShift;
  const auto mantissa = static_cast<unsigned>(bytes >> (octave + kLeastShift)) & (kPerOctave - 1U);
  return static_cast<ChunkCode>(std::min(octave * kPerOctave + mantissa + 1U, 255U));
}

ChunkController::ChunkController(ChunkCode start, ChunkCode least, ChunkCode most)
    : start_(start), least_(least), most_(most), wanted_(start), best_(start) {
  RW_ASSERT(kNoChunk < least && least <= start && start <= most);
}

void ChunkController::measured(ChunkCode chunk, double seconds) {
  if (chunk != wanted_) return;
  if (unjudged_ > 0) {
    --unjudged_;
    return;
  }
  least_seconds_ = samples_ == 0 ? seconds : std::min(least_seconds_, seconds);
  ++samples_;
  if (state_ == State::kSettled) {
    watch();
    return;
  }
  ++calls_;
  const bool tries = state_ == State::kGrowing || state_ == State::kShrinking;
  const bool hopeless =
      tries && samples_ >= kLeastSamples && least_seconds_ > kHopeless * best_seconds_;
  if (samples_ < kSamples && !hopeless) return;
  judge(least_seconds_);
}

void ChunkController::judge(double seconds) {
  const bool better = seconds < kBetter * best_seconds_;
  switch (state_) {
    case State::kStart:
      best_ = wanted_;
      best_seconds_ = seconds;
      state_ = State::kGrowing;
      grow();
      return;
    case State::kGrowing:
      if (!better) {
        state_ = State::kShrinking;
        shrink();
        return;
      }
      best_ = wanted_;
      best_seconds_ = seconds;
      grow();
      return;
    case State::kShrinking:
      if (better) {
        best_ = wanted_;
        best_seconds_ = seconds;
        misses_ = 0;
      } else if (wanted_ < best_) {
        ++misses_;
      }
      shrink();
      return;
    case State::kStartAgain:
      start_seconds_ = seconds;
      state_ = State::kBestAgain;
      want(best_);
      return;
    case State::kBestAgain:
      if (seconds < kBetter * start_seconds_) {
        gain_ = start_seconds_ / seconds;
        best_seconds_ = seconds;
      } else {
        best_ = start_;
        best_seconds_ = start_seconds_;
      }
      settle();
      return;
    case State::kSettled: return;
  }
}

void ChunkController::grow() {
  if (wanted_ == most_) {
    state_ = State::kShrinking;
    shrink();
    return;
  }
  want(static_cast<ChunkCode>(std::min<unsigned>(wanted_ + kDouble, most_)));
}

void ChunkController::shrink() {
  unsigned next = wanted_;
  do {
    if (next < std::size_t{least_} + kStep || misses_ == kMostMisses || calls_ >= kMostCalls) {
      confirm();
      return;
    }
    next -= kStep;
  } while (next == best_);
  want(static_cast<ChunkCode>(next));
}

void ChunkController::confirm() {
  if (best_ == start_) {
    settle();
    return;
  }
  state_ = State::kStartAgain;
  want(start_);
}

void ChunkController::settle() {
  state_ = State::kSettled;
  want(best_);
}

void ChunkController::want(ChunkCode chunk) {
  wanted_ = chunk;
  samples_ = 0;
}

void ChunkController::watch() {
  if (samples_ < kWatched) return;
  samples_ = 0;
  if (least_seconds_ > kChanged * best_seconds_ && searches_ < kMostSearches) {
    search();
    return;
  }
  best_seconds_ = std::min(best_seconds_, least_seconds_);
}

void ChunkController::search() {
  ++searches_;
  start_ = best_;
  state_ = State::kStart;
  gain_ = 1;
  misses_ = 0;
  calls_ = 0;
  want(best_);
}

}  // namespace ropewalk::tune
