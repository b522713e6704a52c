#include "schedule/check.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "schedule/compile.h"
#include "schedule/contributions.h"
#include "schedule/text.h"

namespace ropewalk::schedule {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

/// A schedule from its step lists; `head` is "collective X" and, where needed, "root R".
Schedule steps(std::string_view collective, std::string_view root, int ranks, int parts,
               std::string_view lists) {
  std::string text = fmt::format("ropewalk-schedule 1\ncollective {}\nalgorithm test\nranks {}\n",
                                 collective, ranks);
  if (!root.empty()) text += fmt::format("root {}\n", root);
  text += fmt::format("parts {}\nchannel 0 weight 1\n{}", parts, lists);
  return parse(text);
}

constexpr std::string_view kPair =
    "rank 0 channel 0\n b0: in -> 1\n b0: in + 1 => out\n"
    "rank 1 channel 0\n b0: in -> 0\n b0: 0 + in => out\n";

Schedule pair() { return steps("all_reduce", "", 2, 1, kPair); }

std::string replaced(std::string_view text, std::string_view from, std::string_view to) {
  std::string result(text);
  const auto at = result.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return result.replace(at, from.size(), to);
}

Schedule pair_with(std::string_view from, std::string_view to) {
  return steps("all_reduce", "", 2, 1, replaced(kPair, from, to));
}

std::vector<std::string> defects(const Schedule& schedule, int slots = 2) {
  const CheckReport report = check(schedule, slots);
  EXPECT_EQ(report.accepted, report.defects.empty());
  EXPECT_LE(report.defects.size(), 16U);
  if (!report.accepted) {
    EXPECT_FALSE(report.in_place);
    EXPECT_TRUE(report.direct.empty());
  }
  return report.defects;
}

TEST(Check, AcceptsAPair) {
  const CheckReport report = check(pair());
  EXPECT_TRUE(report.accepted);
  EXPECT_TRUE(report.in_place);
  EXPECT_EQ(report.longest_path, 1);
}

TEST(Check, FormOfTheWhole) {
  Schedule s = pair();
  s.num_ranks = 0;
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("0 ranks")));
  s = pair();
  s.num_ranks = std::numeric_limits<int>::max();
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("2147483647 ranks")));
  s = pair();
  s.programs.pop_back();
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("step lists for 1 ranks, not 2")));
  s = pair();
  s.programs[1].clear();
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("rank 1 has step lists for 0 channels")));
  s = pair();
  s.weight = {0};
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("weight 0")));
  s.weight = {};
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("0 channels")));
  s = pair();
  s.root = 1;
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("has no root")));
  s.root = -1;
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("root -1")));
  s = pair();
  s.parts = 0;
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("0 parts")));
  s.parts = std::numeric_limits<int>::max();
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("blocks")));
  s = pair();
  s.collective = static_cast<Collective>(99);
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("collective number 99")));
  EXPECT_THAT(defects(pair(), 0), ElementsAre(HasSubstr("0 slots")));
}

TEST(Check, FormOfAStep) {
  const std::string at = "rank 0, channel 0, step 0 (b0: in -> ";
  EXPECT_THAT(defects(pair_with("in -> 1", "in -> 2")), ElementsAre(at + "2): no rank 2"));
  EXPECT_THAT(defects(pair_with("in -> 1", "in -> 0")),
              ElementsAre(at + "0): a link to the rank itself"));
  EXPECT_THAT(defects(pair_with("in -> 1", "in -> 1, 1")),
              ElementsAre(at + "1, 1): sends to rank 1 twice"));
  EXPECT_THAT(defects(pair_with("in + 1", "1 + in + 1")),
              Contains(HasSubstr("two operands from rank 1")));
  EXPECT_THAT(defects(pair_with("in + 1", "in + 1 + out")),
              Contains(HasSubstr("more than one of \"in\" and \"out\"")));
  EXPECT_THAT(defects(pair_with("b0: in -> 1", "b1: in -> 1")),
              Contains(HasSubstr("block 1 of 1")));
  Schedule s = pair();
  s.programs[0][0][0].operands.clear();
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("no operand")));
  s = pair();
  s.programs[0][0][0].send.clear();
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("no destination")));
  s = pair();
  s.programs[0][0][0].block = -1;
  EXPECT_THAT(defects(s), ElementsAre(HasSubstr("block -1 of 1")));
  s = pair();
  s.programs[0][0][0].operands[0].kind = static_cast<Operand::Kind>(9);
  EXPECT_EQ(defects(s).size(), 1U);
}

TEST(Check, OperandsMustExist) {
  EXPECT_THAT(defects(steps("broadcast", "0", 2, 1,
                            "rank 0 channel 0\n b0: in -> out, 1\n"
                            "rank 1 channel 0\n b0: in -> out\n")),
              ElementsAre(HasSubstr("the rank has no input of block 0")));
  EXPECT_THAT(defects(steps("reduce", "0", 2, 1,
                            "rank 0 channel 0\n b0: in + 1 => out\n"
                            "rank 1 channel 0\n b0: in -> out, 0\n")),
              ElementsAre(HasSubstr("the rank has no output of block 0")));
  EXPECT_THAT(defects(steps("broadcast", "0", 2, 1,
                            "rank 0 channel 0\n b0: in -> out, 1\n b0: in -> 1\n"
                            "rank 1 channel 0\n b0: 0 -> out\n b0: 0 + out -> out\n")),
              ElementsAre(HasSubstr("2 operands, but broadcast does not reduce")));
}

TEST(Check, OutputsMustBeWritten) {
  EXPECT_THAT(defects(steps("all_gather", "", 2, 2,
                            "rank 0 channel 0\n b0: in -> out\n b1: in -> out\n b3: 1 -> out\n"
                            "rank 1 channel 0\n b2: in -> out\n b3: in -> out, 0\n")),
              ElementsAre("rank 0, channel 0: writes 3 of 4 output blocks; nothing ever writes "
                          "part 0 of unit 1 of its output",
                          HasSubstr("rank 1, channel 0: writes 2 of 4")));
}

TEST(Check, WrongResults) {
  EXPECT_THAT(defects(pair_with("0 + in =>", "0 ->")),
              Contains("rank 1, channel 0, step 1 (b0: 0 -> out): the output of block 0 lacks the "
                       "contribution of rank 1"));
  EXPECT_THAT(defects(steps("all_reduce", "", 2, 1,
                            "rank 0 channel 0\n b0: in -> 1\n b0: in + 1 => out\n"
                            "rank 1 channel 0\n b0: in -> 0\n b0: 0 + in => out\n"
                            " b0: in + out -> out\n")),
              ElementsAre(HasSubstr("more than one of")));
  EXPECT_THAT(defects(steps("all_reduce", "", 2, 1,
                            "rank 0 channel 0\n b0: in -> 1\n b0: in + 1 => out, 1\n"
                            "rank 1 channel 0\n b0: in -> 0\n b0: 0 + in => out\n"
                            " b0: 0 + out -> out\n")),
              Contains(HasSubstr("takes the contribution of rank 0 twice")));
  EXPECT_THAT(defects(steps("all_to_all", "", 2, 1,
                            "rank 0 channel 0\n b1: in -> 1\n b0: in -> out\n b2: 1 -> out\n"
                            "rank 1 channel 0\n b2: in -> 0\n b3: in -> out\n b3: 0 -> out\n"
                            " b1: out -> out\n")),
              Contains(HasSubstr("takes a chunk of block 1 that rank 0 sent")));
  EXPECT_THAT(defects(steps("broadcast", "1", 3, 1,
                            "rank 0 channel 0\n b0: 1 -> out\n b0: out -> 2\n"
                            "rank 1 channel 0\n b0: in -> out, 0\n"
                            "rank 2 channel 0\n b0: out -> out\n b0: 0 -> out\n")),
              ElementsAre(HasSubstr("reads the output before anything wrote it")));
}

TEST(Check, AnOutputOverwrittenByLessIsWrong) {
  EXPECT_THAT(defects(pair_with("b0: in + 1 => out\n", "b0: in + 1 => out\n b0: in -> out\n")),
              ElementsAre(AllOf(HasSubstr("rank 0, channel 0, step 2 (b0: in -> out)"),
                                HasSubstr("lacks the contribution of rank 1"))));
  // Partial values at intermediate ranks are allowed.
  EXPECT_THAT(defects(pair_with("b0: in + 1 => out", "b0: in -> out\n b0: out + 1 => out")),
              ElementsAre());
}

TEST(Check, Marks) {
  EXPECT_THAT(defects(pair_with("in + 1 =>", "in + 1 ->")),
              ElementsAre(HasSubstr("completes a value without marking it")));
  EXPECT_THAT(defects(pair_with("b0: in -> 1", "b0: in => 1")),
              ElementsAre(HasSubstr("lacks the contribution of rank 1"),
                          HasSubstr("rank 1, channel 0, step 1")));
  EXPECT_THAT(defects(pair_with("in + 1 => out", "in + 1 => out\n b0: out => out")),
              ElementsAre(HasSubstr("that already was")));
  EXPECT_THAT(defects(pair_with("in + 1 => out", "in + 1 => out\n b0: out -> out")), ElementsAre());
  EXPECT_THAT(defects(steps("broadcast", "0", 1, 1, "rank 0 channel 0\n b0: in => out\n")),
              ElementsAre(HasSubstr("broadcast does not reduce")));
}

TEST(Check, Residue) {
  EXPECT_THAT(defects(pair_with("in + 1 => out", "in + 1 => out, 1")),
              ElementsAre(HasSubstr("rank 0, channel 0, step 1 (b0: in + 1 => out, 1) sends a "
                                    "chunk that rank 1 never takes (1 left on that link)")));
}

TEST(Check, DeadlockNamesRanksStepsAndLinks) {
  // Both wait for the other before they send.
  EXPECT_THAT(
      defects(steps("all_reduce", "", 2, 1,
                    "rank 0 channel 0\n b0: 1 + in => out\n b0: in -> 1\n"
                    "rank 1 channel 0\n b0: 0 + in => out\n b0: in -> 0\n")),
      ElementsAre("deadlock (2 of 2 ranks stuck): rank 0, channel 0, step 0 (b0: 1 + in => out) "
                  "waits for a chunk from rank 1",
                  "deadlock (2 of 2 ranks stuck): rank 1, channel 0, step 0 (b0: 0 + in => out) "
                  "waits for a chunk from rank 0"));
  EXPECT_THAT(defects(pair_with("b0: in -> 1\n", "")),
              ElementsAre(AllOf(HasSubstr("1 of 2 ranks stuck"), HasSubstr("step 1"),
                                HasSubstr("a chunk from rank 0, which has finished"))));
}

TEST(Check, DeadlockForWantOfSlots) {
  // Both send all parts before they take any: needs as many slots as parts.
  std::string lists;
  for (int rank = 0; rank < 2; ++rank) {
    lists += fmt::format("rank {} channel 0\n", rank);
    for (int part = 0; part < 3; ++part) lists += fmt::format(" b{}: in -> {}\n", part, 1 - rank);
    for (int part = 0; part < 3; ++part) {
      lists += fmt::format(" b{}: in + {} => out\n", part, 1 - rank);
    }
  }
  const Schedule schedule = steps("all_reduce", "", 2, 3, lists);
  EXPECT_TRUE(check(schedule, 3).accepted);
  EXPECT_TRUE(check(schedule, 1000).accepted);
  EXPECT_THAT(defects(schedule, 2), ElementsAre(AllOf(HasSubstr("rank 0, channel 0, step 2"),
                                                      HasSubstr("waits for a free slot to rank 1")),
                                                HasSubstr("waits for a free slot to rank 0")));
}

TEST(Check, TheReportIsShortHoweverManyDefects) {
  Schedule s = compile("ring", {Collective::kAllReduce, 32, 0, 1});
  for (auto& strands : s.programs) {
    for (Step& step : strands[0]) step.send = {99};
  }
  EXPECT_EQ(defects(s).size(), 16U);
}

TEST(Check, InputReadAfterTheOutputIsNotInPlace) {
  const Schedule s = steps("all_reduce", "", 2, 1,
                           "rank 0 channel 0\n b0: in -> 1\n b0: in -> out\n b0: in + 1 => out\n"
                           "rank 1 channel 0\n b0: in -> 0\n b0: 0 + in => out\n");
  const CheckReport report = check(s);
  EXPECT_TRUE(report.accepted);
  EXPECT_FALSE(report.in_place);
  // The same data may be read again where nothing is reduced.
  const CheckReport broadcast = check(steps("broadcast", "0", 2, 1,
                                            "rank 0 channel 0\n b0: in -> out\n b0: in -> 1\n"
                                            "rank 1 channel 0\n b0: 0 -> out\n"));
  EXPECT_TRUE(broadcast.in_place);
  // No in-place form.
  EXPECT_FALSE(check(compile("direct", {Collective::kAllToAll, 3, 0, 1})).in_place);
  EXPECT_FALSE(check(compile("direct", {Collective::kSendRecv, 3, 0, 1})).in_place);
}

TEST(Check, DirectSends) {
  // One-shot: the peer may still read the input when this rank writes over it in place.
  const CheckReport one_shot = check(compile("one_shot", {Collective::kAllReduce, 3, 0, 1}));
  for (const DirectSend& flag : one_shot.direct[0][0][0]) {
    EXPECT_TRUE(flag.out_of_place);
    EXPECT_FALSE(flag.in_place);
  }
  // Two-shot: the final value comes back only after the peer has read the input.
  const CheckReport two_shot = check(compile("two_shot", {Collective::kAllReduce, 3, 0, 1}));
  for (const auto& step : two_shot.direct[1][0]) {
    for (const DirectSend& flag : step) {
      EXPECT_TRUE(flag.out_of_place);
      EXPECT_TRUE(flag.in_place);
    }
  }
  // The output is overwritten by the next exchange, while the first partner may still read it.
  const CheckReport doubling =
      check(compile("recursive_doubling", {Collective::kAllReduce, 4, 0, 1}));
  EXPECT_TRUE(doubling.direct[0][0][0][0].out_of_place);
  EXPECT_FALSE(doubling.direct[0][0][1][0].out_of_place);
  EXPECT_FALSE(doubling.direct[0][0][1][0].in_place);
  // What is only handed on lies in no buffer of this rank.
  const CheckReport ring = check(compile("ring", {Collective::kReduceScatter, 3, 0, 1}));
  EXPECT_TRUE(ring.direct[0][0][0][0].out_of_place);
  EXPECT_FALSE(ring.direct[0][0][1][0].out_of_place);
}

TEST(Check, AChainOverAnotherBlockDoesNotCount) {
  // Rank 0 writes its output of block 0 again after an answer that rank 1 sent after reading it.
  const auto flag_when_the_answer_is = [](std::string_view back, std::string_view taken) {
    const CheckReport report =
        check(steps("broadcast", "0", 2, 2,
                    fmt::format("rank 0 channel 0\n b0: in -> out, 1\n b1: in -> out, 1\n {}\n"
                                " b0: in -> out\nrank 1 channel 0\n {}\n",
                                taken, back)));
    EXPECT_TRUE(report.accepted);
    return report.direct[0][0][0][0].out_of_place;
  };
  EXPECT_TRUE(flag_when_the_answer_is("b0: 0 -> out, 0\n b1: 0 -> out", "b0: 1 -> out"));
  // Block 1's answer is skipped in a round where the second part is empty.
  EXPECT_FALSE(flag_when_the_answer_is("b0: 0 -> out\n b1: 0 -> out, 0", "b1: 1 -> out"));
}

TEST(Check, LoadsAndLongestPath) {
  Schedule s = compile("ring", {Collective::kAllReduce, 4, 0, 2});
  s.weight = {3, 1};
  const CheckReport report = check(s);
  ASSERT_EQ(report.links.size(), 8U);
  for (const LinkLoad& link : report.links) {
    EXPECT_EQ(link.messages, 6);
    EXPECT_DOUBLE_EQ(link.units, (link.channel == 0 ? 0.75 : 0.25) * 2 * 3 / 4);
    // The second channel runs in the opposite direction.
    EXPECT_EQ(link.destination, (link.source + (link.channel == 0 ? 1 : 3)) % 4);
  }
  EXPECT_EQ(report.longest_path, 6);
  const auto path = [](std::string_view algorithm, Collective collective, int ranks) {
    return check(compile(algorithm, {collective, ranks, 0, 1})).longest_path;
  };
  EXPECT_EQ(path("ring", Collective::kAllReduce, 1), 0);
  EXPECT_EQ(path("chain", Collective::kBroadcast, 9), 8);
  EXPECT_EQ(path("one_shot", Collective::kAllReduce, 9), 1);
  EXPECT_EQ(path("two_shot", Collective::kAllReduce, 9), 2);
  EXPECT_EQ(path("direct", Collective::kAllToAll, 9), 1);
  EXPECT_EQ(path("recursive_doubling", Collective::kAllReduce, 8), 3);
  EXPECT_EQ(path("recursive_doubling", Collective::kAllReduce, 14), 5);
  EXPECT_EQ(path("binary_tree", Collective::kBroadcast, 15), 3);
}

TEST(Contributions, SharedUntilOneGrows) {
  constexpr int kRanks = 130;
  Contributions a = Contributions::of(3);
  EXPECT_FALSE(a.merge(Contributions::of(129), kRanks));
  const Contributions copy = a;
  EXPECT_FALSE(a.merge(Contributions::of(64), kRanks));
  EXPECT_EQ(a.size(), 3);
  EXPECT_EQ(copy.size(), 2);
  EXPECT_FALSE(copy.contains(64));
  EXPECT_EQ(a.merge(copy, kRanks), 3);
  EXPECT_EQ(a.merge(Contributions::of(129), kRanks), 129);
  EXPECT_EQ(a.size(), 3);
  EXPECT_EQ(a.first_missing(kRanks), 0);
  EXPECT_EQ(a.first(), 3);
  EXPECT_FALSE(a.is_only(3));
  EXPECT_TRUE(Contributions::of(5).is_only(5));
  Contributions none;
  EXPECT_EQ(none.first(), std::nullopt);
  EXPECT_FALSE(none.merge(a, kRanks));
  EXPECT_EQ(none.size(), 3);
}

}  // namespace
}  // namespace ropewalk::schedule
