// Topologies and plans through the C API alone, as a program has them.
#include <gtest/gtest.h>
#include <source_dir.h>

#include <array>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "ropewalk/diagnostics.h"
#include "ropewalk/plan.h"
#include "ropewalk/topology.h"

namespace {

struct Free {
  void operator()(rwTopology* topology) const { EXPECT_EQ(rwTopologyFree(topology), rwSuccess); }
  void operator()(rwPlan* plan) const { EXPECT_EQ(rwPlanFree(plan), rwSuccess); }
  void operator()(char* text) const { rwFreeText(text); }
};
using Topology = std::unique_ptr<rwTopology, Free>;
using Plan = std::unique_ptr<rwPlan, Free>;

/// The text that a call returns through a `char**`.
template <typename Call>
std::string text(const Call& call) {
  char* out = nullptr;
  EXPECT_EQ(call(&out), rwSuccess) << rwGetLastError(nullptr);
  const std::unique_ptr<char, Free> owned(out);
  return out == nullptr ? "" : out;
}

/// The error text of a refused call, after its name.
std::string refused(rwResult_t result) {
  EXPECT_EQ(result, rwInvalidArgument);
  const std::string text = rwGetLastError(nullptr);
  const std::size_t end = text.find(": ");
  if (!text.starts_with("rw") || end == std::string::npos) return "no function in: " + text;
  return text.substr(end + 2);
}

Topology synthetic(const char* description) {
  rwTopology_t out = nullptr;
  EXPECT_EQ(rwTopologySynthetic(description, &out), rwSuccess) << rwGetLastError(nullptr);
  return Topology(out);
}

std::string path_of(const std::string& machine) {
  return std::string(RW_SOURCE_DIR) + "/tests/topologies/" + machine + ".json";
}

Topology recorded(const std::string& machine) {
  rwTopology_t out = nullptr;
  EXPECT_EQ(rwTopologyReadFile(path_of(machine).c_str(), &out), rwSuccess)
      << rwGetLastError(nullptr);
  return Topology(out);
}

Topology read(const std::string& json) {
  rwTopology_t out = nullptr;
  EXPECT_EQ(rwTopologyRead(json.c_str(), "text", &out), rwSuccess) << rwGetLastError(nullptr);
  return Topology(out);
}

Plan planned(const Topology& topology, const char* request) {
  rwPlan_t out = nullptr;
  EXPECT_EQ(rwPlanMake(topology.get(), request, &out), rwSuccess) << rwGetLastError(nullptr);
  return Plan(out);
}

std::string json(const Topology& topology) {
  return text([&](char** out) { return rwTopologyJson(topology.get(), out); });
}

std::string json(const Plan& plan, bool trees = true) {
  return text([&](char** out) { return rwPlanJson(plan.get(), trees ? 1 : 0, out); });
}

std::string certificate(const Plan& plan) {
  return text([&](char** out) { return rwPlanCheck(plan.get(), out); });
}

constexpr const char* kAllReduce = R"({"collective": "all_reduce"})";
constexpr std::array<double, 3> kSizes{0, 1e3, 1e9};

TEST(Handles, OfTopologiesGiveTheTextThatTheyWereMadeOf) {
  for (const char* name : {"dgx1v", "dgx-h100-x2", "mi250-16gcd", "dgx2-detailed"}) {
    const Topology machine = recorded(name);
    const std::string written = json(machine);
    EXPECT_EQ(json(read(written)), written) << name;
    std::ostringstream file;
    file << std::ifstream(path_of(name)).rdbuf();
    EXPECT_EQ(json(read(file.str())), written) << name;
  }
}

TEST(Handles, OfPlansGiveTheTextThatTheyWereMadeOf) {
  for (const char* name : {"dgx1v", "rccl-4gpu-4nic-x2", "h200-4gpu"}) {
    const Topology machine = recorded(name);
    for (const char* collective :
         {"all_reduce", "all_gather", "reduce_scatter", "broadcast", "reduce"}) {
      SCOPED_TRACE(std::string(name) + " " + collective);
      const Plan plan =
          planned(machine, (std::string(R"({"collective": ")") + collective + R"("})").c_str());
      const std::string written = json(plan);
      rwPlan_t again = nullptr;
      ASSERT_EQ(rwPlanRead(machine.get(), written.c_str(), "plan", &again), rwSuccess)
          << rwGetLastError(nullptr);
      const Plan owned(again);
      EXPECT_EQ(json(owned), written);
      EXPECT_EQ(json(owned, false), json(plan, false));
      EXPECT_EQ(certificate(owned), certificate(plan));
    }
  }
}

TEST(Handles, OfPlansKeepTheirTopology) {
  Topology machine = synthetic("4gpu nvswitch");
  const std::string written = json(machine);
  const Plan plan = planned(machine, kAllReduce);
  rwTopology_t same = nullptr;
  ASSERT_EQ(rwPlanTopology(plan.get(), &same), rwSuccess);
  machine.reset();
  EXPECT_EQ(json(Topology(same)), written);
  std::array<double, kSizes.size()> times{};
  ASSERT_EQ(rwPlanTimes(plan.get(), kSizes.data(), kSizes.size(), times.data()), rwSuccess);
  EXPECT_GT(times[2], times[1]);
  EXPECT_GE(times[1], times[0]);
  EXPECT_NE(certificate(plan).find("\"valid\":true"), std::string::npos);
  EXPECT_NE(text([&](char** out) { return rwScheduleFromPlan(plan.get(), out); }).find("ranks 4"),
            std::string::npos);
  EXPECT_NE(
      text([&](char** out) { return rwSimulatePlan(plan.get(), "{}", out); }).find("\"links\""),
      std::string::npos);
}

TEST(Handles, OfAPlanAloneHaveTheMachineThatItNames) {
  const Plan plan = planned(recorded("dgx1v"), R"({"collective": "broadcast"})");
  rwPlan_t alone = nullptr;
  ASSERT_EQ(rwPlanRead(nullptr, json(plan).c_str(), "plan", &alone), rwSuccess);
  const Plan owned(alone);
  rwTopology_t named = nullptr;
  ASSERT_EQ(rwPlanTopology(owned.get(), &named), rwSuccess);
  EXPECT_NE(json(Topology(named)).find("\"name\": \"dgx1v\""), std::string::npos);
  EXPECT_EQ(text([&](char** out) { return rwScheduleFromPlan(owned.get(), out); }),
            text([&](char** out) { return rwScheduleFromPlan(plan.get(), out); }));
}

TEST(Handles, WithoutTreesKeepTheirTextAndTheirCheck) {
  const Topology machine = synthetic("4gpu nvswitch");
  const Plan whole = planned(machine, kAllReduce);
  const Plan bare = planned(machine, R"({"collective": "all_reduce", "trees": false})");
  EXPECT_EQ(json(bare), json(whole, false));
  EXPECT_EQ(json(bare, false), json(whole, false));
  EXPECT_EQ(json(bare).find("\"trees\""), std::string::npos);
  const std::string without = "plan: was made without its trees (\"trees\": false)";
  char* out = nullptr;
  std::array<double, kSizes.size()> times{};
  EXPECT_EQ(refused(rwPlanCheck(bare.get(), &out)), without);
  EXPECT_EQ(refused(rwScheduleFromPlan(bare.get(), &out)), without);
  EXPECT_EQ(refused(rwSimulatePlan(bare.get(), "{}", &out)), without);
  EXPECT_EQ(refused(rwPlanTimes(bare.get(), kSizes.data(), kSizes.size(), times.data())), without);
  EXPECT_EQ(out, nullptr);
  const Plan proven =
      planned(machine, R"({"collective": "all_reduce", "trees": false, "check": true})");
  EXPECT_EQ(certificate(proven), certificate(whole));
  EXPECT_NE(json(proven).find("\"certificate\""), std::string::npos);
}

TEST(Handles, AreNotMadeFromGarbage) {
  rwTopology_t topology = nullptr;
  rwPlan_t plan = nullptr;
  const Topology machine = synthetic("4gpu nvswitch");
  EXPECT_EQ(refused(rwTopologyRead("", "m.json", &topology)), "m.json: empty");
  EXPECT_STREQ(rwGetLastError(nullptr), "rwTopologyRead: m.json: empty");
  EXPECT_NE(refused(rwTopologyRead("{\n1}", "m.json", &topology)).find("m.json: parse error"),
            std::string::npos);
  EXPECT_EQ(refused(rwTopologyReadFile("/absent.json", &topology)),
            "/absent.json: No such file or directory");
  EXPECT_NE(refused(rwTopologySynthetic("8gpus", &topology)).find("8gpus"), std::string::npos);
  EXPECT_EQ(topology, nullptr);
  for (rwTopology_t on : {machine.get(), rwTopology_t{}}) {
    EXPECT_NE(refused(rwPlanRead(on, "no plan", "p.json", &plan)).find("p.json: parse error"),
              std::string::npos);
    EXPECT_NE(refused(rwPlanRead(on, "{}", "p.json", &plan)).find("p.json: \"schema\" is missing"),
              std::string::npos);
  }
  EXPECT_NE(refused(rwPlanMake(machine.get(), "{", &plan)).find("request: "), std::string::npos);
  EXPECT_NE(refused(rwPlanMake(machine.get(), R"({"collective": "sort"})", &plan)).find("sort"),
            std::string::npos);
  // A file without trees is not a plan.
  const std::string bare = json(planned(machine, kAllReduce), false);
  EXPECT_EQ(refused(rwPlanRead(machine.get(), bare.c_str(), "p.json", &plan)),
            "p.json: \"trees\" is missing");
  EXPECT_EQ(plan, nullptr);
}

TEST(Handles, OfPlansAreForOneTopology) {
  const std::string written = json(planned(recorded("dgx1v"), kAllReduce));
  rwPlan_t plan = nullptr;
  EXPECT_EQ(refused(rwPlanRead(recorded("dgx1p").get(), written.c_str(), "p.json", &plan)),
            "p.json: topology: is for \"dgx1v\", not for \"dgx1p\"");
  // Of that name, but without a link that it needs.
  std::string other = json(recorded("dgx-a100"));
  other.replace(other.find("\"dgx-a100\""), 10, "\"dgx1v\"");
  EXPECT_NE(refused(rwPlanRead(read(other).get(), written.c_str(), "p.json", &plan))
                .find("dgx1v has no nvlink link from "),
            std::string::npos);
  EXPECT_EQ(plan, nullptr);
  // With all links, but one of half the capacity: it can be read, and is found to be no plan.
  const Topology pair = synthetic("2gpu nvmesh");
  const std::string on_pair = json(planned(pair, R"({"collective": "all_gather"})"));
  std::string slower = json(pair);
  const std::string key = "\"capacity\": ";
  const std::size_t at = slower.find(key);
  ASSERT_NE(at, std::string::npos);
  const std::size_t end = slower.find_first_of(",}", at);
  const double half = std::stod(slower.substr(at + key.size(), end - at - key.size())) / 2;
  slower.replace(at + key.size(), end - at - key.size(), std::to_string(half));
  slower.replace(slower.find("\"symmetric\": true"), 17, "\"symmetric\": false");
  ASSERT_EQ(rwPlanRead(read(slower).get(), on_pair.c_str(), "p.json", &plan), rwSuccess)
      << rwGetLastError(nullptr);
  const Plan owned(plan);
  EXPECT_NE(certificate(owned).find("\"valid\":false"), std::string::npos);
}

TEST(Handles, ThatAreNullAreRefusedInWords) {
  const Topology machine = synthetic("2gpu nvmesh");
  char* out = nullptr;
  rwTopology_t topology = nullptr;
  rwPlan_t plan = nullptr;
  double time = 0;
  const std::array<rwResult_t, 2> freed{rwTopologyFree(nullptr), rwPlanFree(nullptr)};
  EXPECT_EQ(freed, (std::array<rwResult_t, 2>{rwSuccess, rwSuccess}));
  const std::string no_topology = "topology: NULL";
  EXPECT_EQ(refused(rwTopologyJson(nullptr, &out)), no_topology);
  EXPECT_EQ(refused(rwTopologyReplicate(nullptr, 2, 0, &topology)), no_topology);
  EXPECT_EQ(refused(rwTopologySelect(nullptr, nullptr, nullptr, 0, &topology)), no_topology);
  EXPECT_EQ(refused(rwTopologyMatrix(nullptr, 0, &out)), no_topology);
  EXPECT_EQ(refused(rwTopologyNcclXml(nullptr, 0, &out)), no_topology);
  EXPECT_EQ(refused(rwTopologyPlace(nullptr, 0, 1, &out)), no_topology);
  EXPECT_EQ(refused(rwPlanMake(nullptr, kAllReduce, &plan)), no_topology);
  EXPECT_EQ(refused(rwPlanBound(nullptr, kAllReduce, &out)), no_topology);
  EXPECT_EQ(refused(rwNicReport(nullptr, "{}", &out)), no_topology);
  EXPECT_EQ(refused(rwSimulateSchedule("", nullptr, "{}", &out)), no_topology);
  const std::string no_plan = "plan: NULL";
  EXPECT_EQ(refused(rwPlanJson(nullptr, 1, &out)), no_plan);
  EXPECT_EQ(refused(rwPlanTopology(nullptr, &topology)), no_plan);
  EXPECT_EQ(refused(rwPlanCheck(nullptr, &out)), no_plan);
  EXPECT_EQ(refused(rwPlanTimes(nullptr, &time, 1, &time)), no_plan);
  EXPECT_EQ(refused(rwScheduleFromPlan(nullptr, &out)), no_plan);
  EXPECT_EQ(refused(rwSimulatePlan(nullptr, "{}", &out)), no_plan);
  EXPECT_EQ(refused(rwTopologyRead(nullptr, "x", &topology)), "text: NULL");
  EXPECT_EQ(refused(rwTopologyRead("{}", nullptr, &topology)), "origin: NULL");
  EXPECT_EQ(refused(rwTopologyReadFile(nullptr, &topology)), "path: NULL");
  EXPECT_EQ(refused(rwTopologyRead("{}", "x", nullptr)), no_topology);
  EXPECT_EQ(refused(rwTopologySelect(machine.get(), nullptr, nullptr, 0, nullptr)), "made: NULL");
  EXPECT_EQ(refused(rwPlanMake(machine.get(), nullptr, &plan)), "request: NULL");
  EXPECT_EQ(refused(rwPlanMake(machine.get(), kAllReduce, nullptr)), no_plan);
  EXPECT_EQ(refused(rwPlanRead(nullptr, nullptr, "x", &plan)), "text: NULL");
  EXPECT_EQ(refused(rwPlanRead(nullptr, "{}", nullptr, &plan)), "origin: NULL");
  EXPECT_EQ(refused(rwSimulateSchedule(nullptr, machine.get(), "{}", &out)), "schedule: NULL");
  EXPECT_EQ(out, nullptr);
  EXPECT_EQ(topology, nullptr);
  EXPECT_EQ(plan, nullptr);
}

TEST(Handles, TimesAreOfSizesThatCanBe) {
  const Plan plan = planned(synthetic("2gpu nvmesh"), R"({"collective": "all_gather"})");
  std::array<double, 2> times{-1, -1};
  for (const double bad :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    const std::array<double, 2> sizes{8, bad};
    EXPECT_EQ(refused(rwPlanTimes(plan.get(), sizes.data(), 2, times.data())).find("bytes[1]: "),
              0U);
  }
  EXPECT_EQ(times, (std::array<double, 2>{-1, -1}));
  EXPECT_EQ(refused(rwPlanTimes(plan.get(), nullptr, 2, times.data())), "bytes: NULL");
  EXPECT_EQ(refused(rwPlanTimes(plan.get(), kSizes.data(), 2, nullptr)), "microseconds: NULL");
  EXPECT_EQ(rwPlanTimes(plan.get(), nullptr, 0, nullptr), rwSuccess);
}

/// All that can be asked of a machine and a plan, as one text.
std::string asked(const Topology& machine, const Plan& plan) {
  std::string all = json(machine) + json(plan) + certificate(plan);
  all += text([&](char** out) { return rwTopologyMatrix(machine.get(), -1, out); });
  all += text([&](char** out) { return rwTopologyPlace(machine.get(), 0, 4, out); });
  all += text([&](char** out) { return rwPlanBound(machine.get(), kAllReduce, out); });
  all += text([&](char** out) { return rwScheduleFromPlan(plan.get(), out); });
  all += text(
      [&](char** out) { return rwSimulatePlan(plan.get(), R"({"most_messages": 1000})", out); });
  all += text([&](char** out) { return rwNicReport(machine.get(), "{}", out); });
  return all + json(planned(machine, kAllReduce));
}

TEST(Handles, ServeSeveralThreadsAtOnce) {
  const Topology machine = recorded("rccl-4gpu-4nic-x2");
  const Plan plan = planned(machine, kAllReduce);
  const std::string wanted = asked(machine, plan);
  std::vector<std::string> found(4);
  std::vector<std::thread> threads;
  threads.reserve(found.size());
  for (std::string& each : found) {
    threads.emplace_back([&] { each = asked(machine, plan); });
  }
  for (std::thread& each : threads) each.join();
  for (const std::string& each : found) EXPECT_EQ(each, wanted);
}

/// For the address sanitizer, which reports leaks.
TEST(Handles, AreMadeAndFreedManyTimes) {
  const std::string machine = json(synthetic("4gpu nvswitch"));
  for (int i = 0; i < 100; ++i) {
    const Topology topology = read(machine);
    const Plan plan = planned(topology, kAllReduce);
    rwPlan_t again = nullptr;
    ASSERT_EQ(rwPlanRead(i % 2 == 0 ? topology.get() : nullptr, json(plan).c_str(), "p", &again),
              rwSuccess);
    const Plan owned(again);
    rwTopology_t kept = nullptr;
    ASSERT_EQ(rwPlanTopology(owned.get(), &kept), rwSuccess);
    ASSERT_EQ(rwTopologyFree(kept), rwSuccess);
    ASSERT_NE(rwTopologyRead("{", "t", &kept), rwSuccess);
    ASSERT_NE(rwPlanRead(topology.get(), machine.c_str(), "p", &again), rwSuccess);
  }
}

}  // namespace
