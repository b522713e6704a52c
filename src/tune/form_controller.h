// Which of several forms calls of one shape should have, by the times that they take while they are
// called again and again: the one that the cost model chose, or one of the others (Choice::others).
//
// The forms are tried in turn, some calls each; if one seems faster than the one at work, these two
// once more. Each is judged by the least time of its calls, since ranks that come late only ever
// make a call longer. What was not chosen must be faster by more than noise. The trial is repeated
// when calls take much longer than they did, and now and then: a hypervisor may have moved the
// cores, or the program has other data.
#pragma once

#include <vector>

namespace ropewalk::tune {

/// Pure: what it wants follows from what it was told.
///
/// Threads: one at a time.
class FormController {
 public:
  /// @param samples  by which a form is judged, in each of its turns; at least 1
  /// @param pause    calls after the first trial until the next one
  /// @param forms    that there are; at least 2
  explicit FormController(int samples = kSamples, int pause = kPause, int forms = 2);

  /// A call of a form took so long: 0 is the chosen one. Calls of another form than the wanted one
  /// say nothing: one call is always in flight when the next one is decided.
  void measured(int form, double seconds);

  /// The form that calls should have.
  [[nodiscard]] int wanted() const noexcept { return wanted_; }
  [[nodiscard]] bool settled() const noexcept { return settled_; }
  /// The time of the best form that is not wanted, in the last trial, over that of the wanted one;
  /// 1 before it has settled.
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
  void next_turn();
  void take_turn(int form);
  void settle();
  void watch(double seconds);
  void begin_trial();
  [[nodiscard]] double least(int form) const { return least_[static_cast<std::size_t>(form)]; }
  // The form with the least time; the chosen one unless another one is faster by more than noise.
  [[nodiscard]] int best() const;
  // The least time of all forms but one.
  [[nodiscard]] double least_but(int form) const;

  int samples_;
  int wanted_ = 0;
  int at_work_ = 0;  // when this trial began
  bool settled_ = false;
  double gain_ = 1;
  std::vector<double> least_;  // by form, in this trial, in seconds; 0: not tried
  std::vector<int> turns_;  // forms that are still to have a turn in this trial, the next one last
  int unjudged_ = kUnjudged;
  int taken_ = 0;       // samples of this turn
  bool again_ = false;  // the best two have another turn
  double settled_seconds_ = 0;
  int calls_ = 0;  // since the trial
  int pause_;
  double watched_least_ = 0;
};

}  // namespace ropewalk::tune
