// Whether the chunks of a shape of call go by address or through slots, by the times that calls of
// the shape have taken (tune/form_controller.h), alike on all ranks.
//
// Which is sooner depends on where the data lies. By address each byte is copied once, by a system
// call, from memory or a cache; through slots it is copied twice, by both ends at once, and what is
// in caches goes through them at several times the rate. The cost model has rates of data from
// memory. A program that calls with the same buffers again has them in its caches if they fit
// there. So the deciding rank judges calls whose buffers were probably in caches
// (executor/host/warm_buffers.h) apart from others, and expects of the next call what it saw of the
// last.
//
// A root may be done before the other ranks, as far as links hold its data. So calls with a root
// are judged by the period of many of them (tune/period_meter.h).
//
// Both ends of a link must cut a call alike, so one rank decides for all (comm/call_decider.h).
// Both forms run the same schedule, so that results are the same bits in either.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

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
  int samples = tune::FormController::kSamples;  ///< FormController's
  friend bool operator==(const FormTrial&, const FormTrial&) = default;
};

/// Nothing for calls that have one form alone, for those in which no rank's data reaches all
/// others, and for those that take so long that trying the other form would be noticed. The same on
/// all ranks.
std::optional<FormTrial> form_trial(const CollectiveCall& call, const Extent& extent,
                                    const tune::Choice& choice);

/// What became of the forms of a shape.
struct FormReport {
  bool adapts = false;   ///< else the rest says nothing
  bool other = false;    ///< the next call has the form that was not chosen
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
  FormShape(std::string algorithm, const FormTrial& trial, bool decides);
  /// The form of the call that begins now: 0 the chosen one, 1 the other one.
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
  [[nodiscard]] bool serves(const std::string& algorithm, const FormTrial& trial) const {
    return algorithm_ == algorithm && trial_ == trial;
  }

 private:
  // Of the rank that decides.
  struct Decider {
    std::array<tune::FormController, 2> controllers;  // data in caches, from memory
    std::optional<tune::PeriodMeter> periods;         // where it times calls together
    std::size_t data = 0;                             // of the call that begins now
  };
  void measured(double seconds, int rank);

  std::string algorithm_;
  FormTrial trial_;
  int form_ = 0;
  std::optional<Decider> decider_;
};

using AgreedForms = CallShapes<FormShape, FormTrial>;

}  // namespace ropewalk::comm
