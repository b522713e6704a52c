#include "comm/agreed_forms.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "schedule/schedule.h"

namespace ropewalk::comm {
namespace {

// Of a rank's larger buffer: both forms of longer calls are limited by memory, and a few of them
// take as long as a program's start.
constexpr std::size_t kMostTrialBytes = std::size_t{32} << 20U;
constexpr int kMostTrialRanks = 64;
// Calls with a root are timed together until they carry many times what links hold, by which a root
// runs ahead of the others.
constexpr std::size_t kTogetherBytes = std::size_t{8} << 20U;
// Of such sums, and of long calls, which vary less.
constexpr int kFewSamples = 2;
constexpr std::size_t kLongBytes = std::size_t{2} << 20U;
constexpr int kLeastPause = 16;

// A note is the form, and one more: no note is 0.
constexpr std::uint8_t note_of_form(int form) { return static_cast<std::uint8_t>(form + 1); }

}  // namespace

std::optional<FormTrial> form_trial(const CollectiveCall& call, const Extent& extent,
                                    const tune::Choice& choice) {
  const schedule::Schedule& schedule = choice.schedule->schedule();
  if (!choice.other.has_value() || choice.algorithm == tune::kGivenSchedule ||
      call.carried == CarriedType::kNothing || schedule.num_ranks < 2) {
    return std::nullopt;
  }
  const std::size_t bytes = largest_bytes(call, extent, schedule.num_ranks);
  if (bytes > kMostTrialBytes) return std::nullopt;
  const std::optional<int> decider = decider_of(call, schedule, extent, kMostTrialRanks);
  if (!decider.has_value()) return std::nullopt;
  FormTrial trial{*decider};
  if (has_root(call.collective)) {
    trial.sum_calls =
        static_cast<int>((kTogetherBytes + bytes - 1) / std::max<std::size_t>(1, bytes));
  }
  if (bytes >= kLongBytes || trial.sum_calls > 1) trial.samples = kFewSamples;
  return trial;
}

AgreedForms::Shape::Shape(std::string algorithm, const FormTrial& trial, bool decides)
    : algorithm_(std::move(algorithm)), trial_(trial) {
  if (!decides) return;
  const int pause = std::max(kLeastPause, tune::FormController::kPause / trial.sum_calls);
  const tune::FormController fresh(trial.samples, pause);
  decider_.emplace(Decider{.controllers = {fresh, fresh}});
}

std::uint8_t AgreedForms::Shape::begins(bool cached) noexcept {
  if (!decider_.has_value()) return 0;
  decider_->data = cached ? 0 : 1;
  return note_of_form(decider_->controllers[decider_->data].wanted());
}

void AgreedForms::Shape::timed(double seconds, int rank) {
  Decider& decider = *decider_;
  if (decider.sum_form != form_ || decider.sum_data != decider.data) {
    decider.calls = 0;
    decider.seconds = 0;
  }
  decider.sum_form = form_;
  decider.sum_data = decider.data;
  decider.seconds += seconds;
  if (++decider.calls < trial_.sum_calls) return;
  measured(decider.seconds / decider.calls, rank);
  decider.calls = 0;
  decider.seconds = 0;
}

void AgreedForms::Shape::measured(double seconds, int rank) {
  tune::FormController& controller = decider_->controllers[decider_->data];
  const bool settled = controller.settled();
  controller.measured(form_, seconds);
  if (!controller.settled() || settled) return;
  log::info(log::kTuning, "rank {}: {} with data {}: {}, {:.3g} times as fast", rank, algorithm_,
            decider_->data == 0 ? "in caches" : "from memory",
            controller.wanted() == 0 ? "as chosen" : "the form that was not chosen",
            controller.gain());
}

void AgreedForms::Shape::completed(std::uint8_t note, double seconds, int rank) {
  if (note == 0) {
    throw Error(Errc::kInternal, "rank {} was not told the form of the next call", rank);
  }
  if (decider_.has_value()) timed(seconds, rank);
  form_ = note - 1;
}

FormReport AgreedForms::Shape::report() const noexcept {
  FormReport report{true, form_ == 1, decider_.has_value()};
  if (!decider_.has_value()) return report;
  for (std::size_t data = 0; data < report.gain.size(); ++data) {
    report.settled[data] = decider_->controllers[data].settled();
    report.gain[data] = decider_->controllers[data].gain();
  }
  return report;
}

}  // namespace ropewalk::comm
