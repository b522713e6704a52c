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
#include "schedule/text.h"

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

// Rank 0 passes ten parts on to rank 1, the first one also to rank 2, which takes it after the last
// one has come by rank 1. A link has eight slots: if the first part lay in one for both readers,
// rank 0 would wait for rank 2 before it could send the ninth.
std::string later_reader(comm::Communicator& comm) {
  std::string text =
      "ropewalk-schedule 1\ncollective broadcast\nalgorithm given\nranks 4\nroot 3\nparts 10\n"
      "channel 0 weight 1\n";
  const auto steps = [&](int rank, int first, int last, const char* step) {
    if (rank >= 0) text += fmt::format("rank {} channel 0\n", rank);
    for (int part = first; part <= last; ++part) text += fmt::format("  b{}: {}\n", part, step);
  };
  steps(0, 0, 0, "3 -> out, 1, 2");
  steps(-1, 1, 9, "3 -> out, 1");
  steps(1, 0, 8, "0 -> out");
  steps(-1, 9, 9, "0 -> out, 2");
  steps(-1, 1, 8, "out -> 2");
  steps(2, 9, 9, "1 -> out");
  steps(-1, 0, 0, "0 -> out");
  steps(-1, 1, 8, "1 -> out");
  steps(3, 0, 9, "in -> out, 0");
  comm.use_schedule(
      std::make_shared<const schedule::Checked>(schedule::Checked::from(schedule::parse(text))));
  diagnose::MeasureSpec spec;
  spec.collective = Collective::kBroadcast;
  spec.count = std::size_t{10} * 8192;  // a slot for each part
  spec.root = 3;
  spec.iterations = 3;
  return fmt::format("{} wrong", diagnose::measure(comm, spec).wrong);
}

TEST(Algorithms, AReaderThatComesLateHoldsUpNoOther) {
  RankOptions options;
  options.settings = {{"TIMEOUT", "20"}, {"SINGLE_COPY", "off"}};
  RankProcesses ranks(4, options, later_reader);
  for (int r = 0; r < 4; ++r) {
    const std::optional<Report> report = ranks.wait(r, std::chrono::milliseconds(60'000));
    ASSERT_TRUE(report.has_value()) << "rank " << r;
    EXPECT_FALSE(report->error) << report->text;
    EXPECT_EQ(report->text, "0 wrong");
  }
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
