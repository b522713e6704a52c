#include "schedule/text.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "core/error.h"
#include "schedule/compile.h"

namespace ropewalk::schedule {
namespace {

constexpr std::string_view kTwoRanks =
    "ropewalk-schedule 1\n"
    "collective all_reduce\n"
    "algorithm ring\n"
    "ranks 2\n"
    "parts 2\n"
    "channel 0 weight 1\n"
    "rank 0 channel 0\n"
    "  b1: in -> 1\n"
    "  b0: 1 + in => out, 1\n"
    "  b1: 1 -> out\n"
    "rank 1 channel 0\n"
    "  b0: in -> 0\n"
    "  b1: 0 + in => out, 0\n"
    "  b0: 0 -> out\n";

std::string with(std::string_view from, std::string_view to) {
  std::string text(kTwoRanks);
  const auto at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

void expect_error(std::string_view text, std::string_view words) {
  try {
    parse(text);
    ADD_FAILURE() << "parsed:\n" << text;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidArgument);
    EXPECT_NE(std::string_view(error.what()).find(words), std::string_view::npos)
        << "\"" << error.what() << "\" lacks \"" << words << "\"";
  }
}

TEST(Text, CanonicalFormSurvives) {
  const Schedule schedule = parse(kTwoRanks);
  EXPECT_EQ(print(schedule), kTwoRanks);
  EXPECT_EQ(schedule, compile("ring", {Collective::kAllReduce, 2, 0, 1}));
  const Schedule rooted = compile("double_binary_tree", {Collective::kReduce, 5, 3, 4});
  EXPECT_NE(print(rooted).find("\nranks 5\nroot 3\nparts 1\n"), std::string::npos);
  EXPECT_EQ(parse(print(rooted)), rooted);
}

TEST(Text, CommentsSpacesAndOrderOfDestinationsAreFree) {
  EXPECT_EQ(print(parse(with("  b0: 1 + in => out, 1\n",
                             "\n\t# a comment\nb0 :1+in=>  1 ,out # and one more\r\n"))),
            kTwoRanks);
  EXPECT_EQ(print(parse(with("  b0: 0 -> out\n", "  b0: 0 -> out"))), kTwoRanks);
}

TEST(Text, ErrorsNameLineAndColumn) {
  expect_error("", "line 1, column 1: the text ends where \"ropewalk-schedule 1\" should stand");
  expect_error(with("schedule 1", "schedule 2"), "line 1, column 19");
  expect_error(with("all_reduce", "all_reduced"),
               "line 2, column 23: unknown collective \"all_reduced\"");
  expect_error(with("ranks 2", "ranks 0"),
               "line 4, column 7: ranks \"0\" is not within 1 to 65536");
  expect_error(with("ranks 2", "ranks 65537"), "not within 1 to 65536");
  expect_error(with("ranks 2", "ranks 99999999999999999999999999"), "line 4, column 7");
  expect_error(with("ranks 2", "ranks -2"), "\"-2\" where ranks should stand");
  expect_error(with("parts 2\n", "root 2\nparts 2\n"), "root \"2\" is not within 0 to 1");
  expect_error(with("all_reduce", "broadcast"), "where \"root\" should stand");
  expect_error(with("weight 1", "weight 0"), "line 6, column 18");
  expect_error(with("channel 0 weight", "channel 1 weight"), "channel 1 where channel 0");
  expect_error(with("rank 1 channel 0", "rank 2 channel 0"),
               "rank 2 channel 0 where rank 1 channel 0 should stand");
  expect_error(with("b1: in -> 1", "b1: in > 1"), "line 8, column 10");
  expect_error(with("b1: in -> 1", "b1: -> 1"), "an operand");
  expect_error(with("b1: in -> 1", "b1: in ->"), "end of line where a destination");
  expect_error(with("b1: in -> 1", "b1: in -> 1 2"), "after the end");
  expect_error(with("b1: in -> 1", "b1: in -> out, out"), "twice");
  expect_error(with("b1: in -> 1", "b999999999999: in -> 1"), "a block number");
  expect_error(with("b1: in -> 1", "step"), "\"step\" where a step");
  expect_error(with("b1: in -> 1", std::string("b1: in -> \0\xff", 12)), "\\x00\\xff");
  expect_error(std::string(kTwoRanks) + "rank 2 channel 0\n", "after the last rank's steps");
}

TEST(Text, TextThatEndsTooEarlyIsAnError) {
  // Cut before the second rank's section is complete; within it every cut at a line's end is a
  // (shorter) schedule, and every cut within a line an error or a shorter last line.
  const std::size_t second = kTwoRanks.find("rank 1 channel 0");
  for (std::size_t length = 0; length < second; ++length) {
    EXPECT_THROW(parse(kTwoRanks.substr(0, length)), Error) << length;
  }
  expect_error(kTwoRanks.substr(0, second), "line 11, column 1: the text ends before \"rank 1");
}

TEST(Text, AShortTextTakesLittleMemory) {
  // 65536 ranks times 1024 channels would be gigabytes of empty lists.
  std::string text =
      "ropewalk-schedule 1\ncollective all_reduce\nalgorithm x\nranks 65536\nparts 1\n";
  for (int c = 0; c < 1024; ++c) text += fmt::format("channel {} weight 1\n", c);
  expect_error(text + "channel 1024 weight 1\n", "channel number");
  expect_error(text, "the text ends where \"rank\" should stand");
  expect_error(text + "rank 0 channel 0\n", "the text ends before \"rank 0 channel 1\"");
}

TEST(Text, GarbageNeverCrashes) {
  std::mt19937 random(7);
  for (int i = 0; i < 20000; ++i) {
    std::string text(kTwoRanks);
    for (int k = static_cast<int>(random() % 4); k >= 0; --k) {
      text[random() % text.size()] = " \n0123456789b:+->=,outinrank#\xff"[random() % 31];
    }
    try {
      const Schedule schedule = parse(text);
      EXPECT_EQ(parse(print(schedule)), schedule);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInvalidArgument) << text;
    }
  }
}

}  // namespace
}  // namespace ropewalk::schedule
