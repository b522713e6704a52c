// Random programs of puts, gets and signals, with what they must do: a reference for all who run
// them, by threads of the host, streams or the functions of kernels.
//
// A rank has several lanes: threads, streams, or teams of threads. Each lane owns a region in every
// rank's window, which it alone writes, and a slot, on which it alone signals: so what must be
// where follows from its own steps, in their order, whatever the other lanes do meanwhile.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "core/testing/pattern.h"

namespace ropewalk::message::testing {

using Bytes = std::vector<std::byte>;

struct Step {
  enum class Kind { kPut, kGet, kSignal, kFlush };
  Kind kind = Kind::kFlush;
  int lane = 0;
  int target = 0;
  std::size_t offset = 0;   ///< in the window, of puts and gets
  Bytes data;               ///< of a put; what a get must find
  std::uint64_t count = 0;  ///< of a signal
};

/// All lanes of all ranks: every rank makes the same, and runs its own.
class WindowPrograms {
 public:
  static constexpr std::size_t kRegion = 1500;

  WindowPrograms(unsigned seed, int ranks, int lanes)
      : random_(seed),
        ranks_(static_cast<std::size_t>(ranks)),
        lanes_(static_cast<std::size_t>(lanes)),
        regions_(ranks_ * lanes_ * ranks_, Bytes(kRegion)) {}

  /// Of each rank's window.
  static constexpr std::size_t bytes(int ranks, int lanes) {
    return kRegion * static_cast<std::size_t>(ranks) * static_cast<std::size_t>(lanes);
  }
  /// Of 0 to n - 1, the same on all ranks.
  std::size_t any(std::size_t n) { return random_() % n; }

  /// A round: each lane does its steps, of which the last ones signal every rank. Who has waited
  /// for what all ranks signal on a slot finds the regions of that lane as region() says.
  void next_round() {
    steps_.assign(ranks_ * lanes_, {});
    signals_.assign(ranks_ * lanes_ * ranks_, 0);
    for (std::size_t source = 0; source < ranks_; ++source) {
      for (std::size_t lane = 0; lane < lanes_; ++lane) make_steps(source, lane);
    }
  }
  [[nodiscard]] const std::vector<Step>& steps(int source, int lane) const {
    return steps_[of(source, lane)];
  }
  /// By that lane of `source`, to `target`, in this round.
  [[nodiscard]] std::uint64_t signals(int source, int lane, int target) const {
    return signals_[of(source, lane) * ranks_ + static_cast<std::size_t>(target)];
  }
  /// Where the lane's region begins in each window, and what it has to hold in that of `target`.
  [[nodiscard]] std::size_t offset(int source, int lane) const {
    return of(source, lane) * kRegion;
  }
  [[nodiscard]] const Bytes& region(int source, int lane, int target) const {
    return regions_[of(source, lane) * ranks_ + static_cast<std::size_t>(target)];
  }

 private:
  [[nodiscard]] std::size_t of(int rank, int lane) const {
    return static_cast<std::size_t>(rank) * lanes_ + static_cast<std::size_t>(lane);
  }

  void make_steps(std::size_t source, std::size_t lane) {
    const std::size_t which = source * lanes_ + lane;
    const auto signal = [&](std::size_t target, std::uint64_t count) {
      signals_[which * ranks_ + target] += count;
      steps_[which].push_back(
          {Step::Kind::kSignal, static_cast<int>(lane), static_cast<int>(target), 0, {}, count});
    };
    const std::size_t operations = any(7);
    for (std::size_t k = 0; k < operations; ++k) {
      const std::size_t target = any(ranks_);
      const std::size_t most = std::array{std::size_t{9}, std::size_t{200}, kRegion}[any(3)];
      const std::size_t bytes = any(most);
      const std::size_t offset = any(kRegion - bytes + 1);
      Bytes& region = regions_[which * ranks_ + target];
      const auto begin = region.begin() + static_cast<std::ptrdiff_t>(offset);
      Step step;
      step.lane = static_cast<int>(lane);
      step.target = static_cast<int>(target);
      step.offset = which * kRegion + offset;
      switch (any(6)) {
        case 0:
        case 1:
        case 2:
          step.kind = Step::Kind::kPut;
          step.data.resize(bytes);
          ropewalk::testing::fill_pattern(step.data.data(), bytes, random_());
          std::ranges::copy(step.data, begin);
          break;
        case 3: signal(target, 1 + any(3)); continue;
        case 4:
          step.kind = Step::Kind::kGet;
          step.data.assign(begin, begin + static_cast<std::ptrdiff_t>(bytes));
          break;
        default: break;
      }
      steps_[which].push_back(step);
      if (step.kind == Step::Kind::kGet) {
        // Until it has ended no put may change what it reads.
        step.kind = Step::Kind::kFlush;
        step.data.clear();
        steps_[which].push_back(step);
      }
    }
    for (std::size_t target = 0; target < ranks_; ++target) signal(target, 1);
  }

  std::mt19937 random_;
  std::size_t ranks_;
  std::size_t lanes_;
  std::vector<Bytes> regions_;            // by source, lane, target
  std::vector<std::vector<Step>> steps_;  // by source, lane
  std::vector<std::uint64_t> signals_;    // as regions_
};

}  // namespace ropewalk::message::testing
