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
constexpr int kMostTrialRanks = 64;  // decider_of()'s
// Of a period of calls with a root: many times what links hold, by which a root runs ahead of the
// others.
constexpr std::size_t kPeriodBytes = std::size_t{8} << 20U;
// Of periods, and of long calls, which vary less.
constexpr int kFewSamples = 2;
constexpr std::size_t kLongBytes = std::size_t{2} << 20U;
constexpr int kLeastPause = 16;

// A note is the form, and one more: no note is 0.
constexpr std::uint8_t note_of_form(int form) { return static_cast<std::uint8_t>(form + 1); }

// Periods are of calls of one form with data of one kind.
constexpr tune::ChunkCode period_code(int form, std::size_t data) {
  return static_cast<tune::ChunkCode>(1 + 2 * data + static_cast<std::size_t>(form));
}

}  // namespace

std::optional<FormTrial> form_trial(const CollectiveCall& call, const Extent& extent,
                                    const tune::Choice& choice) {
  if (!choice.other.has_value()) return std::nullopt;
  const std::size_t bytes = largest_bytes(call, extent, choice.schedule->schedule().num_ranks);
  if (bytes > kMostTrialBytes) return std::nullopt;
  const std::optional<int> decider = decider_of(call, choice, extent, kMostTrialRanks);
  if (!decider.has_value()) return std::nullopt;
  FormTrial trial{*decider};
  if (has_root(call.collective)) {
    trial.period_calls =
        static_cast<int>((kPeriodBytes + bytes - 1) / std::max<std::size_t>(1, bytes));
  }
  if (bytes >= kLongBytes || trial.period_calls > 0) trial.samples = kFewSamples;
  return trial;
}

FormShape::FormShape(std::string algorithm, const FormTrial& trial, bool decides)
    : algorithm_(std::move(algorithm)), trial_(trial) {
  if (!decides) return;
  const int pause =
      std::max(kLeastPause, tune::FormController::kPause / std::max(1, trial.period_calls));
  const tune::FormController fresh(trial.samples, pause);
  decider_.emplace(Decider{{fresh, fresh}, std::nullopt, 0});
  if (trial.period_calls > 0) decider_->periods.emplace(trial.period_calls);
}

std::uint8_t FormShape::begins(double seconds, bool cached, int rank) {
  if (!decider_.has_value()) return 0;
  const std::size_t data = cached ? 0 : 1;
  // A period that ends now is of calls with the same data.
  decider_->data = data;
  if (decider_->periods.has_value()) {
    const auto took = decider_->periods->begins(period_code(form_, data), seconds);
    if (took.has_value()) measured(*took, rank);
  }
  return note_of_form(decider_->controllers[data].wanted());
}

void FormShape::measured(double seconds, int rank) {
  tune::FormController& controller = decider_->controllers[decider_->data];
  const bool settled = controller.settled();
  controller.measured(form_, seconds);
  if (!controller.settled() || settled) return;
  log::info(log::kTuning, "rank {}: {} with data {}: {}, {:.3g} times as fast", rank, algorithm_,
            decider_->data == 0 ? "in caches" : "from memory",
            controller.wanted() == 0 ? "as chosen" : "the form that was not chosen",
            controller.gain());
}

void FormShape::completed(std::uint8_t note, double seconds, int rank) {
  if (note == 0) {
    throw Error(Errc::kInternal, "rank {} was not told the form of the next call", rank);
  }
  if (decider_.has_value() && !decider_->periods.has_value()) measured(seconds, rank);
  form_ = note - 1;
}

FormReport FormShape::report() const noexcept {
  FormReport report{true, form_ == 1, decider_.has_value()};
  if (!decider_.has_value()) return report;
  for (std::size_t data = 0; data < report.gain.size(); ++data) {
    report.settled[data] = decider_->controllers[data].settled();
    report.gain[data] = decider_->controllers[data].gain();
  }
  return report;
}

}  // namespace ropewalk::comm
