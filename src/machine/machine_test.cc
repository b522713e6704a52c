// Machines as values: the placement and order of ranks, and the log lines.
#include "machine/machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "machine/host_graphs.h"
#include "machine/placement.h"
#include "topology/merge.h"
#include "topology/synthetic.h"

namespace ropewalk::machine {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using topology::Topology;
using tune::Processors;

std::string complaint(Errc code, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  return "no error";
}

// A host with two NUMA nodes of four cores, and GPUs with addresses.
Topology host(const std::string& parts) {
  topology::Description made = topology::synthetic(parts).description();
  int cpu = 0;
  int gpu = 0;
  for (topology::Node& node : made.nodes) {
    if (node.kind == topology::NodeKind::kCpu) {
      node.numa = cpu;
      node.cpus = fmt::format("{}-{}", 4 * cpu, 4 * cpu + 3);
      ++cpu;
    }
    if (node.kind == topology::NodeKind::kGpu) {
      node.bus_id = fmt::format("0000:{:02x}:00.0", 0x1a + gpu++);
    }
  }
  return Topology(std::move(made));
}

Topology two_hosts() {
  return topology::merge(std::vector(2, host("2cpu 2gpu 1nic")), topology::Fabric::kOne);
}

std::vector<std::string> ids(const Topology& of, const std::vector<topology::NodeIndex>& nodes) {
  std::vector<std::string> found;
  for (const topology::NodeIndex node : nodes) found.push_back(of.node(node).id);
  return found;
}

std::vector<Processors> lists(const std::vector<std::string>& each) {
  std::vector<Processors> found;
  for (const std::string& list : each) found.push_back(Processors::of_list(list));
  return found;
}

Machine at_cores(const Topology& of, const Seats& seats) {
  Machine machine{of, place_by_cores(of, seats), nullptr, "found"};
  for (const Processors& usable : seats.processors) machine.core_of_rank.push_back(usable.first());
  return machine;
}

TEST(Placement, ByTheCoresOfEachHost) {
  const Topology machine = two_hosts();
  EXPECT_THAT(
      ids(machine, place_by_cores(machine, {{0, 0, 1, 1}, lists({"1", "6", "4-7", "0,2"})})),
      ElementsAre("h0.cpu0", "h0.cpu1", "h1.cpu1", "h1.cpu0"));
}

// The node of which a rank may use most, not the one with most of its cores by number.
TEST(Placement, TheLargestPartOfANodeCounts) {
  const Topology one = host("2cpu 2gpu");
  EXPECT_THAT(ids(one, place_by_cores(one, {{0, 0}, lists({"2-7", "0-3,7"})})),
              ElementsAre("cpu1", "cpu0"));
}

TEST(Placement, UnboundRanksAreSpreadInOrder) {
  const Topology one = host("2cpu 2gpu");
  EXPECT_THAT(
      ids(one, place_by_cores(one, {{0, 0, 0, 0}, lists(std::vector(4, std::string("0-7")))})),
      ElementsAre("cpu0", "cpu0", "cpu1", "cpu1"));
  // A bound rank does not change the placement of others.
  EXPECT_THAT(ids(one, place_by_cores(one, {{0, 0, 0}, lists({"0-7", "0", "0-7"})})),
              ElementsAre("cpu0", "cpu0", "cpu1"));
}

TEST(Placement, ByCoresThatNobodyKnows) {
  const Topology one = host("1cpu 2gpu");
  EXPECT_THAT(ids(one, place_by_cores(one, {{0, 0}, lists({"900", "0"})})),
              ElementsAre("cpu0", "cpu0"));
  EXPECT_THAT(complaint(Errc::kInvalidArgument,
                        [&] {
                          (void)place_by_cores(one, {{0, 1}, lists({"0", "0"})});
                        }),
              HasSubstr("rank 1 is on host 1, which has no CPU"));
}

TEST(Placement, OnGpusByAddressOnEachHost) {
  const Seats seats{{0, 1, 0, 1}, lists({"0", "0", "1", "1"})};
  const std::vector<std::string> bus_ids = {"00000000:1B:00.0", "0000:1a:00.0", "0000:1A:00.0",
                                            "0000:1B:00.0"};
  const Machine placed = place(at_cores(two_hosts(), seats), bus_ids, seats.host_of_rank);
  EXPECT_THAT(ids(placed.topology, placed.node_of_rank),
              ElementsAre("h0.gpu1", "h1.gpu0", "h0.gpu0", "h1.gpu1"));
  ASSERT_NE(placed.planned, nullptr);
  EXPECT_THAT(ids(*placed.planned, placed.planned->gpus()),
              ElementsAre("h0.gpu1", "h1.gpu0", "h0.gpu0", "h1.gpu1"));
}

TEST(Placement, PlansAreForTheRanksGpusAlone) {
  const Seats seats{{0, 0}, lists({"0", "1"})};
  const Machine placed =
      place(at_cores(two_hosts(), seats), std::vector<std::string>{"0000:1b:00.0", "0000:1a:00.0"},
            seats.host_of_rank);
  ASSERT_NE(placed.planned, nullptr);
  EXPECT_THAT(ids(*placed.planned, placed.planned->gpus()), ElementsAre("h0.gpu1", "h0.gpu0"));
  EXPECT_EQ(placed.topology.gpus().size(), 4U);
}

TEST(Placement, WithoutAGpuOfItsOwnThereAreNoPlans) {
  const Seats seats{{0, 0}, lists({"0", "5"})};
  const Machine shared = place(at_cores(two_hosts(), seats),
                               std::vector<std::string>(2, "0000:1a:00.0"), seats.host_of_rank);
  EXPECT_EQ(shared.planned, nullptr);
  EXPECT_THAT(ids(shared.topology, shared.node_of_rank), ElementsAre("h0.gpu0", "h0.gpu0"));
  // One that discovery did not see.
  const Machine unseen =
      place(at_cores(two_hosts(), seats), std::vector<std::string>{"0000:1a:00.0", "0000:ff:00.0"},
            seats.host_of_rank);
  EXPECT_EQ(unseen.planned, nullptr);
  EXPECT_THAT(ids(unseen.topology, unseen.node_of_rank), ElementsAre("h0.gpu0", "h0.cpu1"));
}

TEST(Placement, ADescribedMachineMustHaveTheGpus) {
  const Seats seats{{0, 0}, lists({"0", "5"})};
  Machine described = at_cores(host("2cpu 2gpu"), seats);
  described.described = true;
  described.origin = "setting TOPOLOGY from environment";
  EXPECT_EQ(complaint(Errc::kInvalidArgument,
                      [&] {
                        (void)place(described,
                                    std::vector<std::string>{"0000:1a:00.0", "0000:2a:00.0"},
                                    seats.host_of_rank);
                      }),
            fmt::format("rank 1 has the GPU 0000:2a:00.0, which {} (setting TOPOLOGY from "
                        "environment) does not have",
                        described.topology.name()));
  // One without addresses says nothing of them.
  described.topology = topology::synthetic("2cpu 2gpu");
  described.node_of_rank = described.topology.gpus();
  const Machine same =
      place(described, std::vector<std::string>(2, "0000:2a:00.0"), seats.host_of_rank);
  EXPECT_EQ(same.node_of_rank, described.node_of_rank);
}

TEST(RingOrder, ByHostNumaNodeAndCore) {
  const Seats seats{{0, 1, 0, 1, 0, 0}, lists({"6", "2", "3", "0", "1", "5"})};
  EXPECT_THAT(ring_order(at_cores(two_hosts(), seats)), ElementsAre(4, 2, 5, 0, 3, 1));
}

TEST(RingOrder, OfEqualPlacementByRank) {
  const Seats seats{{0, 0, 0}, lists(std::vector(3, std::string("0-3")))};
  EXPECT_THAT(ring_order(at_cores(host("2cpu 2gpu"), seats)), ElementsAre(0, 1, 2));
}

TEST(RingOrder, OfGpusByTheirNumaNodes) {
  const Topology one = host("2cpu 4gpu");
  const Machine machine{
      one, {one.gpus()[3], one.gpus()[0], one.gpus()[2], one.gpus()[1]}, nullptr, "found"};
  EXPECT_THAT(ring_order(machine), ElementsAre(1, 3, 0, 2));
}

TEST(MachineText, AtMostThreeLines) {
  const Seats seats{{0, 1, 0, 1}, lists({"0", "0", "6", "1"})};
  const std::vector<std::string> lines = describe(at_cores(two_hosts(), seats));
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_THAT(lines[0], HasSubstr("(found): 2 hosts, 4 GPUs"));
  EXPECT_THAT(lines[0], HasSubstr("4 NUMA nodes, 2 NICs"));
  EXPECT_THAT(lines[1],
              HasSubstr("links, each direction: 12 pcie of 48, 4 smp of 22, 4 net of 50 GB/s"));
  EXPECT_EQ(lines[2], "ranks: 1 on h0.cpu0, 1 on h0.cpu1, 2 on h1.cpu0");
}

TEST(Fingerprint, DistinguishesMachines) {
  const Machine one{host("2cpu 2gpu"), {}, nullptr, "found"};
  const Machine same{host("2cpu 2gpu"), {}, nullptr, "kept"};
  const Machine other{host("2cpu 2gpu 1nic"), {}, nullptr, "found"};
  EXPECT_EQ(fingerprint(one).size(), 16U);
  EXPECT_EQ(fingerprint(one), fingerprint(same));
  EXPECT_NE(fingerprint(one), fingerprint(other));
}

TEST(HostGraphs, AreReadAsTheyWereWritten) {
  HostGraphs graphs{.origin = "found, kept", .described = true};
  for (const char* text : {"a", "bb", "a", "", "bb"}) graphs.add(text);
  EXPECT_THAT(graphs.texts, ElementsAre("a", "bb", ""));
  EXPECT_THAT(graphs.text_of_host, ElementsAre(0, 1, 0, 2, 1));
  EXPECT_EQ(read_host_graphs(write(graphs)), graphs);
  EXPECT_EQ(read_host_graphs(write(HostGraphs{})), HostGraphs{});
}

TEST(HostGraphs, RefuseDamagedText) {
  HostGraphs graphs{.origin = "found"};
  graphs.add("a text");
  graphs.add("another");
  const std::string whole = write(graphs);
  for (std::size_t length = 0; length < whole.size(); ++length) {
    EXPECT_THROW((void)read_host_graphs(whole.substr(0, length)), Error) << length;
  }
  EXPECT_THROW((void)read_host_graphs(whole + "x"), Error);
  // Lengths and offsets that are far too large.
  for (std::size_t offset = 7; offset < whole.size(); offset += 8) {
    std::string other = whole;
    other[offset] = '\xff';
    try {
      (void)read_host_graphs(other);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kInternal);
    }
  }
}

}  // namespace
}  // namespace ropewalk::machine
