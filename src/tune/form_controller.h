// Which of two forms calls of one shape should have, by the times that they take while they are
// called again and again: the one that the cost model chose, or the other one (Choice::other).
//
// The forms are tried in turn, some calls each, and once more if the other one seems faster. Each
// is judged by the least time of its calls, since ranks that come late only ever make a call
// longer. The other form must be faster by more than noise. The trial is repeated when calls take
// much longer than they did, and now and then: a hypervisor may have moved the cores, or the
// program has other data.
#pragma once

#include <array>
#include <cstdint>

namespace ropewalk::tune {

/// Pure: what it wants follows from what it was told.
///
/// Threads: one at a time.
class FormController {
 public:
  /// @param samples  by which a form is judged, in each of its turns; at least 1
  /// @param pause    calls after the first trial until the next one
  explicit FormController(int samples = kSamples, int pause = kPause)
      : samples_(samples), pause_(pause) {}

  /// A call of form 0 (the chosen one) or 1 (the other one) took so long. Calls of another form
  /// than the wanted one say nothing: one call is always in flight when the next one is decided.
  void measured(int form, double seconds);

  /// The form that calls should have.
  [[nodiscard]] int wanted() const noexcept { return wanted_; }
  [[nodiscard]] bool settled() const noexcept { return settled_; }
  /// The time of the form that is not wanted, in the last trial, over that of the wanted one; 1
  /// before it has settled.
  [[nodiscard]] double gain() const noexcept { return gain_; }

  static constexpr int kSamples = 4;
  /// Calls that are not judged at first: they make links, and touch memory for the first time.
  static constexpr int kUnjudged = 2;
  /// Twice as many each time, up to the most.
  static constexpr int kPause = 256;
  static constexpr int kLongestPause = 16384;
  /// After a trial, calls that are watched together.
  static constexpr int kWatched = 32;

 private:
  void tried(double seconds);
  void take_turn(int form);
  void settle();
  void watch(double seconds);
  void try_again();

  int samples_;
  int wanted_ = 0;
  bool settled_ = false;
  double gain_ = 1;
  std::array<double, 2> least_{};  // of this trial, in seconds; 0: not tried
  int turn_ = 0;                   // of this trial
  int unjudged_ = kUnjudged;
  int taken_ = 0;  // samples of this turn
  double settled_seconds_ = 0;
  int calls_ = 0;  // since the trial
  int pause_;
  double watched_least_ = 0;
};

}  // namespace ropewalk::tune
