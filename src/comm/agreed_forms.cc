#include "comm/agreed_forms.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "schedule/schedule.h"

namespace ropewalk::comm {
namespace {

// Of a rank's larger buffer: all forms of longer calls are limited by memory, and a few of them
// take as long as a program's start.
constexpr std::size_t kMostTrialBytes = std::size_t{32} << 20U;
// The same for other algorithms through slots, of which there are several.
constexpr std::size_t kMostBytesOfAlgorithms = std::size_t{4} << 20U;
constexpr int kMostTrialRanks = 64;  // decider_of()'s
// Of a period of calls with a root: many times what links hold, by which a root runs ahead of the
// others.
constexpr std::size_t kPeriodBytes = std::size_t{8} << 20U;
// Where ranks share processors. Four ranks on two cores of an EPYC: by the least of four calls a
// ring was judged 1.5 to 2 times as fast as direct sends, which took 0.8 to 1.6 of its time over
// many calls.
constexpr int kTogether = 8;
// Of periods and means, and of long calls, which vary less.
constexpr int kFewSamples = 2;
constexpr std::size_t kLongBytes = std::size_t{2} << 20U;
constexpr int kLeastPause = 16;

// A note is the form, and one more: no note is 0.
constexpr std::uint8_t note_of_form(int form) { return static_cast<std::uint8_t>(form + 1); }

// Periods are of calls of one form with data of one kind.
constexpr tune::ChunkCode period_code(int form, std::size_t data) {
  return static_cast<tune::ChunkCode>(1 + data + 2 * static_cast<std::size_t>(form));
}

std::string name_of(const tune::Choice& choice) {
  return choice.algorithm + (choice.address_chunk_bytes > 0 ? " by address" : " through slots");
}

}  // namespace

std::optional<FormTrial> form_trial(const CollectiveCall& call, const Extent& extent,
                                    const tune::Choice& choice, bool crowded) {
  if (choice.others.empty()) return std::nullopt;
  const std::size_t bytes = largest_bytes(call, extent, choice.schedule->schedule().num_ranks);
  if (bytes > kMostTrialBytes) return std::nullopt;
  const std::optional<int> decider = decider_of(call, choice, extent, kMostTrialRanks);
  if (!decider.has_value()) return std::nullopt;
  FormTrial trial{*decider};
  if (has_root(call.collective)) {
    trial.period_calls =
        static_cast<int>((kPeriodBytes + bytes - 1) / std::max<std::size_t>(1, bytes));
  }
  if (crowded && trial.period_calls == 0 && bytes < kLongBytes) trial.together = kTogether;
  if (bytes >= kLongBytes || trial.period_calls > 0 || trial.together > 1) {
    trial.samples = kFewSamples;
  }
  trial.others = 0;
  for (std::size_t i = 0; i < choice.others.size(); ++i) {
    const tune::Choice& other = *choice.others[i];
    const bool alike = other.schedule == choice.schedule ||
                       ((other.address_chunk_bytes > 0 || bytes < kMostBytesOfAlgorithms) &&
                        decider_of(call, other, extent, kMostTrialRanks) == decider);
    if (alike) trial.others |= 1U << i;
  }
  return trial.others == 0 ? std::nullopt : std::optional(trial);
}

const std::shared_ptr<const tune::Choice>& choice_of(const tune::Choice& choice,
                                                     const FormTrial& trial, int form) {
  RW_ASSERT(form > 0 && form < trial.forms());
  std::uint32_t left = trial.others;
  for (int before = 1; before < form; ++before) left &= left - 1;
  return choice.others.at(static_cast<std::size_t>(std::countr_zero(left)));
}

FormShape::FormShape(const tune::Choice& choice, const FormTrial& trial, bool decides)
    : algorithm_(choice.algorithm), trial_(trial) {
  names_.push_back(name_of(choice));
  for (int form = 1; form < trial.forms(); ++form) {
    names_.push_back(name_of(*choice_of(choice, trial, form)));
  }
  if (!decides) return;
  const int pause =
      std::max(kLeastPause, tune::FormController::kPause / std::max(1, trial.period_calls));
  const tune::FormController fresh(trial.samples, pause, trial.forms());
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
  const auto form = static_cast<std::size_t>(controller.wanted());
  log::info(log::kTuning,
            "rank {}: {} was chosen; with data {} {} is {:.3g} times as fast as the next one", rank,
            names_.front(), decider_->data == 0 ? "in caches" : "from memory", names_[form],
            controller.gain());
}

void FormShape::completed(std::uint8_t note, double seconds, int rank) {
  if (note == 0) {
    throw Error(Errc::kInternal, "rank {} was not told the form of the next call", rank);
  }
  if (decider_.has_value() && !decider_->periods.has_value()) {
    if (const std::optional<double> mean = mean_with(seconds)) measured(*mean, rank);
  }
  form_ = note - 1;
}

std::optional<double> FormShape::mean_with(double seconds) {
  if (trial_.together == 1) return seconds;
  Decider& decider = *decider_;
  const int call = period_code(form_, decider.data);
  if (call != decider.sum_of) {
    decider.sum_of = call;
    decider.summed = 0;
    decider.sum = 0;
  }
  decider.sum += seconds;
  if (++decider.summed < trial_.together) return std::nullopt;
  decider.sum_of = 0;
  return decider.sum / trial_.together;
}

FormReport FormShape::report() const noexcept {
  FormReport report{true, form_, trial_, decider_.has_value()};
  if (!decider_.has_value()) return report;
  for (std::size_t data = 0; data < report.gain.size(); ++data) {
    report.settled[data] = decider_->controllers[data].settled();
    report.gain[data] = decider_->controllers[data].gain();
  }
  return report;
}

}  // namespace ropewalk::comm
