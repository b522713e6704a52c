// What communicators know of their machine, ranks being threads with settings of their own: equal
// identities of hosts make a host.
#include "machine/found_hosts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/test_support.h"
#include "comm/communicator.h"
#include "comm/explain.h"
#include "core/digest.h"
#include "core/log.h"
#include "topology/json.h"
#include "topology/merge.h"
#include "topology/named.h"
#include "topology/synthetic.h"

namespace ropewalk::comm {
namespace {

namespace fs = std::filesystem;
using bootstrap::error_of;
using bootstrap::quiet_config;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using HostsOutcome = std::pair<Errc, std::string>;

// Settings of one rank: name and value.
using Settings = std::vector<std::pair<std::string, std::string>>;

// One rank for each of `settings`, in a thread and a runtime of its own; by rank, how it ended.
std::vector<HostsOutcome> join(const std::vector<Settings>& settings,
                               const std::function<void(Communicator&)>& body) {
  bootstrap::Context context;
  const bootstrap::UniqueId id = bootstrap::make_unique_id(quiet_config(), context);
  const int size = static_cast<int>(settings.size());
  std::vector<HostsOutcome> outcomes(settings.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < settings.size(); ++r) {
    threads.emplace_back([&, r] {
      outcomes[r] = error_of([&] {
        Runtime runtime;
        runtime.set("TUNE", "0", "test");
        runtime.set("TOPOLOGY_CACHE", "off", "test");
        runtime.set("SOCKET_IFNAME", "lo", "test");
        runtime.set("TIMEOUT", "60s", "test");
        for (const auto& [name, value] : settings[r]) runtime.set(name, value, "test");
        const auto comm = Communicator::join(id, static_cast<int>(r), size, runtime);
        body(*comm);
        comm->finalize();
      });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

void expect_good(const std::vector<HostsOutcome>& outcomes) {
  for (const auto& [code, text] : outcomes) EXPECT_EQ(text, "no error");
}

// What `body` says, by rank, of ranks that all join.
std::vector<std::string> told(const std::vector<Settings>& settings,
                              const std::function<std::string(Communicator&)>& body) {
  std::vector<std::string> texts(settings.size());
  expect_good(join(settings, [&](Communicator& comm) {
    texts[static_cast<std::size_t>(comm.rank())] = body(comm);
  }));
  return texts;
}

std::string text(Communicator& comm) { return topology::write_json(comm.machine().topology); }

Settings on(const std::string& host) { return {{"HOST_ID", host}}; }

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "ropewalk-found-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  [[nodiscard]] const fs::path& path() const { return path_; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(path_ / name) << text;
    return (path_ / name).string();
  }

 private:
  fs::path path_;
};

TEST(FoundHosts, AHostIsTheOneThatIsDiscovered) {
  const topology::Topology here = topology::discover();
  const std::string expected =
      topology::write_json(topology::merge(std::span(&here, 1), topology::Fabric::kOne));
  EXPECT_THAT(told({{}, {}, {}}, text), Each(expected));
}

TEST(FoundHosts, TwoHostsAreMergedOnEveryRank) {
  const topology::Topology here = topology::discover();
  const std::string expected =
      topology::write_json(topology::merge(std::vector(2, here), topology::Fabric::kOne));
  EXPECT_THAT(told({on("a"), on("b"), on("a"), on("b")}, text), Each(expected));
  EXPECT_THAT(told({on("a"), on("b"), on("a")},
                   [](Communicator& comm) { return fingerprint(comm.machine()); }),
              Each(digest_text(expected)));
}

// Schedules go around them so.
TEST(FoundHosts, RingsLeaveAHostOnce) {
  const auto order = [](Communicator& comm) {
    return fmt::format("{}", fmt::join(comm.facts().ring_order, " "));
  };
  EXPECT_THAT(told({on("a"), on("b"), on("a"), on("b")}, order), Each("0 2 1 3"));
  EXPECT_THAT(told({on("a"), on("a"), on("b")}, order), Each(""));
}

// Hosts are numbered by their first ranks, and each rank is on a node of its own host.
TEST(FoundHosts, RanksAreOnTheirHosts) {
  EXPECT_THAT(told({on("z"), on("z"), on("a"), on("z"), on("a")},
                   [](Communicator& comm) {
                     const machine::Machine& machine = comm.machine();
                     std::string hosts;
                     for (const topology::NodeIndex node : machine.node_of_rank) {
                       EXPECT_EQ(machine.topology.node(node).kind, topology::NodeKind::kCpu);
                       hosts += std::to_string(machine.topology.node(node).host);
                     }
                     EXPECT_EQ(machine.planned, nullptr);
                     const std::vector<int> order = ring_order(machine);
                     return fmt::format("{} {}", hosts, fmt::join(order, ""));
                   }),
              Each("00101 01324"));
}

TEST(FoundHosts, IsKeptForTheNextJob) {
  const Folder folder;
  const Settings kept = {{"TOPOLOGY_CACHE", folder.path()}};
  const auto origin = [](Communicator& comm) { return comm.machine().origin; };
  EXPECT_THAT(told({kept, kept}, origin), Each("found"));
  EXPECT_THAT(told({kept, kept}, origin), Each(StartsWith("kept in " + folder.path().string())));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 1);
}

TEST(FoundHosts, ExplainNamesTheMachine) {
  const std::vector<std::string> reports = told({{}, {}}, [](Communicator& comm) {
    return explain(comm, Collective::kAllReduce, 1024, 0) + fingerprint(comm.machine());
  });
  EXPECT_EQ(reports[0], reports[1]);
  EXPECT_THAT(reports[0], HasSubstr(R"("origin":"found")"));
  EXPECT_THAT(reports[0], HasSubstr(fmt::format(R"("fingerprint":"{}")",
                                                reports[0].substr(reports[0].size() - 16))));
}

// ---- TOPOLOGY ---------------------------------------------------------------------------

Settings topology(const std::string& name) { return {{"TOPOLOGY", name}}; }

TEST(GivenTopology, IsTheMachineWithRankOnGpu) {
  EXPECT_THAT(told({topology("dgx1v"), topology("dgx1v"), topology("dgx1v")},
                   [](Communicator& comm) {
                     const machine::Machine& machine = comm.machine();
                     EXPECT_EQ(machine.topology, topology::named("dgx1v"));
                     EXPECT_EQ(machine.node_of_rank[2], machine.topology.gpus()[2]);
                     EXPECT_EQ(machine.planned->gpus().size(), 3U);
                     return machine.origin;
                   }),
              Each("setting TOPOLOGY from test"));
}

TEST(GivenTopology, AFileCountsByItsContents) {
  const Folder folder;
  const std::string described = topology::write_json(topology::named("dgx1v"));
  const std::string one = folder.write("one.json", described);
  const std::string other = folder.write("other.json", described + "\n\n");
  expect_good(join({topology("dgx1v"), topology(one), topology(other)}, [](Communicator&) {}));
}

void expect_on_all(const std::vector<Settings>& settings, Errc code, const std::string& said) {
  for (const HostsOutcome& outcome : join(settings, [](Communicator&) {})) {
    EXPECT_EQ(outcome.first, code) << outcome.second;
    EXPECT_THAT(outcome.second, HasSubstr(said));
  }
}

TEST(GivenTopology, RanksThatDifferGetAnError) {
  expect_on_all({topology("dgx1v"), topology("dgx1v"), topology("dgx-a100")}, Errc::kInvalidUsage,
                "rank 2 has dgx-a100");
  expect_on_all({topology("dgx1v"), {}, topology("dgx1v")}, Errc::kInvalidUsage, "rank 1 has none");
  expect_on_all({{}, topology("dgx1v")}, Errc::kInvalidUsage, "setting TOPOLOGY differs: rank ");
}

// By name they are the same.
TEST(GivenTopology, FilesWithOtherContentsAreErrors) {
  const Folder a;
  const Folder b;
  const std::string one = a.write("machine.json", topology::write_json(topology::named("dgx1v")));
  const std::string other = b.write("machine.json", topology::write_json(topology::named("dgx1p")));
  expect_on_all({topology(one), topology(other)}, Errc::kInvalidUsage, "rank 1 has " + other);
}

TEST(GivenTopology, AFileThatOneRankCannotReadIsAnErrorOnAll) {
  expect_on_all({topology("dgx1v"), topology("dgx1v"), topology("/not/there.json")},
                Errc::kInvalidArgument, "TOPOLOGY of rank 2: /not/there.json: no such file");
  expect_on_all({topology("9zpu"), topology("dgx1v")}, Errc::kInvalidArgument,
                "TOPOLOGY of rank 0: ");
}

TEST(GivenTopology, MoreRanksThanGpus) {
  expect_on_all({topology("2gpu nvring"), topology("2gpu nvring"), topology("2gpu nvring")},
                Errc::kInvalidArgument,
                "TOPOLOGY: 2gpu nvring has 2 GPUs, the communicator 3 ranks");
}

// ---- NCCL_TOPO_FILE ---------------------------------------------------------------------

class NcclTopoFile : public ::testing::Test {
 protected:
  void give(const std::string& path) { setenv("NCCL_TOPO_FILE", path.c_str(), 1); }
  ~NcclTopoFile() override { unsetenv("NCCL_TOPO_FILE"); }
  Folder folder_;
};

TEST_F(NcclTopoFile, DescribesAHost) {
  const topology::Topology host = topology::synthetic("2cpu 4gpu nvring 1nic");
  give(folder_.write("host.json", topology::write_json(host)));
  const std::string expected =
      topology::write_json(topology::merge(std::vector(2, host), topology::Fabric::kOne));
  EXPECT_THAT(told({on("a"), on("b"), on("b")},
                   [&](Communicator& comm) {
                     EXPECT_EQ(comm.machine().planned, nullptr);
                     EXPECT_TRUE(comm.machine().described);
                     EXPECT_THAT(comm.machine().origin, StartsWith("NCCL_TOPO_FILE "));
                     return text(comm);
                   }),
              Each(expected));
}

TEST_F(NcclTopoFile, YieldsToTheSetting) {
  give(folder_.write("host.json", topology::write_json(topology::synthetic("2cpu 4gpu nvring"))));
  EXPECT_THAT(told({topology("dgx1v"), topology("dgx1v")},
                   [](Communicator& comm) { return comm.machine().topology.name(); }),
              Each(topology::named("dgx1v").name()));
}

TEST_F(NcclTopoFile, ThatCannotBeUsedIsLeftAside) {
  const auto origin = [](Communicator& comm) { return comm.machine().origin; };
  for (const std::string& path :
       {std::string("/not/there.xml"), folder_.write("broken.xml", "<system"),
        folder_.write("pair.json", topology::write_json(topology::synthetic("2x(2gpu 1nic)")))}) {
    give(path);
    EXPECT_THAT(told({{}, {}}, origin), Each("found")) << path;
  }
}

// ---- where things are kept, and what the log says ----------------------------------------

TEST(TopologyCache, FollowsSettingAndEnvironment) {
  const char* home = std::getenv("HOME");
  const std::string before = home == nullptr ? "" : home;
  Config config;
  unsetenv("XDG_CACHE_HOME");
  setenv("HOME", "/home/of", 1);
  EXPECT_EQ(machine::topology_cache(config), "/home/of/.cache/ropewalk");
  setenv("XDG_CACHE_HOME", "/cache", 1);
  EXPECT_EQ(machine::topology_cache(config), "/cache/ropewalk");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  EXPECT_EQ(machine::topology_cache(config), "");
  config.set("TOPOLOGY_CACHE", "/kept", "test");
  EXPECT_EQ(machine::topology_cache(config), "/kept");
  config.set("TOPOLOGY_CACHE", "off", "test");
  EXPECT_EQ(machine::topology_cache(config), "");
  setenv("HOME", before.c_str(), 1);
}

std::mutex log_mutex;
std::vector<std::string>& lines() {
  static std::vector<std::string> heard;
  return heard;
}
void hear(log::Level /*level*/, std::uint32_t subsystem, const char* line) {
  const std::lock_guard lock(log_mutex);
  if ((subsystem & log::kInit) != 0) lines().emplace_back(line);
}

std::vector<std::string> lines_with(const std::string& what) {
  std::vector<std::string> found;
  for (const std::string& line : lines()) {
    if (line.find(what) != std::string::npos) found.push_back(line);
  }
  return found;
}

TEST(MachineLog, RankZeroLogsTheMachineInThreeLines) {
  lines().clear();
  log::set_sink(hear);
  expect_good(join({on("a"), on("a"), on("b")}, [](Communicator&) {}));
  log::set_sink(nullptr);
  EXPECT_THAT(lines_with("machine "), ElementsAre(HasSubstr("(found): 2 hosts, ")));
  EXPECT_EQ(lines_with("links, each direction").size() + lines_with("links: none").size(), 1U);
  EXPECT_EQ(lines_with("ranks: ").size(), 1U);
}

// Hosts with different numbers of ranks: each rank counts those of its own.
TEST(MachineLog, LocalRanksAreThoseOfTheHost) {
  lines().clear();
  log::set_sink(hear);
  expect_good(join({on("a"), on("a"), on("a"), on("b")}, [](Communicator& comm) {
    EXPECT_EQ(comm.facts().num_hosts, 2);
    EXPECT_EQ(comm.facts().max_ranks_per_host, 3);
  }));
  log::set_sink(nullptr);
  EXPECT_EQ(lines_with(" 3 local rank(s)").size(), 3U);
  EXPECT_THAT(lines_with(" 1 local rank(s)"),
              ElementsAre(HasSubstr("rank 3 of 4 joined: 2 host(s)")));
}

}  // namespace
}  // namespace ropewalk::comm
