#include "tune/form_controller.h"

#include <algorithm>
#include <limits>

#include "core/error.h"

namespace ropewalk::tune {
namespace {

// What is better by less than this may be noise.
constexpr double kFasterForm = 0.96;
// A form that takes so much longer than another one is not tried to the end.
constexpr double kHopelessForm = 1.3;
// Calls that take so much longer than they did: something has changed.
constexpr double kSlowerCalls = 1.5;

}  // namespace

FormController::FormController(int samples, int pause, int forms)
    : samples_(samples), least_(static_cast<std::size_t>(forms)), pause_(pause) {
  RW_ASSERT(samples > 0 && forms > 1);
  begin_trial();
}

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

double FormController::least_but(int form) const {
  double least = std::numeric_limits<double>::infinity();
  for (int each = 0; each < static_cast<int>(least_.size()); ++each) {
    if (each != form && this->least(each) > 0) least = std::min(least, this->least(each));
  }
  return least;
}

int FormController::best() const {
  int best = 0;
  for (int form = 1; form < static_cast<int>(least_.size()); ++form) {
    const double margin = best == 0 ? kFasterForm : 1;
    if (least(form) > 0 && least(form) < margin * least(best)) best = form;
  }
  return best;
}

void FormController::tried(double seconds) {
  double& least = least_[static_cast<std::size_t>(wanted_)];
  least = least == 0 ? seconds : std::min(least, seconds);
  ++taken_;
  const bool hopeless = taken_ * 2 >= samples_ && least > kHopelessForm * least_but(wanted_);
  if (taken_ >= samples_ || hopeless) next_turn();
}

void FormController::next_turn() {
  if (turns_.empty() && !again_) {
    // One look is enough where the form at work, or the chosen one, is the best: what seems better
    // is looked at again, and so is the one at work.
    again_ = true;
    const int seems = best();
    if (seems != at_work_ && seems != 0) turns_ = {seems, at_work_};
  }
  if (turns_.empty()) {
    settle();
    return;
  }
  const int form = turns_.back();
  turns_.pop_back();
  take_turn(form);
}

void FormController::take_turn(int form) {
  wanted_ = form;
  taken_ = 0;
  // It finds the caches as the other form has left them.
  unjudged_ = 1;
}

void FormController::settle() {
  const int better = best();
  settled_seconds_ = least(better);
  gain_ = least_but(better) / settled_seconds_;
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
  begin_trial();
}

void FormController::begin_trial() {
  settled_ = false;
  again_ = false;
  std::ranges::fill(least_, 0.0);
  // The wanted form first: its calls are at work. Then the others, in their order.
  at_work_ = wanted_;
  taken_ = 0;
  turns_.clear();
  for (int form = static_cast<int>(least_.size()) - 1; form >= 0; --form) {
    if (form != at_work_) turns_.push_back(form);
  }
}

}  // namespace ropewalk::tune
