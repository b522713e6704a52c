#include "schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "core/error.h"
#include "plan/chunk_model.h"
#include "plan/json.h"
#include "plan/named_machine.h"
#include "plan/planner.h"
#include "schedule/checked.h"
#include "schedule/compile.h"
#include "schedule/fair_share.h"
#include "schedule/microbench.h"
#include "schedule/simulation_request.h"
#include "topology/json.h"
#include "topology/synthetic.h"
#include "topology/testing/recorded.h"

namespace ropewalk::schedule {
namespace {

const SimulationEngine kBuiltin{"builtin", make_fair_share_engine};

TEST(Simulate, LeavesSlowCasesToTheOtherEngine) {
  const topology::Topology machine = topology::synthetic("4gpu nvswitch");
  const Checked ring = Checked::from(compile("ring", {Collective::kAllReduce, 4, 0, 1}));
  double said = 11;
  const auto cost = [&](const Traffic& traffic) { return traffic.messages() > 0 ? said : 0; };
  const SimulationEngine slow{"slow", make_fair_share_engine, cost, 10};
  try {
    simulate(machine, ring, {}, slow);
    ADD_FAILURE() << "was played";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kTimeout);
    EXPECT_NE(std::string(error.what()).find("would take slow some 11 s"), std::string::npos);
  }
  said = 9;
  EXPECT_NO_THROW(simulate(machine, ring, {}, slow));
}

/// A row of GPUs, each joined to the next in both directions at 10 GB/s and 2 us.
topology::Topology row(int gpus) {
  topology::Description machine;
  machine.name = "row";
  for (int g = 0; g < gpus; ++g) {
    topology::Node node;
    node.id = "g" + std::to_string(g);
    node.rank = g;
    machine.nodes.push_back(node);
  }
  for (std::size_t g = 0; g + 1 < static_cast<std::size_t>(gpus); ++g) {
    for (const bool forward : {true, false}) {
      topology::Link link;
      link.source = forward ? g : g + 1;
      link.destination = forward ? g + 1 : g;
      link.type = topology::LinkType::kNvlink;
      link.capacity = 10;
      link.latency_us = 2;
      machine.links.push_back(link);
    }
  }
  return topology::Topology(std::move(machine));
}

plan::Plan planned(const topology::Topology& machine, Collective collective,
                   const std::string& plane = "") {
  plan::Request request;
  request.collective = collective;
  request.selection.plane = plane;
  return plan::make_plan(machine, request);
}

Outcome run(const topology::Topology& machine, const Traffic& traffic) {
  const auto engine = make_fair_share_engine(machine, traffic);
  return play(machine, traffic, *engine);
}

TEST(Simulate, AChainTakesTheTimeOfTheChunkModel) {
  const topology::Topology machine = row(5);
  const plan::Plan plan = planned(machine, Collective::kBroadcast);
  for (const double chunk : {1e5, 5e5, 2.5e6}) {
    TrafficOptions options;
    options.bytes = 1e7;
    options.chunk_bytes = chunk;
    const Traffic traffic = traffic_of(machine, plan, options);
    const double expected = plan::pipeline_seconds(4, 1e7, chunk, {2e-6, 10e9, 0, true});
    EXPECT_NEAR(run(machine, traffic).seconds, expected, expected * 1e-6);
  }
}

TEST(Simulate, FlowsShareALinkMaxMinFairly) {
  // Two streams through one link of 10 GB/s, one of which also passes a link of 4 GB/s.
  topology::Description machine = row(4).description();
  machine.links[4].capacity = 4;  // g2 -> g3
  const topology::Topology uneven(machine);
  Traffic traffic;
  traffic.paths = {{2}, {2, 4}, {0, 2}};
  const auto engine = make_fair_share_engine(uneven, traffic);
  engine->start(0, 0, 6e6, 0);
  engine->start(1, 1, 4e6, 0);
  engine->start(2, 2, 1e6, 1);  // never faster than 1 GB/s
  std::map<int, double> ends;
  engine->run([&](int flow, double now) { ends[flow] = now; });
  // After the latencies: flow 2 has 1, flow 1 its 4, flow 0 the rest, 5, then 6 when flow 1 and 2
  // are done at 1 ms: 6e6 - 5e6 left at 10 GB/s.
  EXPECT_NEAR(ends[1], 1.004e-3, 4e-6);
  EXPECT_NEAR(ends[2], 1.004e-3, 4e-6);
  EXPECT_NEAR(ends[0], 1.1e-3, 6e-6);
}

TEST(Simulate, CountsBytesAndUtilisation) {
  const topology::Topology machine = row(3);
  TrafficOptions options;
  options.bytes = 1e8;
  const Outcome outcome =
      run(machine, traffic_of(machine, planned(machine, Collective::kBroadcast), options));
  const int root_link = 0;
  EXPECT_NEAR(outcome.link_bytes[root_link], 1e8, 1);
  double carried = 0;
  for (std::size_t bin = 0; bin < outcome.utilisation[root_link].size(); ++bin) {
    const double begin = static_cast<double>(bin) * outcome.bin_seconds;
    const double span = std::min(outcome.bin_seconds, outcome.seconds - begin);
    EXPECT_LE(outcome.utilisation[root_link][bin], 1 + 1e-6);
    carried += outcome.utilisation[root_link][bin] * span * 10e9;
  }
  EXPECT_NEAR(carried, 1e8, 1e3);
  EXPECT_TRUE(outcome.utilisation[1].empty());  // the reverse direction is idle
}

class SimulatedMachines : public ::testing::TestWithParam<std::string> {};

/// Large messages: so that the latencies of filling and emptying the trees do not count.
TEST_P(SimulatedMachines, LargeMessagesReachThePlannedRate) {
  const topology::Topology machine = topology::testing::machine(GetParam());
  std::vector<std::string> planes;
  for (const topology::Plane& plane : machine.planes()) planes.push_back(plane.name);
  if (planes.empty()) planes.emplace_back();
  for (const std::string& plane : planes) {
    for (const Collective collective : {Collective::kBroadcast, Collective::kAllGather}) {
      SCOPED_TRACE(plane + " " + std::string(name(collective)));
      plan::Request request;
      request.collective = collective;
      request.selection.plane = plane;
      // Many trees of many GPUs take long to plan, and say no more here.
      if (machine.gpus().size() > 16 && collective == Collective::kAllGather) {
        request.trees_per_root = 1;
      }
      const plan::Plan plan = plan::make_plan(machine, request);
      TrafficOptions options;
      options.bytes = plan.algbw.to_double() * 1e9;  // one second's worth
      // Trees of depth 26 need many chunks before filling them no longer counts.
      if (machine.gpus().size() > 16) options.most_messages = 1.6e6;
      const Outcome outcome = run(machine, traffic_of(machine, plan, options));
      EXPECT_NEAR(outcome.seconds, 1, 0.05) << outcome.messages;
      for (const plan::LinkLoad& link : plan.links) {
        EXPECT_NEAR(outcome.link_bytes[static_cast<std::size_t>(link.link)],
                    link.load.to_double() * 1e9, 1e3);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Recorded, SimulatedMachines,
                         ::testing::ValuesIn(topology::testing::machine_names()),
                         [](const auto& given) {
                           std::string name = given.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(Simulate, AThousandRanksBroadcast) {
  const topology::Topology machine = topology::synthetic("128x(8gpu nvswitch) 8nic");
  const Schedule schedule = compile("binary_tree", {Collective::kBroadcast, 1024, 0, 1});
  TrafficOptions options;
  options.bytes = 1e9;
  options.most_messages = 2e4;
  const Outcome outcome = run(machine, traffic_of(machine, schedule, {}, options));
  EXPECT_GE(outcome.messages, 1023);
  EXPECT_GT(outcome.seconds, 1e9 / 450e9);
}

TEST(Simulate, SchedulesTakeAtLeastTheTimeOfTheirBusiestLink) {
  const topology::Topology machine = topology::testing::machine("dgx1v");
  for (const char* algorithm : {"ring", "chain", "double_binary_tree", "two_shot"}) {
    const Checked checked = Checked::from(compile(algorithm, {Collective::kAllReduce, 8, 0, 1}));
    TrafficOptions options;
    options.bytes = 1e8;
    const auto report = nlohmann::json::parse(simulate(machine, checked, options, kBuiltin));
    EXPECT_GT(report["ratio"].get<double>(), 0.1) << algorithm;
    EXPECT_LE(report["ratio"].get<double>(), 1 + 1e-9) << algorithm;
  }
}

template <typename Play>
std::string message_of(const Play& play_it) {
  try {
    play_it();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(Simulate, RefusesWhatCannotBeSimulated) {
  const topology::Topology machine = topology::testing::machine("h200-2gpu");
  const plan::Plan good = planned(machine, Collective::kAllGather);
  const auto says = [&](auto&& spoil, const std::string& part) {
    TrafficOptions options;
    spoil(options);
    const std::string message = message_of([&] { simulate(machine, good, options, kBuiltin); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  says([](auto&) {}, "nothing was thrown");
  says([](auto& o) { o.bytes = 0; }, "of 0 bytes");
  says([](auto& o) { o.bytes = std::numeric_limits<double>::quiet_NaN(); }, "bytes");
  says([](auto& o) { o.chunk_bytes = -1; }, "chunks of -1");
  says([](auto& o) { o.most_messages = 0; }, "at most 0");
  const Checked four = Checked::from(compile("ring", {Collective::kAllReduce, 4, 0, 1}));
  EXPECT_NE(message_of([&] {
              simulate(machine, four, {}, kBuiltin);
            }).find("has 2 GPUs, the schedule 4 ranks"),
            std::string::npos);
  plan::Plan none = good;
  none.trees.clear();
  EXPECT_NE(message_of([&] { simulate(machine, none, {}, kBuiltin); }), "nothing was thrown");
}

TEST(Simulate, PlaysARequestOfTexts) {
  const topology::Topology machine = topology::testing::machine("h200-2gpu");
  const plan::Plan plan = planned(machine, Collective::kAllGather);
  TrafficOptions options;
  options.bytes = 1e8;
  nlohmann::json request = {{"plan", plan::write_json(machine, plan)},
                            {"topology", topology::write_json(machine)},
                            {"bytes", 1e8}};
  EXPECT_EQ(simulate(simulation_request(request.dump()), kBuiltin),
            simulate(machine, plan, options, kBuiltin));
  // The machine that a plan's file names is one that can be told, too.
  const std::string text = plan::write_json(machine, plan);
  const topology::Topology named = plan::machine_named_in(text, "plan");
  request["topology"] = topology::write_json(named);
  EXPECT_EQ(simulate(simulation_request(request.dump()), kBuiltin),
            simulate(named, plan::read_json(text, "plan", named), options, kBuiltin));
  const auto says = [&](auto&& spoil, const std::string& part) {
    nlohmann::json bad = request;
    spoil(bad);
    const std::string message =
        message_of([&] { simulate(simulation_request(bad.dump()), kBuiltin); });
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  says([](auto& r) { r["plan"] = "{}"; }, "plan: \"schema\" is missing");
  says([](auto& r) { r["schedule"] = "ropewalk-schedule 7"; }, "one of \"plan\" and");
  says([](auto& r) { r.erase("plan"), r["schedule"] = "ropewalk-schedule 7"; }, "line 1");
  says([](auto& r) { r.erase("topology"); }, "\"topology\" is missing");
  says([](auto& r) { r["topology"] = "{\"schema\": 3}"; }, "topology: schema");
  says([](auto& r) { r["paces"] = true; }, "unknown field \"paces\"");
  says([](auto& r) { r["bytes"] = "many"; }, "simulation request: ");
  request["engine_seconds"] = 5;
  const SimulationEngine slow{"slow", make_fair_share_engine, [](const Traffic&) { return 6; }};
  EXPECT_NE(message_of([&] {
              simulate(simulation_request(request.dump()), slow);
            }).find("would take slow some 6 s"),
            std::string::npos);
}

}  // namespace
}  // namespace ropewalk::schedule
