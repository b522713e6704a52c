// Whether the chunks of a shape of call go by address or through slots, and where data is only
// moved, by which algorithm (tune::Choice::others): by the times that calls of the shape have taken
// (tune/form_controller.h), alike on all ranks.
//
// Which copies are sooner depends on where the data lies. By address each byte is copied once, by a
// system call, from memory or a cache; through slots it is copied twice, by both ends at once, and
// what is in caches goes through them at several times the rate. The cost model has rates of data
// from memory. A program that calls with the same buffers again has them in its caches if they fit
// there. So the deciding rank judges calls whose buffers were probably in caches
// (executor/host/warm_buffers.h) apart from others, and expects of the next call what it saw of the
// last.
//
// A root may be done before the other ranks, as far as links hold its data. So calls with a root
// are judged by the period of many of them (tune/period_meter.h). Where ranks share processors the
// time of a call is that of the scheduler's turns, and the least of some says nothing of the rest:
// there the mean of some calls is one sample.
//
// Both ends of a link must cut a call alike, so one rank decides for all (comm/call_decider.h). The
// schedules of all forms let its note reach all ranks. Where data is combined all forms run the
// same schedule, so that results are the same bits in each.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/call_decider.h"
#include "comm/collective_call.h"
#include "tune/choice.h"
#include "tune/form_controller.h"
#include "tune/period_meter.h"

namespace ropewalk::comm {

/// Who decides on the form of a call, and how.
struct FormTrial {
  int decider = 0;                               ///< a rank
  int period_calls = 0;                          ///< that PeriodMeter times together; 0: each call
  int together = 1;                              ///< calls whose mean time is one sample
  int samples = tune::FormController::kSamples;  ///< FormController's
  std::uint32_t others = 1;  ///< bit i: the choice's others[i] is a form that calls may have
  [[nodiscard]] int forms() const noexcept { return 1 + std::popcount(others); }
  friend bool operator==(const FormTrial&, const FormTrial&) = default;
};

/// Nothing for calls that have one form alone, for those in which no rank's data reaches all
/// others, and for those that take so long that trying other forms would be noticed. The same on
/// all ranks.
/// @param crowded  ranks share processors
std::optional<FormTrial> form_trial(const CollectiveCall& call, const Extent& extent,
                                    const tune::Choice& choice, bool crowded);

/// The choice of another form than the chosen one, from 1 on.
const std::shared_ptr<const tune::Choice>& choice_of(const tune::Choice& choice,
                                                     const FormTrial& trial, int form);

/// What became of the forms of a shape.
struct FormReport {
  bool adapts = false;  ///< else the rest says nothing
  int form = 0;         ///< of the next call; 0: as chosen
  FormTrial trial;
  bool decides = false;  ///< this rank; only it knows the rest
  /// For data in caches, and from memory: whether a trial is over, and the controller's gain().
  std::array<bool, 2> settled{};
  std::array<double, 2> gain{1, 1};
};

/// A shape of call, as one rank knows it.
///
/// Threads: one at a time.
class FormShape {
 public:
  FormShape(const tune::Choice& choice, const FormTrial& trial, bool decides);
  /// The form of the call that begins now: 0 is the chosen one.
  [[nodiscard]] int form() const noexcept { return form_; }
  /// That call begins, `seconds` after some fixed time.
  /// @param cached  its buffers were used not long ago; asked of the deciding rank alone
  /// @return the note for the tag of the call
  std::uint8_t begins(double seconds, bool cached, int rank);
  /// That call is over, and took `seconds`; `note` is what its tag has by now.
  /// @throws Error kInternal without a note
  void completed(std::uint8_t note, double seconds, int rank);
  [[nodiscard]] FormReport report() const noexcept;
  /// For CallShapes.
  [[nodiscard]] bool serves(const tune::Choice& choice, const FormTrial& trial) const {
    return algorithm_ == choice.algorithm && trial_ == trial;
  }

 private:
  // Of the rank that decides.
  struct Decider {
    std::array<tune::FormController, 2> controllers;  // data in caches, from memory
    std::optional<tune::PeriodMeter> periods;         // where it times calls together
    std::size_t data = 0;                             // of the call that begins now
    // Of calls alike that follow each other, where their mean counts.
    int summed = 0;
    int sum_of = 0;  // their form and data
    double sum = 0;
  };
  void measured(double seconds, int rank);
  // The mean, with the call that took `seconds`, once there are enough.
  std::optional<double> mean_with(double seconds);

  std::string algorithm_;
  std::vector<std::string> names_;  // of its forms
  FormTrial trial_;
  int form_ = 0;
  std::optional<Decider> decider_;
};

using AgreedForms = CallShapes<FormShape, FormTrial>;

}  // namespace ropewalk::comm
