#include "comm/agreed_forms.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "core/error.h"
#include "schedule/checked.h"

namespace ropewalk::comm {
namespace {

CollectiveCall call_of(Collective collective, std::size_t count, int root = 0) {
  CollectiveCall call;
  call.collective = collective;
  call.count = count;
  call.type = DataType::kUint8;
  call.root = root;
  return call;
}

tune::Choice chosen(const std::string& algorithm, Collective collective, int ranks,
                    bool other = true) {
  tune::Choice choice;
  choice.algorithm = algorithm;
  choice.index = 4;
  choice.chunk_bytes = 32768;
  choice.address_bytes = 32768;
  choice.address_chunk_bytes = std::size_t{1} << 20U;
  choice.schedule = schedule::CheckedSchedules().get(algorithm, {collective, ranks, 0, 1});
  if (!other) return choice;
  choice.other = tune::CopyForm{16384, ~std::size_t{0}, 0};
  choice.others.push_back(std::make_shared<const tune::Choice>(tune::with_other_form(choice)));
  return choice;
}

std::optional<FormTrial> trial_of(const CollectiveCall& call, const std::string& algorithm,
                                  int ranks) {
  return form_trial(call, extent_of(call, 0, ranks), chosen(algorithm, call.collective, ranks),
                    false);
}

constexpr std::size_t kBytes = std::size_t{1} << 20U;

TEST(FormTrial, ARankThatAllHearDecides) {
  for (const int ranks : {2, 5}) {
    const auto trial = trial_of(call_of(Collective::kAllReduce, kBytes), "two_shot", ranks);
    ASSERT_TRUE(trial.has_value());
    EXPECT_EQ(trial->decider, 0);
    EXPECT_EQ(trial->period_calls, 0);
  }
  const auto rooted = trial_of(call_of(Collective::kBroadcast, kBytes), "direct", 3);
  ASSERT_TRUE(rooted.has_value());
  EXPECT_EQ(rooted->decider, 0);
  EXPECT_EQ(rooted->period_calls, 8);
  // Two ranks: the one that sends. Among three no rank's data reaches all.
  EXPECT_EQ(trial_of(call_of(Collective::kGather, kBytes), "direct", 2)->decider, 1);
  EXPECT_FALSE(trial_of(call_of(Collective::kGather, kBytes), "direct", 3).has_value());
  EXPECT_EQ(trial_of(call_of(Collective::kSendRecv, kBytes), "direct", 2)->decider, 0);
  EXPECT_FALSE(trial_of(call_of(Collective::kSendRecv, kBytes), "direct", 3).has_value());
}

TEST(FormTrial, NotOfCallsWithOneFormNorOfTheLongest) {
  const CollectiveCall call = call_of(Collective::kAllReduce, kBytes);
  const Extent extent = extent_of(call, 0, 2);
  const auto has_trial = [&](const CollectiveCall& of, const tune::Choice& choice) {
    return form_trial(of, extent, choice, false).has_value();
  };
  EXPECT_FALSE(has_trial(call, chosen("two_shot", call.collective, 2, false)));
  EXPECT_FALSE(trial_of(call_of(Collective::kAllReduce, 64 * kBytes), "two_shot", 2).has_value());
  tune::Choice given = chosen("two_shot", call.collective, 2);
  given.algorithm = tune::kGivenSchedule;
  EXPECT_FALSE(has_trial(call, given));
  CollectiveCall barrier = call;
  barrier.carried = CarriedType::kNothing;
  EXPECT_FALSE(has_trial(barrier, chosen("two_shot", call.collective, 2)));
  EXPECT_TRUE(has_trial(call, chosen("two_shot", call.collective, 2)));
}

// Only schedules that lead the decider's note to all ranks are tried.
TEST(FormTrial, OtherAlgorithmsWithTheSameDecider) {
  const CollectiveCall call = call_of(Collective::kGather, kBytes);
  tune::Choice choice = chosen("chain", call.collective, 3);
  for (const char* algorithm : {"direct", "chain"}) {
    choice.others.push_back(
        std::make_shared<const tune::Choice>(chosen(algorithm, call.collective, 3, false)));
  }
  const auto trial = form_trial(call, extent_of(call, 0, 3), choice, false);
  ASSERT_TRUE(trial.has_value());
  EXPECT_EQ(trial->others, 0b101U);
  EXPECT_EQ(trial->forms(), 3);
  EXPECT_EQ(choice_of(choice, *trial, 1), choice.others[0]);
  EXPECT_EQ(choice_of(choice, *trial, 2), choice.others[2]);
}

TEST(FormTrial, TheOtherFormIsAChoiceOfItsOwn) {
  const tune::Choice choice = chosen("two_shot", Collective::kAllReduce, 2);
  const tune::Choice other = tune::with_other_form(choice);
  EXPECT_EQ(other.chunk_bytes, 16384U);
  EXPECT_EQ(other.address_chunk_bytes, 0U);
  EXPECT_EQ(other.schedule, choice.schedule);
  EXPECT_LT(other.index, -1) << "prepared calls tell choices by their index";
  EXPECT_EQ(tune::with_other_form(other).index, choice.index);
  EXPECT_EQ(tune::with_other_form(other).address_chunk_bytes, choice.address_chunk_bytes);
}

// The ranks of a communicator, as calls pass among them: each has the decider's note by the end of
// a call.
class Ranks {
 public:
  Ranks(int ranks, const FormTrial& trial) : decider_(trial.decider) {
    for (int rank = 0; rank < ranks; ++rank) forms_.emplace_back(rank);
    for (AgreedForms& forms : forms_) {
      shapes_.push_back(forms.of(call_, extent_of(call_, 0, ranks),
                                 chosen("two_shot", Collective::kAllReduce, 2), trial));
    }
  }
  // @param seconds of a call of each form
  // @return the form that all ranks had
  int call(bool cached, const std::array<double, 2>& seconds) {
    std::set<int> forms;
    std::vector<std::uint8_t> notes;
    for (std::size_t rank = 0; rank < shapes_.size(); ++rank) {
      forms.insert(shapes_[rank]->form());
      // What the others find in their caches says nothing.
      const bool own = static_cast<int>(rank) == decider_ ? cached : !cached;
      notes.push_back(shapes_[rank]->begins(now_, own, static_cast<int>(rank)));
    }
    EXPECT_EQ(forms.size(), 1U);
    const double took = seconds[static_cast<std::size_t>(*forms.begin())];
    now_ += took;
    const std::uint8_t note = notes[static_cast<std::size_t>(decider_)];
    EXPECT_GT(note, 0);
    for (std::size_t rank = 0; rank < shapes_.size(); ++rank) {
      EXPECT_EQ(notes[rank] > 0, static_cast<int>(rank) == decider_);
      shapes_[rank]->completed(note, took, static_cast<int>(rank));
    }
    return *forms.begin();
  }
  [[nodiscard]] FormReport report(int rank) const {
    return *forms_[static_cast<std::size_t>(rank)].report(call_, {kBytes, kBytes, 1});
  }

 private:
  CollectiveCall call_ = call_of(Collective::kAllReduce, kBytes);
  int decider_;
  double now_ = 0;
  std::vector<AgreedForms> forms_;
  std::vector<AgreedForms::Shape*> shapes_;
};

constexpr std::array<double, 2> kSlotsAreFaster = {2e-5, 1e-5};
constexpr std::array<double, 2> kAddressIsFaster = {1e-5, 1.5e-5};

class Forms : public ::testing::TestWithParam<FormTrial> {};

// Data in caches and from memory have forms of their own; the call after a change still has the
// form of the data before.
TEST_P(Forms, FollowTheTimesAndTheData) {
  Ranks ranks(3, GetParam());
  const int many = std::max({1, GetParam().period_calls, GetParam().together});
  for (int n = 0; n < 30 * many; ++n) ranks.call(true, kSlotsAreFaster);
  EXPECT_EQ(ranks.call(true, kSlotsAreFaster), 1);
  for (int n = 0; n < 30 * many; ++n) ranks.call(false, kAddressIsFaster);
  EXPECT_EQ(ranks.call(false, kAddressIsFaster), 0);
  for (int n = 0; n < 4; ++n) {
    EXPECT_EQ(ranks.call(true, kSlotsAreFaster), 0);
    EXPECT_EQ(ranks.call(true, kSlotsAreFaster), 1);
    EXPECT_EQ(ranks.call(false, kAddressIsFaster), 1);
    EXPECT_EQ(ranks.call(false, kAddressIsFaster), 0);
  }
  const FormReport deciding = ranks.report(GetParam().decider);
  EXPECT_TRUE(deciding.adapts && deciding.decides && deciding.form == 0);
  EXPECT_TRUE(deciding.settled[0] && deciding.settled[1]);
  EXPECT_NEAR(deciding.gain[0], 2, 1e-6);
  EXPECT_NEAR(deciding.gain[1], 1.5, 1e-6);
  const FormReport following = ranks.report((GetParam().decider + 1) % 3);
  EXPECT_TRUE(following.adapts && !following.decides && !following.settled[0]);
}

INSTANTIATE_TEST_SUITE_P(All, Forms,
                         ::testing::Values(FormTrial{0, 0, 1, 4}, FormTrial{1, 4, 1, 2},
                                           FormTrial{0, 0, 8, 2}),
                         [](const auto& trial) {
                           return trial.param.period_calls > 0 ? "by_periods"
                                  : trial.param.together > 1   ? "by_means"
                                                               : "by_calls";
                         });

// Where ranks share processors a form that is fast now and then is none that is fast.
TEST(AgreedForms, OfRanksThatShareProcessorsTheMeanCounts) {
  const CollectiveCall call = call_of(Collective::kAllReduce, kBytes / 4);
  const tune::Choice choice = chosen("two_shot", call.collective, 2);
  const auto trial = form_trial(call, extent_of(call, 0, 2), choice, true);
  ASSERT_TRUE(trial.has_value());
  EXPECT_GT(trial->together, 1);
  EXPECT_EQ(form_trial(call, extent_of(call, 0, 2), choice, false)->together, 1);
  AgreedForms::Shape shape(choice, *trial, true);
  std::array<int, 2> made{};
  for (int n = 0; n < 500; ++n) {
    const int form = shape.form();
    ++made[static_cast<std::size_t>(form)];
    const std::uint8_t note = shape.begins(n, true, 0);
    // On average 1.0 and 1.3.
    shape.completed(note, form == 0 ? 1.0 : n % 3 == 0 ? 0.1 : 1.9, 0);
  }
  EXPECT_EQ(shape.form(), 0);
  EXPECT_GT(made[1], 8);
  EXPECT_LE(made[1], 40);
}

TEST(AgreedForms, ACallWithoutANoteIsADefect) {
  AgreedForms::Shape shape(chosen("two_shot", Collective::kAllReduce, 2), {}, false);
  EXPECT_THROW(shape.completed(0, 1e-5, 1), Error);
}

TEST(AgreedForms, AShapeBeginsAnewWithAnotherAlgorithm) {
  AgreedForms forms(0);
  const CollectiveCall call = call_of(Collective::kAllReduce, kBytes);
  const Extent extent = extent_of(call, 0, 2);
  tune::Choice choice = chosen("two_shot", call.collective, 2);
  AgreedForms::Shape* shape = forms.of(call, extent, choice, {});
  shape->completed(2, 1e-5, 0);
  EXPECT_EQ(forms.of(call, extent, choice, {})->form(), 1);
  choice.algorithm = "ring";
  EXPECT_EQ(forms.of(call, extent, choice, {}), shape);
  EXPECT_EQ(shape->form(), 0);
  EXPECT_FALSE(forms.report(call_of(Collective::kAllReduce, 7), extent).has_value());
}

}  // namespace
}  // namespace ropewalk::comm
