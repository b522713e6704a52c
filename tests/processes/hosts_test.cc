// Two network namespaces on one machine count as two hosts.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "core/error.h"
#include "diagnose/measure.h"
#include "processes/rank_processes.h"
#include "transport/window/sisci/testing/fabric.h"

namespace ropewalk::testing {
namespace {

// Two namespaces joined by a pair of virtual interfaces, gone with the object.
class TwoHosts {
 public:
  TwoHosts() {
    const std::string tag = std::to_string(getpid());
    names_[0] = "rw" + tag + "a";
    names_[1] = "rw" + tag + "b";
    ready_ = run("ip netns add " + names_[0]) && run("ip netns add " + names_[1]) &&
             run("ip link add rwa" + tag + " netns " + names_[0] + " type veth peer name rwb" +
                 tag + " netns " + names_[1]);
    for (int h = 0; h < 2 && ready_; ++h) {
      const std::string in = "ip -n " + names_[h] + " ";
      const std::string link = (h == 0 ? "rwa" : "rwb") + tag;
      ready_ = run(in + "link set lo up") &&
               run(in + "addr add 10.231.77." + std::to_string(h + 1) + "/24 dev " + link) &&
               run(in + "link set " + link + " up");
    }
  }
  ~TwoHosts() {
    for (const std::string& name : names_) run("ip netns del " + name);
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  [[nodiscard]] bool ready() const { return ready_; }

  // Moves the calling process to host `index`.
  void enter(int index) const {
    const std::string path = "/var/run/netns/" + names_[index];
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0 || setns(fd, CLONE_NEWNET) != 0) throw system_error(errno, "enter " + path);
    close(fd);
  }

 private:
  static bool run(const std::string& command) {
    return std::system((command + " >/dev/null 2>&1").c_str()) == 0;
  }
  std::string names_[2];
  bool ready_ = false;
};

// Every collective in some sizes: "" or what was wrong.
std::string wrong_collectives(comm::Communicator& comm) {
  std::string wrong;
  for (int c = 0; c < kNumCollectives; ++c) {
    for (const std::size_t count : {std::size_t{1}, std::size_t{5'000}, std::size_t{400'000}}) {
      diagnose::MeasureSpec spec;
      spec.collective = static_cast<Collective>(c);
      spec.count = count;
      spec.iterations = 2;
      if (diagnose::measure(comm, spec).wrong != 0) {
        wrong += std::string(name(spec.collective)) + " ";
      }
    }
  }
  return wrong;
}

TEST(Hosts, TwoNamespacesWithTwoRanksEach) {
  const TwoHosts hosts;
  if (!hosts.ready()) GTEST_SKIP() << "network namespaces cannot be made here";
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"}};
  options.before = [&](int rank) { hosts.enter(rank / 2); };
  RankProcesses ranks(4, options, [](comm::Communicator& comm) {
    const std::string wrong = wrong_collectives(comm);
    return fmt::format("{} hosts, {} local, wrong: {}", comm.facts().num_hosts,
                       comm.facts().max_ranks_per_host, wrong);
  });
  for (int r = 0; r < 4; ++r) {
    const std::optional<Report> report = ranks.wait(r, std::chrono::milliseconds(120'000));
    ASSERT_TRUE(report.has_value()) << "rank " << r;
    EXPECT_EQ(report->text, "2 hosts, 2 local, wrong: ");
  }
}

// The setting NET names what carries the links between hosts.
class HostsOver : public ::testing::TestWithParam<const char*> {};

TEST_P(HostsOver, ThreeHostsWithARankEach) {
  const transport::SoftwareFabric fabric;
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"},
                      {"LINKS", "network"},
                      {"SOCKET_IFNAME", "lo"},
                      {"NET", GetParam()},
                      {"SISCI_LIBRARY", RW_SOFTWARE_SISCI}};
  RankProcesses ranks(3, options, [](comm::Communicator& comm) {
    return fmt::format("{} hosts over {}, wrong: {}", comm.facts().num_hosts,
                       comm.links().network(), wrong_collectives(comm));
  });
  for (int r = 0; r < 3; ++r) {
    const std::optional<Report> report = ranks.wait(r, std::chrono::milliseconds(120'000));
    ASSERT_TRUE(report.has_value()) << "rank " << r;
    EXPECT_EQ(report->text, fmt::format("3 hosts over {}, wrong: ", GetParam()));
  }
}

INSTANTIATE_TEST_SUITE_P(Transports, HostsOver, ::testing::Values("tcp", "shm", "sisci", "auto"),
                         [](const auto& over) { return std::string(over.param); });

}  // namespace
}  // namespace ropewalk::testing
