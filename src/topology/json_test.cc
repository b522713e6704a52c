#include "topology/json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/error.h"
#include "core/testing/in_child.h"
#include "topology/synthetic.h"
#include "topology/testing/recorded.h"

namespace ropewalk::topology {
namespace {

using ropewalk::testing::complaint;

using ::testing::HasSubstr;
using ::testing::StartsWith;

/// A machine of two GPUs, with one piece of its text replaced.
std::string two_gpus(const std::string& piece = "", const std::string& other = "") {
  std::string text = R"({"schema": "gpu-topology/1", "name": "two", "hosts": 1, "symmetric": true,
 "planes": {"nvlink": ["nvlink"]},
 "nodes": [{"id": "a", "kind": "gpu", "host": 0, "rank": 0},
           {"id": "b", "kind": "gpu", "host": 0, "rank": 1}],
 "links": [{"src": "a", "dst": "b", "type": "nvlink", "capacity": 25.0},
           {"src": "b", "dst": "a", "type": "nvlink", "capacity": 25.0}]})";
  if (!piece.empty()) {
    const std::size_t at = text.find(piece);
    EXPECT_NE(at, std::string::npos) << piece;
    text.replace(at, piece.size(), other);
  }
  return text;
}

std::string json_complaint(const std::string& text) {
  return complaint([&] { (void)read_json(text, "two.json"); });
}

TEST(TopologyJson, EveryRecordedMachineComesBack) {
  for (const std::string& machine : testing::machine_names()) {
    SCOPED_TRACE(machine);
    const std::string text = testing::file_text(machine + ".json");
    const Topology topology = read_json(text, machine);
    const std::string written = write_json(topology);
    EXPECT_TRUE(read_json(written, "written") == topology);
    // Nothing of the file is lost: the same JSON values, the order of fields apart.
    const auto lost =
        nlohmann::json::diff(nlohmann::json::parse(text), nlohmann::json::parse(written));
    EXPECT_TRUE(lost.empty()) << lost.dump().substr(0, 1000);
    EXPECT_EQ(write_json(read_json(written, "written")), written);
    EXPECT_TRUE(topology.symmetric());
  }
}

TEST(TopologyJson, AllFieldsComeBack) {
  Description description;
  description.name = "odd \"name\"";
  description.title = "\xc3\xa9t\xc3\xa9";
  description.hosts = 2;
  description.lane_gbps = 0.1;
  description.planes = {{"all", {LinkType::kC2c, LinkType::kNtb}}};
  description.assumptions = {"one", "two\nlines"};
  Node cpu{.id = "c", .kind = NodeKind::kCpu, .numa = -1, .cpus = "0-3"};
  cpu.attributes = {{"arch", "x86_64"}, {"a", ""}};
  Node nic{.id = "n", .kind = NodeKind::kNic, .host = 1, .net_gbps = 12.5, .device = "mlx5_0"};
  nic.bus_id = "0000:01:00.0";
  description.nodes = {cpu, nic, {.id = "g", .rank = 0, .package = 3, .board = 4}};
  Link link{.source = 0, .destination = 2, .type = LinkType::kC2c, .capacity = 1.0 / 3};
  link.latency_us = 0.7;
  link.attributes = {{"count", "2"}};
  link.measured = "by hand";
  link.assumed = false;
  description.links = {link};
  const Topology topology(description);
  EXPECT_EQ(read_json(write_json(topology), "written"), topology);
  EXPECT_FALSE(topology.symmetric());
}

TEST(TopologyJson, NamesFileLineAndPathOfAnError) {
  EXPECT_EQ(json_complaint(two_gpus()), "");
  const struct {
    const char* piece;
    const char* other;
    const char* message;
  } cases[] = {
      {"\"capacity\": 25.0}", "\"capacity\": -1}", "two.json: links[0].capacity: -1 is not"},
      {"\"capacity\": 25.0}", "\"capacity\": 0}", "two.json: links[0].capacity: 0 is not"},
      {"\"capacity\": 25.0}", "\"capacity\": 1e300}", "two.json: links[0].capacity: 1e+300 is not"},
      {"\"capacity\": 25.0}", "\"capacity\": 1e999}",
       "two.json: line 5, column 67: the number 1e999 is too large"},
      {"\"capacity\": 25.0}", "\"capacity\": NaN}", "two.json: parse error at line 5, column"},
      {"\"capacity\": 25.0}", "\"capacity\": Infinity}", "two.json: parse error at line 5"},
      {"\"capacity\": 25.0}", "\"capacity\": \"x\"}",
       "two.json: links[0].capacity: must be a number, is string"},
      {"\"capacity\": 25.0}", "\"capactiy\": 25.0}",
       "two.json: links[0]: unknown field \"capactiy\"; known are src"},
      {", \"capacity\": 25.0}", "}", "two.json: links[0]: \"capacity\" is missing"},
      {"\"dst\": \"b\"", "\"dst\": \"c\"", "two.json: links[0].dst: there is no node \"c\""},
      {"\"dst\": \"b\"", "\"dst\": \"a\"", "two.json: links[0]: leads from a to itself"},
      {"\"src\": \"b\", \"dst\": \"a\"", "\"src\": \"a\", \"dst\": \"b\"",
       "two.json: links[1]: another nvlink link from a to b after links[0]"},
      {"\"type\": \"nvlink\"", "\"type\": \"rope\"",
       "two.json: links[0].type: unknown link type \"rope\"; known are nvlink, xgmi"},
      {"\"kind\": \"gpu\"", "\"kind\": \"GPU\"",
       "two.json: nodes[0].kind: unknown kind \"GPU\"; known are gpu"},
      {"\"id\": \"b\"", "\"id\": \"a\"", "two.json: nodes[1].id: \"a\" is also the id of nodes[0]"},
      {"\"id\": \"b\"", "\"id\": \"\"", "two.json: links[0].dst: there is no node \"b\""},
      {"\"rank\": 1", "\"rank\": 0", "two.json: nodes[1].rank: 0 is of a and of b"},
      {"\"rank\": 1", "\"rank\": 2", "two.json: nodes[1].rank: 2 (b): ranks of 2 GPUs are 0 to 1"},
      {"\"rank\": 1", "\"rank\": 0.5", "two.json: nodes[1].rank: must be a whole number, is 0.5"},
      {", \"rank\": 1", "", "two.json: nodes[1].rank: GPU b has none"},
      {"\"host\": 0, \"rank\": 1", "\"host\": 1, \"rank\": 1", "two.json: nodes[1].host: 1 (b)"},
      {"\"hosts\": 1", "\"hosts\": 0", "two.json: hosts: 0 is not between"},
      {"\"hosts\": 1", "\"hosts\": 99999999999", "two.json: hosts: must be a whole number"},
      {"[\"nvlink\"]", "[]", "two.json: planes.nvlink: has no link types"},
      {"[\"nvlink\"]", "[\"nvlink\", \"nvlink\"]",
       "two.json: planes.nvlink: has a link type twice"},
      {"\"nvlink\": [\"nvlink\"]", "\"p\": [\"nvlink\"], \"p\": [\"pcie\"]",
       "two.json: line 2, column 32: field \"p\" twice in one object"},
      {"topology/1", "topology/2", "two.json: schema: must be \"gpu-topology/1\""},
      {"\"name\": \"two\"", "\"name\": [[[[[[[]]]]]]]",
       "two.json: line 1, column 43: nested deeper than"},
      {"25.0},", "25.0}", "two.json: parse error at line 6, column"},
      {"25.0}]}", "24.0}]}",
       "two.json: symmetric: is true, but the nvlink link from a to b (25 GB/s) has no twin"},
  };
  for (const auto& each : cases) {
    SCOPED_TRACE(each.other);
    EXPECT_THAT(json_complaint(two_gpus(each.piece, each.other)), StartsWith(each.message));
  }
  EXPECT_THAT(json_complaint("[]"), StartsWith("two.json: must be an object, is array"));
  EXPECT_THAT(json_complaint(""), StartsWith("two.json: parse error at line 1"));
  EXPECT_THAT(json_complaint(std::string(100000, '[')), HasSubstr("nested deeper"));
}

// The time grows with the links, not with their square: that would take a minute under a sanitizer.
TEST(TopologyJson, ReadsManyLinks) {
  const Topology mesh = synthetic("80gpu nvmesh");
  EXPECT_GE(mesh.links().size(), 80U * 79U);
  EXPECT_EQ(read_json(write_json(mesh), "written"), mesh);
}

TEST(TopologyJson, RefusesAHugeTextBeforeParsing) {
  EXPECT_THAT(json_complaint(std::string(kMaxFileBytes + 1, ' ')),
              HasSubstr("64 MiB is the limit"));
}

}  // namespace
}  // namespace ropewalk::topology
