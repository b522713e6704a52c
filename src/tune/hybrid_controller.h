// Corrects the rate that links through the host's memory are taken to have beside those between
// GPUs (hybrid_links.h), by when either class of links was done in the calls that use both.
//
// Only in operations without a root, in which all ranks do the same: a root sees when its own part
// was done and not when the others had theirs. On two H200 rates that were corrected by what it
// sees made broadcasts take up to 1.04 times as long (benchmarks/results/hybrid-2xh200.txt).
//
// The shares follow from equation 8 of G. Wang et al., "Blink: Fast and Generic Collectives for
// Distributed ML", MLSys 2020 (arXiv 1910.04940), which has both classes end together if the rates
// are right. By how much later the host's links were done than the others says what their rate is.
// That holds for the share that was tried alone: on two H200 and on two H100 a little more data on
// the host's links made calls take up to half as long again. So a rate is raised in small steps,
// and a change after which calls take longer is taken back for good.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "core/types.h"
#include "tune/hybrid_links.h"

namespace ropewalk::tune {

/// HybridLinks::host_scale as a value of CallAgreement, to a millionth.
[[nodiscard]] std::uint64_t packed_scale(double scale) noexcept;
[[nodiscard]] double unpacked_scale(std::uint64_t value) noexcept;

/// A call over both classes of links, of an operation without a root, on one rank.
struct HybridTimes {
  double scale = 1;  ///< with which its share was calculated
  double share = 0;  ///< that the host's links carried
  double bytes = 0;  ///< of the busiest link, by both
  int hops = 0;
  std::size_t chunk_bytes = 0;
  /// From when the links between GPUs were done until those through the host's memory were;
  /// negative where these were done first.
  double host_later_seconds = 0;
  /// From when its first block began until its last one was done: waits for other ranks included.
  double seconds = 0;
  // Calls of equal ones alone are compared with each other.
  Collective collective = Collective::kAllReduce;
};

/// Pure: what it wants follows from what it was told.
///
/// Threads: one at a time.
class HybridController {
 public:
  explicit HybridController(HybridLinks links) : links_(links) {}

  /// @return a scale that all ranks are to begin with, if there is a new one
  std::optional<double> measured(const HybridTimes& times);
  /// All calls from now on have it.
  void begins(double scale);

  /// Calls that are not judged after each change: they touch memory for the first time.
  static constexpr int kUnjudged = 2;
  /// It decides when it saw so many equal calls, by the median of all.
  static constexpr std::size_t kSamples = 5;
  /// Where there are no such, also to judge a change by.
  static constexpr std::size_t kMostSamples = 50;
  /// Kinds of calls whose times are kept.
  static constexpr std::size_t kMostKinds = 64;
  /// Calls are compared with those of before a change where there are as many of either.
  static constexpr std::uint64_t kCompared = 3;
  /// Calls for which setting up the host's links is a larger part of the time say little about the
  /// rate.
  static constexpr double kMostSetup = 0.15;
  /// What a rate is off by before it is corrected; once it was not, more has to have changed.
  static constexpr double kTolerance = 0.03;
  static constexpr double kToleranceLater = 0.1;
  static constexpr double kLeastScale = 0.25;
  static constexpr double kMostScale = 4;
  /// A rate that looks higher than that is raised so far first.
  static constexpr double kLongestStep = 1.25;
  /// What calls may take longer after a change before it is taken back.
  static constexpr double kSlower = 1.01;
  /// Each change has calls prepared anew: in the life of a communicator, besides those that are
  /// taken back.
  static constexpr int kMostChanges = 10;

 private:
  /// The last kSamples of equal calls.
  struct Recent {
    std::array<double, kSamples> seconds{};
    std::uint64_t calls = 0;  // no bound: of a training run's calls more than an int holds

    void add(double of_call) noexcept { seconds[calls++ % kSamples] = of_call; }
    /// Late ranks make some calls longer, none shorter.
    [[nodiscard]] double shortest() const noexcept;
  };
  using RecentOf = std::map<std::pair<Collective, double>, Recent>;
  [[nodiscard]] bool tells(const HybridTimes& times) const noexcept;
  [[nodiscard]] double direct_seconds(const HybridTimes& times) const noexcept;
  [[nodiscard]] double setup_seconds(const HybridTimes& times, double scale) const noexcept;
  [[nodiscard]] double scale_of(const HybridTimes& times) const noexcept;
  /// Of the calls that were made before the last change and after it: how many times as long they
  /// take, at most; nothing where there are too few of either.
  static std::optional<double> longer(const RecentOf& now, const RecentOf& before) noexcept;
  /// @return what is to be tried next; nothing where the scale stays
  std::optional<double> next_scale(double found);

  HybridLinks links_;
  double scale_ = 1;
  bool waits_ = false;    // for begins()
  bool settled_ = false;  // was right once, or what was tried beyond it was slower
  int changes_ = 0;
  int unjudged_ = kUnjudged;
  std::vector<double> scales_;  // by the calls since the last decision
  RecentOf recent_;             // of all with this scale
  // With which calls were judged before the last change, until that was judged, too.
  std::optional<double> before_;
  RecentOf recent_before_;
  double too_high_ = kMostScale * 2;  // was tried, and slower; so was what follows
  double too_low_ = 0;
};

}  // namespace ropewalk::tune
