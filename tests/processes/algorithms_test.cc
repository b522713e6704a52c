// Every algorithm between processes: by single copy, and staged.
#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>
#include <utility>

#include "core/testing/share.h"
#include "diagnose/measure.h"
#include "processes/rank_processes.h"
#include "schedule/checked.h"
#include "schedule/compile.h"
#include "schedule/layout.h"

namespace ropewalk::testing {
namespace {

// The measurements that went wrong, in words; "" when all is right.
std::string wrong_results(comm::Communicator& comm) {
  std::string wrong;
  Share share;  // equal on all ranks
  for (const schedule::Algorithm& algorithm : schedule::algorithms()) {
    for (int c = 0; c < kNumCollectives; ++c) {
      const auto collective = static_cast<Collective>(c);
      const int root = has_root(collective) ? comm.size() - 1 : 0;
      const schedule::Request request{collective, comm.size(), root, 1};
      if (!algorithm.supports(request)) continue;
      comm.use_schedule(std::make_shared<const schedule::Checked>(
          schedule::Checked::from(schedule::compile(algorithm.name, request))));
      // Around slots of 32 KiB, and around the chunks that go by address.
      for (const std::size_t count : {1UL, 25UL, 8193UL, 100'003UL, 600'001UL}) {
        for (const bool in_place : {false, true}) {
          if (in_place && !schedule::in_place_input_offset(collective, 0).has_value()) continue;
          if (!share.next()) continue;
          diagnose::MeasureSpec spec;
          spec.collective = collective;
          spec.count = count;
          spec.root = root;
          spec.in_place = in_place;
          spec.iterations = 2;
          const diagnose::MeasureResult result = diagnose::measure(comm, spec);
          if (result.wrong != 0) {
            wrong += fmt::format("{} {} {}{}: {} wrong; ", name(collective), algorithm.name, count,
                                 in_place ? " in place" : "", result.wrong);
          }
        }
      }
    }
  }
  return wrong;
}

void expect_all_right(int size, const RankOptions& options) {
  RankProcesses ranks(size, options, wrong_results);
  for (int r = 0; r < size; ++r) {
    const std::optional<Report> report = ranks.wait(r, std::chrono::milliseconds(280'000));
    ASSERT_TRUE(report.has_value()) << "rank " << r;
    EXPECT_FALSE(report->error) << report->text;
    EXPECT_EQ(report->text, "");
  }
}

TEST(Algorithms, BetweenProcesses) {
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"}};
  for (const int size : {2, 3}) expect_all_right(size, options);
}

TEST(Algorithms, BetweenProcessesWithoutSingleCopy) {
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"}, {"SINGLE_COPY", "off"}};
  for (const int size : {2, 3}) expect_all_right(size, options);
}

// Calls that only move data go on with other algorithms meanwhile (setting ADAPT_COPIES), whose
// links are made by the first call that uses them. The text is what was wrong, or how many forms
// the calls had.
std::string forms_taken(comm::Communicator& comm) {
  std::set<std::pair<std::string, int>> forms;
  for (const Collective collective : {Collective::kAllGather, Collective::kBroadcast}) {
    comm::CollectiveCall call;
    call.collective = collective;
    call.type = DataType::kFloat32;
    call.root = has_root(collective) ? 1 : 0;
    call.count = 65'536;
    diagnose::MeasureSpec spec;
    spec.collective = collective;
    spec.count = call.count;
    spec.root = call.root;
    spec.iterations = 32;
    for (int n = 0; n < 30; ++n) {
      const diagnose::MeasureResult result = diagnose::measure(comm, spec);
      if (result.wrong != 0) {
        return fmt::format("{}, calls up to {}: {} wrong", name(collective), 32 * (n + 1),
                           result.wrong);
      }
      const auto explained = comm.explain(call);
      if (explained.forms.has_value()) forms.emplace(name(collective), explained.forms->form);
    }
  }
  return std::to_string(forms.size());
}

TEST(Algorithms, ChangeBetweenCallsOfProcesses) {
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"}, {"TUNE", "0"}};
  RankProcesses ranks(3, options, forms_taken);
  std::set<std::string> texts;
  for (int r = 0; r < 3; ++r) {
    const std::optional<Report> report = ranks.wait(r, std::chrono::milliseconds(280'000));
    ASSERT_TRUE(report.has_value()) << "rank " << r;
    EXPECT_FALSE(report->error) << report->text;
    texts.insert(report->text);
  }
  ASSERT_EQ(texts.size(), 1U) << "ranks differ: " << *texts.begin() << ", " << *texts.rbegin();
  // By address may not be permitted here: then there is no trial.
  if (*texts.begin() != "0") {
    EXPECT_GT(std::stoi(*texts.begin()), 2) << *texts.begin();
  }
}

}  // namespace
}  // namespace ropewalk::testing
