#include "monitor/job_events.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ropewalk::monitor {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::MatchesRegex;

constexpr std::uint64_t kFirst = 0xabc;
constexpr std::uint64_t kSecond = 0xdef;

// Ranks from `begin` on, each a process of its own with a GPU.
CommunicatorSummary communicator(std::uint64_t identity, int begin, int end) {
  CommunicatorSummary all{identity, end - begin, {}, {}};
  for (int process = begin; process < end; ++process) {
    RankSummary& summary = all.by_rank[process - begin];
    summary.host = "oak";
    summary.process = 100 + process;
    summary.device = process;
  }
  return all;
}

std::vector<std::string> names(const std::vector<JobEvent>& events) {
  std::vector<std::string> found;
  for (const JobEvent& each : events) {
    found.push_back(each.name + (each.process ? " " + std::to_string(each.process->number) : ""));
  }
  return found;
}

TEST(JobWatch, TellsOfProcessesThatComeLater) {
  JobWatch watch;
  EXPECT_FALSE(watch.knows(kFirst));
  const std::vector<CommunicatorSummary> first = {communicator(kFirst, 0, 2)};
  EXPECT_THAT(watch.learn(first), IsEmpty());
  EXPECT_TRUE(watch.knows(kFirst));
  EXPECT_THAT(watch.learn(first), IsEmpty());
  const std::vector<CommunicatorSummary> both = {communicator(kFirst, 0, 2),
                                                 communicator(kSecond, 1, 3)};
  const std::vector<JobEvent> events = watch.learn(both);
  EXPECT_THAT(names(events), ElementsAre("PEER_NEW 102"));
  EXPECT_EQ(events[0].group, JobEvent::Group::kLifecycle);
  EXPECT_THAT(event_text(events[0], 0),
              MatchesRegex("\\[19[0-9 :-]+\\] PEER_NEW: Process 102 on node "
                           "oak managing GPU 2\n"));
}

TEST(JobWatch, TellsOnceOfEachDeathAndOfWhatCameBefore) {
  JobWatch watch;
  (void)watch.learn(
      std::vector<CommunicatorSummary>{communicator(kFirst, 0, 3), communicator(kSecond, 1, 3)});
  EXPECT_THAT(watch.see({kFirst, {}, {}, {}}), IsEmpty());
  EXPECT_THAT(names(watch.see({kFirst, {1, 2}, {}, {}})),
              ElementsAre("PEER_UNRESPONSIVE 101", "PEER_UNRESPONSIVE 102"));
  EXPECT_THAT(watch.see({kFirst, {1, 2}, {}, {}}), IsEmpty());
  EXPECT_THAT(names(watch.see({kFirst, {2}, {}, {}})), ElementsAre("PEER_RECOVERED 101"));
  const std::vector<JobEvent> events = watch.see({kFirst, {}, {{2, "it was killed"}}, {0}});
  EXPECT_THAT(names(events), ElementsAre("PEER_DISCONNECTED 100", "PEER_DEAD 102"));
  EXPECT_EQ(events[0].group, JobEvent::Group::kTrace);
  EXPECT_EQ(events[1].details, "rank 2 of communicator 0000000000000abc was lost: it was killed");
  // The same process is rank 1 of the other one.
  EXPECT_THAT(watch.see({kSecond, {}, {{1, "it was killed"}}, {}}), IsEmpty());
  EXPECT_THAT(names(watch.see({kSecond, {}, {{0, "x"}, {1, "it was killed"}}, {}})),
              ElementsAre("PEER_DEAD 101"));
  watch.forget(kFirst);
  EXPECT_FALSE(watch.knows(kFirst));
}

TEST(JobWatch, TellsOfRanksThatNeverAnswered) {
  JobWatch watch;
  (void)watch.learn(std::vector<CommunicatorSummary>{communicator(kFirst, 0, 2)});
  const std::vector<JobEvent> events = watch.see({kFirst, {}, {{7, "silence"}}, {}});
  EXPECT_THAT(names(events), ElementsAre("PEER_DEAD"));
  EXPECT_THAT(event_text(events[0], 0), HasSubstr("PEER_DEAD: rank 7 of communicator"));
  const auto object = nlohmann::json::parse(event_json(events[0], 0));
  EXPECT_FALSE(object.contains("peer"));
  EXPECT_EQ(object["group"], "LIFECYCLE");
}

TEST(JobEvent, HasNcclsForm) {
  const JobEvent event{JobEvent::Group::kTrace, "PEER_RECOVERED", JobProcess{"o\"k", 7, {1, 3}},
                       "x"};
  EXPECT_THAT(event_text(event, 0),
              HasSubstr("PEER_RECOVERED: Process 7 on node o\"k managing GPUs 1,3 x\n"));
  const auto object = nlohmann::json::parse(event_json(event, 0));
  EXPECT_EQ(object["timestamp"], ras_timestamp(0));
  EXPECT_EQ(object["event"], "PEER_RECOVERED");
  EXPECT_EQ(object["peer"]["host"], "o\"k");
  EXPECT_EQ(object["peer"]["nvml_devs"], nlohmann::json({1, 3}));
  EXPECT_EQ(object["details"], "x");
}

}  // namespace
}  // namespace ropewalk::monitor
