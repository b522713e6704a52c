#include "monitor/job_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <vector>

namespace ropewalk::monitor {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

RankSummary summary_of(int rank, std::uint64_t call) {
  RankSummary summary;
  summary.rank = rank;
  summary.host = rank < 2 ? "oak" : "elm";
  summary.process = 100 + rank;
  summary.call = call;
  summary.operation = "all_reduce of 8 float32 (sum)";
  summary.counts = {{"all_reduce", call}, {"send", 7}};
  summary.links = {{(rank + 1) % 3, "shared memory", 1000}, {0, "tcp \"eth0\"", 5}};
  return summary;
}

CommunicatorSummary three_ranks() {
  CommunicatorSummary all{0xabc, 3, {}, {}};
  for (int rank = 0; rank < 3; ++rank) all.by_rank[rank] = summary_of(rank, 5);
  return all;
}

TEST(RankSummary, SurvivesItsText) {
  RankSummary summary = summary_of(2, 5);
  summary.device = 3;
  summary.inside = true;
  summary.failure = "rank 1 died: \"killed\"";
  summary.stalled_seconds = 1.5;
  const std::optional<RankSummary> again = rank_summary(to_text(summary));
  ASSERT_TRUE(again.has_value());
  EXPECT_EQ(to_text(*again), to_text(summary));
  EXPECT_EQ(again->device, 3);
  EXPECT_EQ(again->counts, summary.counts);
  ASSERT_EQ(again->links.size(), 2U);
  EXPECT_EQ(again->links[1].over, "tcp \"eth0\"");
  EXPECT_FALSE(rank_summary("{}").has_value());
  EXPECT_FALSE(rank_summary("rank 2").has_value());
}

// Ranks are asked one after the other: who is behind is absent only if others were ahead before.
TEST(CommunicatorSummary, TellsWhoIsAbsent) {
  CommunicatorSummary all = three_ranks();
  all.by_rank[2] = summary_of(2, 4);
  EXPECT_THAT(all.absent(), IsEmpty());
  all.before = {{0, 4}, {1, 4}, {2, 3}};
  EXPECT_THAT(all.absent(), IsEmpty());
  all.before = {{0, 5}, {1, 5}, {2, 4}};
  EXPECT_THAT(all.absent(), ElementsAre(2));
  all.by_rank.erase(1);
  EXPECT_THAT(all.missing(), ElementsAre(1));
}

TEST(RasText, IsAsNccls) {
  const std::vector<CommunicatorSummary> fine = {three_ranks()};
  const std::string text = ras_text(fine, 0.25, false);
  EXPECT_THAT(text, HasSubstr("Job summary\n===========\n"));
  EXPECT_THAT(text, HasSubstr("Communicators... (0.250s)\n=========================\n"));
  EXPECT_THAT(text, HasSubstr("\n    0         1         2       1-2         3         3   RUNNING"
                              "      OK\n"));
  EXPECT_THAT(text, HasSubstr("No errors"));
  std::vector<CommunicatorSummary> wrong = fine;
  wrong[0].by_rank[2] = summary_of(2, 4);
  wrong[0].before = {{0, 5}, {1, 5}, {2, 4}};
  const std::string short_text = ras_text(wrong, 0, false);
  EXPECT_THAT(short_text, HasSubstr("#0-0 (0000000000000abc) MISMATCH\n"
                                    "  Communicator ranks have different collective operation "
                                    "counts\n  2 ranks have launched up to operation 5\n"));
  EXPECT_THAT(short_text, HasSubstr("Rank 2 has launched up to operation 4 -- GPU 0 managed by "
                                    "process 102 on node elm"));
  EXPECT_THAT(short_text, Not(HasSubstr("Rank 0")));
  EXPECT_THAT(ras_text(wrong, 0, true), HasSubstr("Rank 0 has launched up to operation 5"));
  wrong[0].by_rank.erase(2);
  EXPECT_THAT(ras_text(wrong, 0, false), HasSubstr("Rank 2 does not respond"));
  EXPECT_THAT(ras_text(wrong, 0, false), HasSubstr("INCOMPLETE"));
  wrong[0].by_rank[0].failure = "rank 2 died";
  EXPECT_THAT(ras_text(wrong, 0, false), HasSubstr("  Rank 0: rank 2 died\n"));
  EXPECT_THAT(ras_text({}, 0, false), HasSubstr("No errors"));
}

TEST(RasJson, HasNcclsFields) {
  std::vector<CommunicatorSummary> all = {three_ranks()};
  all[0].by_rank.erase(1);
  all[0].by_rank[2].failure = "it broke";
  const json report = json::parse(ras_json(all, 0.5));
  EXPECT_EQ(report["communicators_count"], 1);
  const json& communicator = report["communicators"][0];
  EXPECT_EQ(communicator["hash"], "0x0000000000000abc");
  EXPECT_EQ(communicator["missing_ranks_count"], 1);
  EXPECT_EQ(communicator["missing_ranks"][0]["rank"], 1);
  EXPECT_EQ(communicator["ranks"][0]["collective_counts"]["AllReduce"], 5);
  EXPECT_EQ(communicator["ranks"][0]["collective_counts"]["Broadcast"], 0);
  EXPECT_EQ(communicator["ranks"][0]["status"]["async_error"], 0);
  EXPECT_EQ(communicator["ranks"][1]["status"]["async_error"], 6);
  EXPECT_EQ(report["ras"]["timeouts_count"], 1);
}

TEST(Metrics, ArePrometheusText) {
  const std::vector<CommunicatorSummary> all = {three_ranks()};
  const std::string text = metrics_text(all);
  EXPECT_THAT(text, HasSubstr("# TYPE ropewalk_link_bytes_total counter\n"));
  EXPECT_THAT(text, HasSubstr("ropewalk_link_bytes_total{communicator=\"0000000000000abc\",rank="
                              "\"1\",peer=\"2\",link=\"shared memory\"} 1000\n"));
  EXPECT_THAT(text, HasSubstr("link=\"tcp \\\"eth0\\\"\"} 5\n"));
  EXPECT_THAT(text, HasSubstr("ropewalk_calls_begun_total{communicator=\"0000000000000abc\",rank="
                              "\"0\",operation=\"send\"} 7\n"));
  EXPECT_THAT(text, HasSubstr("ropewalk_rank_absent{communicator=\"0000000000000abc\",rank=\"2\"} "
                              "0\n"));
}

}  // namespace
}  // namespace ropewalk::monitor
