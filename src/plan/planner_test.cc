// What requests are refused, and that the words say who is meant.
#include "plan/planner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "plan/certificate.h"
#include "plan/json.h"
#include "plan/link_split.h"
#include "plan/max_flow.h"
#include "topology/replicate.h"
#include "topology/testing/recorded.h"

namespace ropewalk::plan {
namespace {

using ::testing::HasSubstr;

std::string refusal(const topology::Topology& machine, const Request& request) {
  return testing::complaint([&] { (void)make_plan(machine, request); });
}

TEST(Planner, RefusesWhatMemoryCannotHold) {
  topology::Description ring;
  ring.name = "ring";
  const int gpus = 5000;
  for (int i = 0; i < gpus; ++i) {
    topology::Node node;
    node.id = "g" + std::to_string(i);
    node.rank = i;
    ring.nodes.push_back(node);
    topology::Link link;
    link.source = static_cast<std::size_t>(i);
    link.destination = static_cast<std::size_t>((i + 1) % gpus);
    link.capacity = 10;
    ring.links.push_back(link);
  }
  const topology::Topology machine(std::move(ring));
  Request request;
  for (const Collective collective :
       {Collective::kAllReduce, Collective::kAllGather, Collective::kBroadcast}) {
    request.collective = collective;
    EXPECT_THAT(refusal(machine, request), HasSubstr("over 5000 GPUs is too large"));
    EXPECT_THAT(refusal(machine, request), HasSubstr(std::to_string(most_ranks(collective))));
  }
  EXPECT_EQ(most_ranks(Collective::kAllReduce), 2896);
  EXPECT_EQ(most_ranks(Collective::kBroadcast), 4096);
}

TEST(Planner, RefusesWhatCannotBe) {
  const topology::Topology machine = topology::testing::machine("dgx1v");
  Request request;
  request.selection.gpus = {0};
  EXPECT_THAT(refusal(machine, request), HasSubstr("at least 2 GPUs"));
  request.selection.gpus = {0, 8};
  EXPECT_THAT(refusal(machine, request), HasSubstr("no GPU 8: dgx1v has 8 GPUs, 0 to 7"));
  request.selection.gpus = {0, 1, 0};
  EXPECT_THAT(refusal(machine, request), HasSubstr("GPU 0 is named twice"));
  request.selection = {"nvlink", {0, 5, 6}};
  EXPECT_THAT(refusal(machine, request), HasSubstr("no path from gpu0 to gpu5, gpu6"));
  request.selection = {"warp", {}};
  EXPECT_THAT(refusal(machine, request), HasSubstr("no plane \"warp\"; it has nvlink, pcie, all"));
  request.selection = {};
  request.algorithm = "magic";
  EXPECT_THAT(refusal(machine, request), HasSubstr("unknown \"magic\""));
  request.algorithm = "auto";
  request.collective = Collective::kAllToAll;
  EXPECT_THAT(refusal(machine, request), HasSubstr("all_to_all"));
  request.collective = Collective::kBroadcast;
  request.root = 8;
  EXPECT_THAT(refusal(machine, request), HasSubstr("no rank 8"));
  request.root = 0;
  request.trees_per_root = -1;
  EXPECT_THAT(refusal(machine, request), HasSubstr("trees per root"));
}

TEST(Planner, SaysWhatLimits) {
  const topology::Topology machine = topology::testing::machine("pcie-8gpu-2numa");
  Request request;
  request.collective = Collective::kBroadcast;
  EXPECT_THAT(make_bound(machine, request).why.words,
              HasSubstr("the socket link from socket 0 to socket 1 limits this"));
}

TEST(Planner, TheSameRequestGivesTheSamePlan) {
  const topology::Topology machine = topology::testing::machine("rccl-4gpu-4nic-x2");
  for (const AlgorithmInfo& info : algorithms()) {
    Request request;
    request.collective = Collective::kAllReduce;
    request.algorithm = info.name;
    EXPECT_EQ(write_json(machine, make_plan(machine, request)),
              write_json(machine, make_plan(machine, request)))
        << info.name;
  }
}

TEST(Planner, ManyHostsAreOptimalBySymmetry) {
  const topology::Topology machine =
      topology::replicate(topology::testing::machine("dgx-h100"), 6, topology::Fabric::kOne);
  for (const Collective collective :
       {Collective::kAllGather, Collective::kReduceScatter, Collective::kAllReduce}) {
    Request request;
    request.collective = collective;
    const Plan plan = make_plan(machine, request);
    const Certificate found = check(machine, plan);
    EXPECT_TRUE(found.optimal) << name(collective)
                               << (found.defects.empty() ? "" : found.defects[0]);
  }
}

TEST(Planner, AllNicsOfManyHostsWorkForOneRoot) {
  const topology::Topology machine =
      topology::replicate(topology::testing::machine("dgx-h100"), 16, topology::Fabric::kOne);
  for (const Collective collective : {Collective::kBroadcast, Collective::kReduce}) {
    Request request;
    request.collective = collective;
    request.root = 13;
    const Plan plan = make_plan(machine, request);
    EXPECT_EQ(plan.algorithm, "rail-chain");
    const Certificate found = check(machine, plan);
    EXPECT_TRUE(found.optimal) << (found.defects.empty() ? "" : found.defects[0]);
    request.algorithm = "optimal";
    EXPECT_THAT(refusal(machine, request), HasSubstr("is the limit"));
  }
}

TEST(Planner, RefusesPlansThatAreNone) {
  const topology::Topology machine = topology::testing::machine("h200-2gpu");
  Request request;
  request.collective = Collective::kAllReduce;
  const std::string text = write_json(machine, make_plan(machine, request));
  EXPECT_NO_THROW(read_json(text, "p", machine));
  const auto spoilt = [&](const std::string& from, const std::string& to) {
    std::string out = text;
    const std::size_t index = out.find(from);
    EXPECT_NE(index, std::string::npos) << from;
    out.replace(index, from.size(), to);
    try {
      read_json(out, "p", machine);
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_THAT(spoilt("ropewalk-plan/1", "ropewalk-plan/9"), HasSubstr("p: schema"));
  EXPECT_THAT(spoilt("\"weight\":\"", "\"weight\":\"-"), HasSubstr("trees[0].weight"));
  EXPECT_THAT(spoilt("\"gpu1\"", "\"gpu7\""), HasSubstr("has no node \"gpu7\""));
  EXPECT_THAT(spoilt("\"type\":\"nvlink\"", "\"type\":\"string\""),
              HasSubstr("unknown \"string\""));
  EXPECT_THAT(spoilt("\"trees\": [", "\"woods\": ["), HasSubstr("\"trees\" is missing"));
  EXPECT_THAT(spoilt("{", "["), HasSubstr("p: "));
}

TEST(LinkSplit, EndsAllClassesTogether) {
  // split_examples of expected-bounds.json, in bytes and microseconds.
  const LinkSplit two = split_over_classes({{40e3, 0}, {10e3, 5000}}, 1e9);
  EXPECT_NEAR(two.time_us, 21000, 1e-6);
  EXPECT_NEAR(two.bytes[0], 840e6, 1);
  EXPECT_NEAR(two.bytes[1], 160e6, 1);
  const LinkSplit one = split_over_classes({{40e3, 0}, {10e3, 5000}}, 1e8);
  EXPECT_EQ(one.bytes[1], 0);
  const LinkSplit three = split_over_classes({{48e3, 1000}, {450e3, 0}, {50e3, 500}}, 5e8);
  EXPECT_NEAR(three.time_us, 1045.62, 0.01);
  EXPECT_NEAR(three.bytes[0] + three.bytes[1] + three.bytes[2], 5e8, 1);
  EXPECT_THROW(split_over_classes({}, 1), Error);
  EXPECT_THROW(split_over_classes({{0, 0}}, 1), Error);
  EXPECT_THROW(split_over_classes({{1, -1}}, 1), Error);
}

TEST(FlowGraph, StopsWhenThereIsEnough) {
  FlowGraph graph(4);
  graph.add_arc(0, 1, 5);
  graph.add_arc(0, 2, 4);
  graph.add_arc(1, 3, 3);
  graph.add_arc(2, 3, 9);
  graph.add_arc(1, 2, 2);
  EXPECT_EQ(graph.max_flow(0, 3), 9);
  EXPECT_EQ(graph.max_flow(0, 3, 4), 4);
  EXPECT_EQ(graph.max_flow(3, 0), 0);
}

}  // namespace
}  // namespace ropewalk::plan
