// What joining processes learn about their machine, and about differing settings TOPOLOGY and NET:
// errors on all ranks, by rank and name, never a hang.
#include <gtest/gtest.h>
#include <linux/capability.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "core/error.h"
#include "machine/machine.h"
#include "processes/rank_processes.h"
#include "topology/json.h"
#include "topology/named.h"

namespace ropewalk::testing {
namespace {

namespace fs = std::filesystem;
constexpr int kRanks = 4;
constexpr std::chrono::milliseconds kPatience{60'000};

class Machines : public ::testing::Test {
 protected:
  Machines() {
    std::string pattern = (fs::temp_directory_path() / "ropewalk-machines-XXXXXX").string();
    folder_ = mkdtemp(pattern.data());
  }
  ~Machines() override { fs::remove_all(folder_); }

  std::string write(const std::string& name, const std::string& machine) const {
    std::ofstream(folder_ / name) << topology::write_json(topology::named(machine));
    return (folder_ / name).string();
  }

  // By rank: how joining ended, each with TOPOLOGY, or another setting, by `name_of`.
  std::vector<Report> join(const std::function<std::string(int)>& name_of,
                           const std::string& setting = "TOPOLOGY") const {
    RankOptions options;
    options.settings = {{"TIMEOUT", "50"}, {"SOCKET_IFNAME", "lo"}};
    options.before = [&](int rank) {
      const std::string name = name_of(rank);
      if (!name.empty()) setenv(("ROPEWALK_" + setting).c_str(), name.c_str(), 1);
    };
    RankProcesses ranks(kRanks, options, [](comm::Communicator& comm) {
      return comm.machine().topology.name() + " " + machine::fingerprint(comm.machine());
    });
    std::vector<Report> reports;
    for (int r = 0; r < kRanks; ++r) {
      const std::optional<Report> report = ranks.wait(r, kPatience);
      EXPECT_TRUE(report.has_value()) << "rank " << r << " hangs, or died";
      reports.push_back(report.value_or(Report{}));
    }
    return reports;
  }

  void expect_on_all(const std::function<std::string(int)>& name_of, Errc code,
                     const std::string& said, const std::string& setting = "TOPOLOGY") const {
    for (const Report& report : join(name_of, setting)) {
      EXPECT_TRUE(report.error) << report.text;
      EXPECT_EQ(report.code, code) << report.text;
      EXPECT_NE(report.text.find(said), std::string::npos) << report.text;
    }
  }

  fs::path folder_;
};

TEST_F(Machines, AllRanksHaveTheSame) {
  const std::vector<Report> found = join([](int) { return ""; });
  for (const Report& report : found) {
    EXPECT_FALSE(report.error) << report.text;
    EXPECT_EQ(report.text, found[0].text);
  }
  const std::string file = write("machine.json", "dgx1v");
  for (const Report& report : join([&](int rank) { return rank == 1 ? "dgx1v" : file; })) {
    EXPECT_FALSE(report.error) << report.text;
    const std::string name = topology::named("dgx1v").name();
    EXPECT_TRUE(report.text.starts_with(name + " ")) << report.text;
  }
}

TEST_F(Machines, AnotherTopologyOnOneRank) {
  expect_on_all([](int rank) { return rank == 2 ? "dgx-a100" : "dgx1v"; }, Errc::kInvalidUsage,
                "setting TOPOLOGY differs: rank ");
  expect_on_all([](int rank) { return rank == 3 ? "dgx1v" : ""; }, Errc::kInvalidUsage,
                "rank 3 has dgx1v");
}

// Also of ranks on one host, whose links NET does not choose.
TEST_F(Machines, AnotherNetOnOneRank) {
  expect_on_all([](int rank) { return rank == 2 ? "shm" : "tcp"; }, Errc::kInvalidUsage,
                "setting NET differs: rank ", "NET");
  expect_on_all([](int rank) { return rank == 3 ? "tcp" : ""; }, Errc::kInvalidUsage,
                "rank 3 has tcp", "NET");
}

TEST_F(Machines, OneNameWithAnotherFileOnOneRank) {
  fs::create_directory(folder_ / "one");
  fs::create_directory(folder_ / "other");
  write("one/machine.json", "dgx1v");
  write("other/machine.json", "dgx-a100");
  expect_on_all(
      [&](int rank) {
        fs::current_path(folder_ / (rank == 1 ? "other" : "one"));
        return "./machine.json";
      },
      Errc::kInvalidUsage, "rank 1 has ./machine.json with contents ");
}

// The file is there for the others: each process has a folder of its own to look from.
TEST_F(Machines, AFileThatOneRankCannotRead) {
  fs::create_directory(folder_ / "empty");
  write("machine.json", "dgx1v");
  expect_on_all(
      [&](int rank) {
        fs::current_path(rank == 2 ? folder_ / "empty" : folder_);
        return "./machine.json";
      },
      Errc::kInvalidArgument, "TOPOLOGY of rank 2: ./machine.json: no such file");
}

// Root may read all files: that rank is root without its capabilities.
TEST_F(Machines, AFileThatOneRankMayNotRead) {
  const std::string file = write("machine.json", "dgx1v");
  const std::string closed = write("closed.json", "dgx1v");
  fs::permissions(closed, fs::perms::owner_write);
  expect_on_all(
      [&](int rank) {
        if (rank != 3) return file;
        __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
        __user_cap_data_struct none[_LINUX_CAPABILITY_U32S_3]{};
        if (syscall(SYS_capset, &header, none) != 0) _exit(1);
        return closed;
      },
      Errc::kSystem, fmt::format("TOPOLOGY of rank 3: {}: ", closed));
}

}  // namespace
}  // namespace ropewalk::testing
