#include "schedule/describe.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "schedule/compile.h"

namespace ropewalk::schedule {
namespace {

using Json = nlohmann::json;

TEST(Describe, ReportHasTheDocumentedKeys) {
  const Schedule schedule = compile("ring", {Collective::kAllReduce, 2, 0, 1});
  const Json json = Json::parse(describe(schedule, check(schedule)));
  EXPECT_EQ(json["collective"], "all_reduce");
  EXPECT_EQ(json["algorithm"], "ring");
  EXPECT_EQ(json["ranks"], 2);
  EXPECT_EQ(json["root"], 0);
  EXPECT_EQ(json["parts"], 2);
  EXPECT_EQ(json["channels"], Json::parse(R"([{"weight":1}])"));
  EXPECT_EQ(json["programs"][0][0][1],
            Json::parse(R"({"block":0,"operands":[1,"in"],"write_output":true,
                            "finished":true,"send":[1]})"));
  EXPECT_EQ(json["accepted"], true);
  EXPECT_EQ(json["defects"], Json::array());
  EXPECT_EQ(json["in_place"], true);
  EXPECT_EQ(json["longest_path"], 2);
  EXPECT_EQ(json["links"], Json::parse(R"([
    {"channel":0,"source":0,"destination":1,"messages":2,"units":1.0},
    {"channel":0,"source":1,"destination":0,"messages":2,"units":1.0}])"));
}

TEST(Describe, ARefusedScheduleIsDescribedToo) {
  Schedule schedule = compile("ring", {Collective::kAllReduce, 2, 0, 1});
  schedule.programs[0][0][0].send[0] = 7;
  schedule.algorithm = std::string(1, static_cast<char>(0xff));  // no UTF-8
  const Json json = Json::parse(describe(schedule, check(schedule)));
  EXPECT_EQ(json["accepted"], false);
  EXPECT_EQ(json["defects"].size(), 1U);
  EXPECT_EQ(json["programs"][0][0][0]["send"][0], 7);
}

TEST(Describe, AlgorithmsNameTheirCollectives) {
  const Json json = Json::parse(describe_algorithms());
  ASSERT_EQ(json.size(), algorithms().size());
  for (const Json& algorithm : json) {
    EXPECT_FALSE(algorithm["help"].get<std::string>().empty());
    EXPECT_FALSE(algorithm["collectives"].empty());
    if (algorithm["name"] == "two_shot") {
      EXPECT_EQ(algorithm["collectives"], Json::parse(R"(["all_reduce"])"));
    }
  }
}

}  // namespace
}  // namespace ropewalk::schedule
