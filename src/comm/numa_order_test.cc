// Communicators whose ranks are on the NUMA nodes of a host in turn: rings and chains go by node,
// and every result is right. The nodes are made: each rank has a runtime of its own, in which the
// processors of this process belong to the rank's node.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/test_support.h"
#include "comm/communicator.h"
#include "comm/testing/ranks.h"
#include "core/log.h"
#include "core/testing/share.h"
#include "machine/machine.h"
#include "machine/placement.h"
#include "schedule/layout.h"
#include "schedule/pattern.h"
#include "topology/merge.h"
#include "topology/synthetic.h"

namespace ropewalk::comm {
namespace {

using bootstrap::error_of;
using bootstrap::quiet_config;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using tune::NumaNodes;
using tune::Processors;

// The node of one rank, and its host.
struct Seat {
  int numa = 0;
  std::string host = "a";
};

NumaNodes nodes_of(int numa) {
  if (numa < 0) return {};
  Processors other;
  other.bits.back() = std::uint64_t{1} << 63U;
  return NumaNodes({{numa, Processors::usable()}, {numa + 100, other}});
}

void with_seats(const std::vector<Seat>& seats, const std::string& algorithm,
                const std::function<void(Communicator&)>& body) {
  bootstrap::Context context;
  const bootstrap::UniqueId id = bootstrap::make_unique_id(quiet_config(), context);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < seats.size(); ++r) {
    threads.emplace_back([&, r] {
      const auto [code, text] = error_of([&] {
        Runtime runtime;
        testing::quiet(runtime);
        runtime.set("SOCKET_IFNAME", "lo", "test");
        runtime.set("HOST_ID", seats[r].host, "test");
        runtime.set("ALGORITHM", algorithm, "test");
        runtime.set_numa_nodes(nodes_of(seats[r].numa));
        const auto comm =
            Communicator::join(id, static_cast<int>(r), static_cast<int>(seats.size()), runtime);
        body(*comm);
        comm->finalize();
      });
      EXPECT_EQ(text, "no error") << "rank " << r;
    });
  }
  for (std::thread& thread : threads) thread.join();
}

std::vector<std::string> orders(const std::vector<Seat>& seats) {
  std::vector<std::string> found(seats.size());
  with_seats(seats, "auto", [&](Communicator& comm) {
    found[static_cast<std::size_t>(comm.rank())] =
        fmt::format("{}", fmt::join(comm.facts().ring_order, " "));
  });
  return found;
}

void expect_right(Communicator& comm, Collective collective, int root, std::size_t count) {
  const schedule::TestPattern pattern(collective, DataType::kFloat32, RedOp::kSum, comm.size(),
                                      root, count);
  const auto units = [&](int number) { return static_cast<std::size_t>(number) * count; };
  std::vector<float> in(units(schedule::input_units(collective, comm.size(), root, comm.rank())));
  std::vector<float> out(units(schedule::output_units(collective, comm.size(), root, comm.rank())),
                         -1.0F);
  pattern.fill_input(comm.rank(), in.data());
  CollectiveCall call;
  call.collective = collective;
  call.count = count;
  call.root = root;
  call.input = in.data();
  call.output = out.data();
  comm.run(call);
  EXPECT_EQ(pattern.count_wrong(comm.rank(), out.data()), 0U)
      << name(collective) << " of " << count << " from root " << root;
}

TEST(NumaOrder, AllRanksFindTheSame) {
  EXPECT_THAT(orders({{0}, {1}, {0}, {1}}), Each("0 2 1 3"));
  EXPECT_THAT(orders({{1}, {0}, {1}, {0}}), Each("1 3 0 2"));
  EXPECT_THAT(orders({{0, "a"}, {0, "b"}, {1, "a"}, {1, "b"}, {0, "a"}, {0, "b"}}),
              Each("0 4 2 1 5 3"));
}

TEST(NumaOrder, NothingChangesInOrderOrUnbound) {
  EXPECT_THAT(orders({{0}, {0}, {1}, {1}}), Each(IsEmpty()));
  EXPECT_THAT(orders({{-1}, {-1}, {-1}, {-1}}), Each(IsEmpty()));
  EXPECT_THAT(orders({{0}, {1}, {-1}, {1}}), Each(IsEmpty()));
}

TEST(NumaOrder, ResultsAreRight) {
  const std::vector<std::vector<Seat>> groups = {
      {{0}, {1}, {0}, {1}, {0}},
      {{3}, {2}, {1}, {0}, {3}, {2}, {1}, {0}},
      {{0, "a"}, {0, "b"}, {1, "a"}, {1, "b"}, {0, "a"}, {0, "b"}},
  };
  for (const std::vector<Seat>& seats : groups) {
    for (const char* algorithm : {"ring", "chain", "auto"}) {
      with_seats(seats, algorithm, [&](Communicator& comm) {
        EXPECT_FALSE(comm.facts().ring_order.empty());
        // Ranks that share cores take long beside a sanitizer.
        const bool all = ropewalk::testing::share() == 1;
        for (const std::size_t count : {std::size_t{3}, std::size_t{all ? 30'000U : 5'000U}}) {
          for (const Collective collective :
               {Collective::kAllReduce, Collective::kAllGather, Collective::kReduceScatter}) {
            expect_right(comm, collective, 0, count);
          }
          const int step = all ? 1 : comm.size() - 1;
          for (int root = 0; root < comm.size(); root += step) {
            for (const Collective collective : {Collective::kBroadcast, Collective::kReduce,
                                                Collective::kGather, Collective::kScatter}) {
              expect_right(comm, collective, root, count);
            }
          }
        }
      });
    }
  }
}

// Lines of several threads.
std::mutex numa_lines_mutex;
std::vector<std::string>& numa_lines() {
  static std::vector<std::string> lines;
  return lines;
}
void hear_numa(log::Level /*level*/, std::uint32_t /*subsystem*/, const char* line) {
  const std::lock_guard lock(numa_lines_mutex);
  numa_lines().emplace_back(line);
}

TEST(NumaOrder, IsLoggedOnce) {
  numa_lines().clear();
  log::set_sink(hear_numa);
  EXPECT_THAT(orders({{0}, {1}, {0}, {1}}), Each("0 2 1 3"));
  EXPECT_THAT(orders({{0}, {0}, {1}, {1}}), Each(IsEmpty()));
  log::set_sink(nullptr);
  EXPECT_EQ(std::ranges::count_if(numa_lines(),
                                  [](const std::string& line) {
                                    return line.find("by host and NUMA node: 0 2 1 3") !=
                                           std::string::npos;
                                  }),
            1);
  EXPECT_EQ(std::ranges::count_if(
                numa_lines(),
                [](const std::string& line) { return line.find("visit the ranks") != line.npos; }),
            1);
}

// The order that schedules serve is the one that rwCommTopology tells of the same seats.
TEST(NumaOrder, IsThatOfTheMachine) {
  const topology::Topology host = topology::synthetic("2cpu 2gpu");
  const topology::Topology whole = topology::merge(std::vector(2, host), topology::Fabric::kOne);
  machine::Seats seats;
  machine::Machine machine{whole, {}, nullptr, "found"};
  const auto cpus = whole.nodes_of(topology::NodeKind::kCpu);
  for (int r = 0; r < 8; ++r) {
    const int on = r % 2;
    const int numa = r / 2 % 2;
    seats.host_of_rank.push_back(on);
    seats.numa_of_rank.push_back(numa);
    seats.processors.push_back(Processors::of_list(std::to_string(numa * 4 + r / 4)));
    machine.node_of_rank.push_back(cpus[static_cast<std::size_t>(on * 2 + numa)]);
    machine.core_of_rank.push_back(numa * 4 + r / 4);
  }
  EXPECT_THAT(ring_near(seats), ElementsAre(0, 4, 2, 6, 1, 5, 3, 7));
  EXPECT_EQ(ring_near(seats), ring_order(machine));
}

}  // namespace
}  // namespace ropewalk::comm
