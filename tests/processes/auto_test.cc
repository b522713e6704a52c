// What NET=auto takes where a host has adapters for libpsm2 or libfabric, by stand-ins for them: on
// one host, between hosts (network namespaces), and where what it would take fails its trial.
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/error.h"
#include "diagnose/measure.h"
#include "processes/rank_processes.h"
#include "transport/rails/testing/two_hosts.h"
#include "transport/registry.h"

namespace ropewalk::testing {
namespace {

namespace fs = std::filesystem;

// What a host has.
struct Host {
  std::vector<std::string> adapters = {};  ///< in /sys/class/infiniband
  const char* psm2 = nullptr;              ///< what its libpsm2 is like; null: it has none
  const char* fabric = nullptr;            ///< what its libfabric is like; null: it has none
};

// An Omni-Path adapter that libpsm2 and libfabric reach, one of InfiniBand, and none.
const std::string kNic = "local,nic=rail0/PCI/100/0c:42:a1:00:00:5e";
const Host kOmniPath{{"hfi1_0"}, "", kNic.c_str()};
const Host kInfiniBand{{"mlx5_0"}, nullptr, kNic.c_str()};
const Host kNone{{}, "", kNic.c_str()};

void check(bool done, const std::string& what) {
  if (!done) throw system_error(errno, what);
}

// In a mount namespace of its own: a /sys/class that has the adapters beside what it had.
void enter_sysfs_with(const std::vector<std::string>& adapters, const fs::path& folder) {
  check(unshare(CLONE_NEWNS) == 0, "unshare");
  check(mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0, "mount /");
  if (adapters.empty()) return;
  check(mount("tmpfs", folder.c_str(), "tmpfs", 0, nullptr) == 0, "mount tmpfs");
  for (const auto& entry : fs::directory_iterator("/sys/class")) {
    const fs::path copy = folder / entry.path().filename();
    if (copy.filename() == "infiniband" || copy.filename() == "cxi") continue;
    fs::create_directory(copy);
    check(mount(entry.path().c_str(), copy.c_str(), nullptr, MS_BIND, nullptr) == 0,
          "mount --bind");
  }
  for (const std::string& adapter : adapters) {
    const fs::path own = folder / "infiniband" / adapter;
    fs::create_directories(own / "ports/1/gids");
    std::ofstream(own / "node_guid") << "0011:7501:0109:6c5f\n";
    std::ofstream(own / "ports/1/rate") << "100 Gb/sec (4X EDR)\n";
    std::ofstream(own / "ports/1/gids/0") << "fe80:0000:0000:0000:0011:7501:0109:6c5f\n";
  }
  check(mount(folder.c_str(), "/sys/class", nullptr, MS_BIND | MS_REC, nullptr) == 0,
        "mount /sys/class");
}

std::optional<std::string> a_pci_device() {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator("/sys/bus/pci/devices", none)) {
    return entry.path().filename().string();
  }
  return std::nullopt;
}

// The lines of a rank's log.
struct Log {
  std::vector<std::string> lines;
  [[nodiscard]] std::vector<std::string> with(std::string_view first,
                                              std::string_view second = {}) const {
    std::vector<std::string> found;
    std::copy_if(lines.begin(), lines.end(), std::back_inserter(found), [&](const auto& line) {
      return line.find(first) != std::string::npos && line.find(second) != std::string::npos;
    });
    return found;
  }
  // The transports over which connections send.
  [[nodiscard]] std::set<std::string> sends_over() const {
    constexpr std::string_view kSays = "auto: a connection sends over ";
    std::set<std::string> found;
    for (const std::string& line : with(kSays)) {
      found.insert(line.substr(line.find(kSays) + kSays.size()));
    }
    return found;
  }
};

class AutoChoice : public ::testing::Test {
 protected:
  using Settings = std::vector<std::pair<std::string, std::string>>;

  void SetUp() override {
    const auto known = transport::compiled_providers();
    for (const std::string_view needed : {"ofi", "psm2"}) {
      if (std::find(known.begin(), known.end(), needed) == known.end()) {
        GTEST_SKIP() << "this build has no transport " << needed;
      }
    }
    if (!hosts_.ready()) GTEST_SKIP() << "network namespaces cannot be made here";
    if (!a_pci_device()) GTEST_SKIP() << "this machine has no PCI device to name";
    folder_ = fs::path(::testing::TempDir()) / fmt::format("rw-auto-{}", getpid());
    fs::create_directories(folder_ / "class");
  }
  ~AutoChoice() override {
    std::error_code none;
    if (!folder_.empty()) fs::remove_all(folder_, none);
  }
  AutoChoice() = default;
  AutoChoice(const AutoChoice&) = delete;
  AutoChoice& operator=(const AutoChoice&) = delete;

  // All-reduces of two ranks, which are right; and what each logged.
  // @param apart  each in a network namespace of its own, which is another host
  std::vector<Log> run(const std::vector<Host>& hosts, bool apart, const Settings& settings = {}) {
    const std::string pci = a_pci_device().value();
    RankOptions options;
    options.settings = {{"TIMEOUT", "60"}, {"LINKS", "network"},
                        {"NET", "auto"},   {"NIC_RATES", "stated"},
                        {"DEBUG", "INFO"}, {"DEBUG_SUBSYS", "INIT,NET"}};
    options.settings.insert(options.settings.end(), settings.begin(), settings.end());
    const auto log = [&](int rank) { return folder_ / fmt::format("rank-{}.log", rank); };
    for (const int rank : {0, 1}) fs::remove(log(rank));
    options.before = [&](int rank) {
      const Host& host = hosts.at(static_cast<std::size_t>(rank));
      hosts_.enter(apart ? rank : 0);
      enter_sysfs_with(host.adapters, folder_ / "class");
      setenv("ROPEWALK_DEBUG_FILE", log(rank).c_str(), 1);
      setenv("ROPEWALK_PSM2_LIBRARY", host.psm2 == nullptr ? "libpsm2-none.so" : RW_ADAPTER_LIBPSM2,
             1);
      setenv("RW_ADAPTER_LIBPSM2", host.psm2 == nullptr ? "" : host.psm2, 1);
      setenv("ROPEWALK_OFI_LIBRARY",
             host.fabric == nullptr ? "libfabric-none.so" : RW_STRICT_LIBFABRIC, 1);
      std::string fabric = host.fabric == nullptr ? "" : host.fabric;
      if (const std::size_t at = fabric.find("PCI"); at != std::string::npos) {
        fabric.replace(at, 3, pci);
      }
      setenv("RW_STRICT_LIBFABRIC", fabric.c_str(), 1);
      // Of the providers of this machine's libfabric the one that the stand-in wraps.
      setenv("FI_PROVIDER", "tcp;ofi_rxm", 1);
    };
    RankProcesses ranks(2, options, [](comm::Communicator& comm) {
      std::string wrong;
      for (const std::size_t count : {std::size_t{1}, std::size_t{5'000}, std::size_t{400'000}}) {
        diagnose::MeasureSpec spec;
        spec.collective = Collective::kAllReduce;
        spec.count = count;
        spec.iterations = 2;
        if (diagnose::measure(comm, spec).wrong != 0) wrong += std::to_string(count) + " ";
      }
      return "wrong: " + wrong;
    });
    std::vector<Log> logs(2);
    for (const int rank : {0, 1}) {
      const std::optional<Report> report = ranks.wait(rank, std::chrono::milliseconds(120'000));
      EXPECT_TRUE(report.has_value()) << "rank " << rank << " ended without a report";
      if (report) {
        EXPECT_EQ(report->text, "wrong: ");
      }
      std::ifstream file(log(rank));
      for (std::string line; std::getline(file, line);) {
        logs[static_cast<std::size_t>(rank)].lines.push_back(line);
      }
    }
    return logs;
  }

  const transport::rails::testing::TwoHosts hosts_{{0}};
  fs::path folder_;
};

using Names = std::set<std::string>;

TEST_F(AutoChoice, OnOneHostMemoryWhateverAdaptersThereAre) {
  for (const Log& log : run({kOmniPath, kOmniPath}, false)) {
    EXPECT_EQ(log.sends_over(), Names{"shm"});
  }
  for (const Log& log : run({kInfiniBand, kInfiniBand}, false)) {
    EXPECT_EQ(log.sends_over(), Names{"shm"});
  }
}

TEST_F(AutoChoice, BetweenHostsPsm2BeforeOfiWhichIsNotLoadedThen) {
  for (const Log& log : run({kOmniPath, kOmniPath}, true)) {
    EXPECT_EQ(log.sends_over(), Names{"psm2"});
    EXPECT_EQ(log.with("psm2: hfi1_0").size(), 1U);
    EXPECT_TRUE(log.with("ofi: ").empty());
  }
}

TEST_F(AutoChoice, BetweenHostsOfiWhereTheAdapterIsNoneOfPsm2) {
  for (const Log& log : run({kInfiniBand, kInfiniBand}, true)) {
    EXPECT_EQ(log.sends_over(), Names{"ofi"});
    EXPECT_TRUE(log.with("psm2").empty());
    EXPECT_EQ(log.with("ofi: tcp;ofi_rxm on rail0 (").size(), 1U);
  }
}

// Why is one line of `auto`.
TEST_F(AutoChoice, BetweenHostsOfiWherePsm2CannotUseTheAdapter) {
  const std::vector<std::pair<const char*, const char*>> cases = {
      {"inactive", "none of 1 adapters has an active port"},
      {"no_init", "psm2_init"},
      {nullptr, "libpsm2-none.so was not found"},
  };
  for (const auto& [psm2, why] : cases) {
    SCOPED_TRACE(why);
    Host host = kOmniPath;
    host.psm2 = psm2;
    for (const Log& log : run({host, host}, true)) {
      EXPECT_EQ(log.sends_over(), Names{"ofi"});
      EXPECT_EQ(log.with("auto: psm2 is not used: ", why).size(), 1U);
    }
  }
}

TEST_F(AutoChoice, BetweenHostsTcpWhereLibfabricHasSocketsAlone) {
  Host host = kInfiniBand;
  host.fabric = "";
  for (const Log& log : run({host, host}, true)) {
    EXPECT_EQ(log.sends_over(), Names{"tcp"});
    EXPECT_EQ(log.with("auto: ofi is not used: it has no NIC of its own").size(), 1U);
  }
  host.fabric = "raw";
  for (const Log& log : run({host, host}, true)) {
    EXPECT_EQ(log.sends_over(), Names{"tcp"});
    EXPECT_EQ(log.with("auto: ofi is not used: ", "tcp;ofi_rxm demands FI_MR_RAW").size(), 1U);
  }
}

// Without an adapter no library is loaded, unless the user asks for it.
TEST_F(AutoChoice, BetweenHostsTcpWithoutAdapters) {
  for (const Log& log : run({kNone, kNone}, true)) {
    EXPECT_EQ(log.sends_over(), Names{"tcp"});
    EXPECT_TRUE(log.with("ofi").empty());
    EXPECT_TRUE(log.with("psm2").empty());
  }
  for (const Log& log : run({kNone, kNone}, true, {{"OFI_PROVIDER", "tcp;ofi_rxm"}})) {
    EXPECT_EQ(log.sends_over(), Names{"ofi"});
  }
}

// One line at each end for each connection that is passed over: a message is changed by the
// adapter.
TEST_F(AutoChoice, WhatFailsItsTrialIsPassedOverWithOneLine) {
  Host psm2 = kOmniPath;
  psm2.psm2 = "damage";
  Host ofi = kInfiniBand;
  const std::string damaging = kNic + ",damage";
  ofi.fabric = damaging.c_str();
  for (const auto& [host, name] : {std::pair{psm2, "psm2"}, std::pair{ofi, "ofi"}}) {
    SCOPED_TRACE(name);
    for (const Log& log : run({host, host}, true)) {
      EXPECT_EQ(log.sends_over(), Names{"tcp"});
      const auto sent = log.with("auto: a connection sends over tcp");
      const auto received = log.with("auto: a connection receives over tcp");
      const std::string refused = fmt::format("auto: {} is not used for this connection", name);
      EXPECT_EQ(log.with(refused, "another path is tried").size(), sent.size());
      EXPECT_EQ(log.with(refused, "waiting for another path").size(), received.size());
      EXPECT_FALSE(sent.empty());
      EXPECT_FALSE(received.empty());
    }
  }
}

// The hosts of a job need not be alike.
TEST_F(AutoChoice, BetweenHostsTcpWhereTheyHaveNoAdapterInCommon) {
  const std::vector<Log> logs = run({kOmniPath, kInfiniBand}, true);
  for (const Log& log : logs) EXPECT_EQ(log.sends_over(), Names{"tcp"});
  EXPECT_FALSE(logs[0].with("auto: no connection over ofi: not available at this end").empty());
  EXPECT_FALSE(logs[1].with("auto: no connection over psm2: not available at this end").empty());
}

}  // namespace
}  // namespace ropewalk::testing
