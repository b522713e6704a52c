#include "tune/form_controller.h"

#include <algorithm>

namespace ropewalk::tune {
namespace {

// What is better by less than this may be noise.
constexpr double kFasterForm = 0.96;
// A form that takes so much longer than the other one is not tried to the end.
constexpr double kHopelessForm = 1.3;
constexpr int kTurns = 4;
// Calls that take so much longer than they did: something has changed.
constexpr double kSlowerCalls = 1.5;

}  // namespace

void FormController::measured(int form, double seconds) {
  if (form != wanted_) return;
  if (unjudged_ > 0) {
    --unjudged_;
  } else if (settled_) {
    watch(seconds);
  } else {
    tried(seconds);
  }
}

void FormController::tried(double seconds) {
  double& least = least_[static_cast<std::size_t>(wanted_)];
  least = least == 0 ? seconds : std::min(least, seconds);
  ++taken_;
  const double other = least_[static_cast<std::size_t>(1 - wanted_)];
  const bool hopeless = other > 0 && taken_ * 2 >= samples_ && least > kHopelessForm * other;
  if (taken_ < samples_ && !hopeless) return;
  ++turn_;
  // One look is enough for a form that seems no better; what seems better is looked at again.
  const bool no_better = turn_ == 2 && least_[1] >= kFasterForm * least_[0];
  if (turn_ == kTurns || hopeless || no_better) {
    settle();
  } else {
    take_turn(1 - wanted_);
  }
}

void FormController::take_turn(int form) {
  wanted_ = form;
  taken_ = 0;
  // It finds the caches as the other form has left them.
  unjudged_ = 1;
}

void FormController::settle() {
  const int better = least_[1] < kFasterForm * least_[0] ? 1 : 0;
  settled_seconds_ = least_[static_cast<std::size_t>(better)];
  gain_ = least_[static_cast<std::size_t>(1 - better)] / settled_seconds_;
  settled_ = true;
  calls_ = 0;
  take_turn(better);
}

void FormController::watch(double seconds) {
  watched_least_ = calls_ % kWatched == 0 ? seconds : std::min(watched_least_, seconds);
  ++calls_;
  const bool changed = calls_ % kWatched == 0 && watched_least_ > kSlowerCalls * settled_seconds_;
  if (!changed && calls_ < pause_) return;
  pause_ = std::min(2 * pause_, kLongestPause);
  try_again();
}

void FormController::try_again() {
  settled_ = false;
  least_ = {};
  turn_ = 0;
  // The wanted form first: its calls are at work.
  taken_ = 0;
}

}  // namespace ropewalk::tune
