// Two network namespaces on one machine count as two hosts.
#include <arpa/inet.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <net/ethernet.h>
#include <sched.h>
#include <source_dir.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <ostream>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "comm/explain.h"
#include "core/error.h"
#include "core/network_interfaces.h"
#include "diagnose/measure.h"
#include "processes/rank_processes.h"
#include "transport/messaging/ofi/testing/providers.h"
#include "transport/rails/testing/two_hosts.h"
#include "transport/registry.h"
#include "transport/window/sisci/testing/fabric.h"

namespace ropewalk::testing {
namespace {

// Two namespaces joined by pairs of virtual interfaces, each pair with a subnet of its own, removed
// with the object.
class TwoHosts {
 public:
  // By interface: MB/s, of both ends; 0: as fast as they are.
  explicit TwoHosts(const std::vector<int>& rates = {0}) {
    const std::string tag = std::to_string(getpid());
    names_[0] = "rw" + tag + "a";
    names_[1] = "rw" + tag + "b";
    ready_ = run("ip netns add " + names_[0]) && run("ip netns add " + names_[1]);
    for (std::size_t i = 0; i < rates.size() && ready_; ++i) {
      ready_ =
          run(fmt::format("ip link add rwa{0}{1} netns {2} type veth peer name rwb{0}{1} "
                          "netns {3}",
                          i, tag, names_[0], names_[1]));
      for (int h = 0; h < 2 && ready_; ++h) {
        const std::string link = fmt::format("{}{}{}", h == 0 ? "rwa" : "rwb", i, tag);
        const std::string in = "ip -n " + names_[h] + " ";
        ready_ = run(in + "link set lo up") &&
                 run(fmt::format("{}addr add 10.231.{}.{}/24 dev {}", in, 77 + i, h + 1, link)) &&
                 run(in + "link set " + link + " up");
        if (rates[i] == 0) continue;
        shaped_ &=
            run(fmt::format("tc -n {} qdisc add dev {} root tbf rate {}mbit burst 128kb "
                            "latency 10ms",
                            names_[h], link, 8 * rates[i]));
      }
    }
  }
  ~TwoHosts() {
    for (const std::string& name : names_) run("ip netns del " + name);
  }
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;

  [[nodiscard]] bool ready() const { return ready_; }
  // The kernel knows how to shape.
  [[nodiscard]] bool shaped() const { return shaped_; }

  // Interface `i` goes on being up, and answers nobody.
  [[nodiscard]] bool lose(int i) const {
    return run(fmt::format("ip -n {} link set rwb{}{} arp off", names_[1], i, maker_));
  }

  // Interface `i` of the first host goes down.
  [[nodiscard]] bool take_down(int i) const {
    return run(fmt::format("ip -n {} link set rwa{}{} down", names_[0], i, maker_));
  }

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
  const int maker_ = getpid();
  std::string names_[2];
  bool ready_ = false;
  bool shaped_ = true;
};

// What left this host over each of its interfaces so far, in their order, but for loopback.
std::vector<double> sent_bytes() {
  std::vector<double> bytes;
  std::map<std::string, double> by_name;
  for (const InterfaceAddress& each : interface_addresses()) {
    if (each.loopback) continue;
    // The sysfs of the namespace that mounted it shows others.
    std::ifstream file("/proc/thread-self/net/dev");
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string name;
      words >> name;
      if (name != each.name + ":") continue;
      double number = 0;
      for (int i = 0; i < 9; ++i) words >> number;
      by_name[each.name] = number;
    }
  }
  for (const auto& [name, number] : by_name) bytes.push_back(number);
  return bytes;
}

// What each rank reported; fails where one ended without a report.
std::vector<std::string> texts_of(RankProcesses& ranks, int count) {
  std::vector<std::string> texts;
  for (int r = 0; r < count; ++r) {
    const std::optional<Report> report = ranks.wait(r, std::chrono::milliseconds(120'000));
    if (!report.has_value()) ADD_FAILURE() << "rank " << r << " ended without a report";
    texts.push_back(report.has_value() ? report->text : "");
  }
  return texts;
}

// Every collective in some sizes; returns "" or the error.
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
  for (const std::string& text : texts_of(ranks, 4)) {
    EXPECT_EQ(text, "2 hosts, 2 local, wrong: ");
  }
}

TEST(Hosts, PayloadIsEncryptedWhereItIsWanted) {
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"}, {"LINKS", "network"}, {"SOCKET_IFNAME", "lo"},
                      {"NET", "tcp"},    {"NET_ENCRYPT", "1"}, {"CHANNELS", "2"}};
  RankProcesses ranks(3, options,
                      [](comm::Communicator& comm) { return "wrong: " + wrong_collectives(comm); });
  for (const std::string& text : texts_of(ranks, 3)) {
    EXPECT_EQ(text, "wrong: ");
  }
}

// Whether a text of a broadcast is seen by who listens on this host's interfaces.
std::string overheard(comm::Communicator& comm) {
  const int packets = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK, htons(ETH_P_ALL));
  if (packets < 0) return "cannot listen";
  const int room = 64 << 20;
  setsockopt(packets, SOL_SOCKET, SO_RCVBUFFORCE, &room, sizeof room);
  const std::string text = "payload that is not for others";
  std::string all;
  while (all.size() < (1U << 20U)) all += text;
  std::string came = comm.rank() == 0 ? all : std::string(all.size(), ' ');
  comm::CollectiveCall call;
  call.collective = Collective::kBroadcast;
  call.type = DataType::kUint8;
  call.count = came.size();
  call.input = call.output = came.data();
  comm.run(call);
  bool heard = false;
  std::vector<char> packet(1 << 16);
  for (ssize_t bytes; (bytes = recv(packets, packet.data(), packet.size(), 0)) > 0;) {
    heard |= std::string_view(packet.data(), static_cast<std::size_t>(bytes)).find(text) !=
             std::string_view::npos;
  }
  close(packets);
  return came != all ? "wrong" : heard ? "heard" : "not heard";
}

TEST(Hosts, AListenerOnTheNetworkReadsOnlyPlainPayload) {
  const TwoHosts hosts;
  if (!hosts.ready()) GTEST_SKIP() << "network namespaces cannot be made here";
  for (const bool encrypted : {false, true}) {
    RankOptions options;
    options.settings = {{"TIMEOUT", "60"}, {"NET", "tcp"}, {"NET_ENCRYPT", encrypted ? "1" : "0"}};
    options.before = [&](int rank) { hosts.enter(rank); };
    RankProcesses ranks(2, options, overheard);
    for (const std::string& text : texts_of(ranks, 2)) {
      if (text == "cannot listen") GTEST_SKIP() << "packets cannot be listened to here";
      EXPECT_EQ(text, encrypted ? "not heard" : "heard");
    }
  }
}

// Software bridges between ranks that act as hosts; the fault is at rank 1 only.
class OneSided : public ::testing::Test {
 protected:
  // Runs all collectives. @param at_rank_1 in its process, before it joins
  void run(
      const char* net, const std::string& fabric, int size,
      const std::function<void(int rank)>& before = [](int) {}) {
    const transport::SoftwareFabric bridges(fabric);
    RankOptions options;
    options.settings = {{"TIMEOUT", "30"},
                        {"NET", net},
                        {"DEBUG", "WARN"},
                        {"DEBUG_FILE", (bridges.folder() / "log").string()}};
    options.before = [&](int rank) {
      setenv("SOFTWARE_SISCI_HOST", std::to_string(rank).c_str(), 1);
      setenv("ROPEWALK_SISCI_LIBRARY", RW_SOFTWARE_SISCI, 1);
      before(rank);
    };
    RankProcesses ranks(size, options, [](comm::Communicator& comm) {
      return "wrong: " + wrong_collectives(comm);
    });
    for (int r = 0; r < size; ++r) {
      const std::optional<Report> report = ranks.wait(r, std::chrono::milliseconds(120'000));
      ASSERT_TRUE(report.has_value()) << "rank " << r << " hangs, or ended without a report";
      reports.push_back(*report);
    }
    std::ifstream file(bridges.folder() / "log");
    log.assign(std::istreambuf_iterator<char>(file), {});
  }
  void expect_right_results() const {
    for (const Report& report : reports) EXPECT_EQ(report.text, "wrong: ");
  }
  [[nodiscard]] std::size_t lines_with(std::string_view words) const {
    std::size_t count = 0;
    std::istringstream lines(log);
    for (std::string line; std::getline(lines, line);) {
      count += line.find(words) != std::string::npos ? 1 : 0;
    }
    return count;
  }
  // Every rank fails, and says which rank's link it was, or what that rank said.
  void expect_errors_with(const std::string& words) const {
    for (std::size_t r = 0; r < reports.size(); ++r) {
      EXPECT_TRUE(reports[r].error) << reports[r].text;
      EXPECT_NE(reports[r].text.find(words), std::string::npos) << r << ": " << reports[r].text;
      EXPECT_NE(reports[r].text.find("rank "), std::string::npos) << r << ": " << reports[r].text;
    }
  }

  std::vector<Report> reports;
  std::string log;
};

void network_links(int /*rank*/) { setenv("ROPEWALK_LINKS", "network", 1); }

TEST_F(OneSided, TransfersThatMoveNothingAreReplacedByStores) {
  run("sisci", "at_host 1 lose_transfer 1\nat_host 1 lose_all_transfers yes\n", 3, network_links);
  expect_right_results();
  EXPECT_EQ(lines_with("DMA into its window reported success but moved no data"), 2U)
      << log;  // by peer
}

TEST_F(OneSided, ABrokenIommuIsNoticed) {
  run("sisci", "at_host 1 iommu broken\n", 3, network_links);
  expect_right_results();
  EXPECT_GE(lines_with("reports success but moves no data"), 1U) << log;
}

TEST_F(OneSided, StoresThatAreLostEndInAnError) {
  run("sisci", "at_host 1 delayed_stores yes\nat_host 1 lost_flush 3\n", 3, network_links);
  expect_errors_with("sisci");
}

TEST_F(OneSided, ALibraryThatOneRankLacksIsNamed) {
  run("sisci", "", 3, [](int rank) {
    network_links(rank);
    if (rank == 1) setenv("ROPEWALK_SISCI_LIBRARY", "libno-such-sisci.so", 1);
  });
  expect_errors_with(
      "rank 1 has no device of the transport sisci (setting NET): libno-such-sisci.so was not "
      "found");
}

TEST_F(OneSided, VerifyingOnOneSideOnlyIsNamed) {
  run("sisci", "", 2, [](int rank) {
    network_links(rank);
    setenv("ROPEWALK_VERIFY", rank == 1 ? "off" : "connect", 1);
  });
  expect_errors_with("setting VERIFY differs: rank ");
}

// Network namespaces share no memory, so `auto` has only bridges and TCP.
TEST_F(OneSided, AutoTakesTheNextPath) {
  const TwoHosts hosts;
  if (!hosts.ready()) GTEST_SKIP() << "network namespaces cannot be made here";
  run("auto", "at_host 1 delayed_stores yes\nat_host 1 lost_flush 1\n", 2,
      [&](int rank) { hosts.enter(rank); });
  expect_right_results();
  EXPECT_GE(lines_with("sisci is not used for this connection"), 1U) << log;
}

TEST_F(OneSided, AutoWithoutTheLibraryAtOneEnd) {
  const TwoHosts hosts;
  if (!hosts.ready()) GTEST_SKIP() << "network namespaces cannot be made here";
  run("auto", "", 2, [&](int rank) {
    hosts.enter(rank);
    if (rank == 1) setenv("ROPEWALK_SISCI_LIBRARY", "libno-such-sisci.so", 1);
  });
  expect_right_results();
}

// A long all-reduce, and what each NIC carried of it, in shares of the first one's.
std::string shares_of_nics(comm::Communicator& comm) {
  const std::string wrong = wrong_collectives(comm);
  if (!wrong.empty()) return "wrong: " + wrong;
  diagnose::MeasureSpec spec;
  spec.collective = Collective::kAllReduce;
  spec.count = 8 << 20;
  spec.iterations = 2;
  const std::vector<double> before = sent_bytes();
  if (diagnose::measure(comm, spec).wrong != 0) return "wrong all-reduce";
  const std::vector<double> after = sent_bytes();
  std::string shares;
  for (std::size_t i = 0; i < after.size(); ++i) {
    shares += fmt::format("{:.1f} ", (after[i] - before[i]) / (after[0] - before[0]));
  }
  return shares;
}

// Two ranks a host share each NIC, of which the slowest has a seventh of the sum, so that to leave
// it out would cost more than another connection. On a machine that does other work the measured
// rates vary.
TEST(HostsOfSeveralNics, ChannelsAreSpreadByTheirRates) {
  const TwoHosts hosts({60, 60, 20});
  if (!hosts.ready() || !hosts.shaped()) {
    GTEST_SKIP() << "network namespaces with shaped interfaces cannot be made here";
  }
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"}, {"NET", "tcp"}};
  options.before = [&](int rank) { hosts.enter(rank / 2); };
  RankProcesses ranks(4, options, shares_of_nics);
  for (const std::string& text : texts_of(ranks, 4)) {
    std::istringstream shares(text);
    double first = 0;
    double second = 0;
    double slow = 0;
    ASSERT_TRUE(shares >> first >> second >> slow) << text;
    EXPECT_GT(second, 0.3) << text;
    EXPECT_LT(second, 3) << text;
    EXPECT_GT(slow, 0) << text;
    EXPECT_LT(slow, 0.6 * std::max(1.0, second)) << text;
  }
}

TEST(HostsOfSeveralNics, ByStatedRatesNothingIsMeasured) {
  const TwoHosts hosts({0, 0});
  if (!hosts.ready()) GTEST_SKIP() << "network namespaces cannot be made here";
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"}, {"NIC_RATES", "stated"}, {"CHANNELS", "2"}};
  options.before = [&](int rank) { hosts.enter(rank); };
  RankProcesses ranks(2, options, shares_of_nics);
  for (const std::string& text : texts_of(ranks, 2)) {
    EXPECT_EQ(text, "1.0 1.0 ");
  }
}

// One that both hosts list, and that carries nothing.
TEST(HostsOfSeveralNics, OneThatDoesNotConnectIsLeftOut) {
  const TwoHosts hosts({0, 0, 0});
  if (!hosts.ready() || !hosts.lose(1)) GTEST_SKIP() << "this cannot be set up here";
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"}, {"CHANNELS", "3"}};
  options.before = [&](int rank) { hosts.enter(rank); };
  RankProcesses ranks(2, options, shares_of_nics);
  for (const std::string& text : texts_of(ranks, 2)) {
    EXPECT_NE(text.find(" 0.0 "), std::string::npos) << text;
    EXPECT_EQ(text.find("wrong"), std::string::npos) << text;
  }
}

// One that was there while joining, and is not when the first link over it is wanted.
TEST(HostsOfSeveralNics, OneThatVanishesIsReplacedByAnother) {
  for (const bool silent : {false, true}) {
    const TwoHosts hosts({0, 0});
    if (!hosts.ready()) GTEST_SKIP() << "network namespaces cannot be made here";
    RankOptions options;
    options.settings = {
        {"TIMEOUT", "60"}, {"NET", "tcp"}, {"NIC_RATES", "stated"}, {"CHANNELS", "2"}};
    options.before = [&](int rank) { hosts.enter(rank); };
    RankProcesses ranks(2, options, [&](comm::Communicator& comm) -> std::string {
      const bool gone = comm.rank() != 0 || (silent ? hosts.lose(1) : hosts.take_down(1));
      std::vector<std::byte> together(2);
      comm.exchange(together, 1);
      if (!gone) return "the NIC stays";
      return fmt::format("{} NICs, {}", comm.facts().rail_rates.size(), shares_of_nics(comm));
    });
    for (const std::string& text : texts_of(ranks, 2)) {
      // There were two when the ranks joined; all data went over the remaining one. An interface
      // that is down gets no share.
      EXPECT_EQ(text.find("2 NICs, 1.0 "), 0U) << text;
    }
  }
}

// What the plan says of NICs holds for those that are there: of two rings the first is over one
// NIC.
TEST(HostsOfSeveralNics, APlanNamesThem) {
  const TwoHosts hosts({0, 0, 0, 0});
  if (!hosts.ready()) GTEST_SKIP() << "network namespaces cannot be made here";
  for (const char* algorithm : {"plan-nics-balanced", "plan-nics-first-ring"}) {
    RankOptions options;
    options.settings = {{"TIMEOUT", "60"},
                        {"NET", "tcp"},
                        {"NIC_RATES", "stated"},
                        {"ALGORITHM", fmt::format("all_reduce={}", algorithm)},
                        {"TOPOLOGY", RW_SOURCE_DIR "/tests/topologies/rccl-4gpu-4nic-x2.json"}};
    options.before = [&](int rank) { hosts.enter(rank / 4); };
    RankProcesses ranks(8, options, [](comm::Communicator& comm) {
      const std::vector<double> before = sent_bytes();
      diagnose::MeasureSpec spec;
      spec.collective = Collective::kAllReduce;
      spec.count = 1 << 20;
      const std::uint64_t wrong = diagnose::measure(comm, spec).wrong;
      const std::vector<double> after = sent_bytes();
      std::string used;
      for (std::size_t i = 0; i < after.size(); ++i) {
        used += after[i] - before[i] > 1e6 ? "used " : "idle ";
      }
      return fmt::format("{} wrong, {}", wrong, used);
    });
    const bool all = std::string_view(algorithm) == "plan-nics-balanced";
    for (const std::string& text : texts_of(ranks, 8)) {
      EXPECT_EQ(text, all ? "0 wrong, used used used used " : "0 wrong, idle idle idle used ");
    }
  }
}

// Five ranks that were dealt out to two hosts, over NICs of two rates.
TEST(HostsOfSeveralNics, PlansForHostsThatNobodyDescribed) {
  const TwoHosts hosts({20, 10});
  if (!hosts.ready() || !hosts.shaped()) {
    GTEST_SKIP() << "network namespaces with shaped interfaces cannot be made here";
  }
  for (const std::string algorithm : {"plan-rail-chain", "plan-three-phase"}) {
    RankOptions options;
    options.settings = {
        {"TIMEOUT", "60"}, {"NET", "tcp"}, {"ALGORITHM", "all_reduce=" + algorithm}};
    options.before = [&](int rank) { hosts.enter(rank % 2); };
    RankProcesses ranks(5, options, [](comm::Communicator& comm) {
      diagnose::MeasureSpec spec;
      spec.collective = Collective::kAllReduce;
      spec.count = 1 << 20;
      const diagnose::MeasureResult result = diagnose::measure(comm, spec);
      return fmt::format("{} wrong by {}", result.wrong, result.algorithm);
    });
    for (const std::string& text : texts_of(ranks, 5)) EXPECT_EQ(text, "0 wrong by " + algorithm);
  }
}

// What explain says of an operation: the chosen one is the cheapest of all candidates, plans among
// them. Returns what was chosen, or what is wrong.
std::string chosen_by_price(comm::Communicator& comm, Collective collective, std::size_t bytes) {
  using nlohmann::json;
  const json found = json::parse(comm::explain(comm, collective, bytes, 0));
  double least = std::numeric_limits<double>::infinity();
  double chosen = least;
  bool has_plan = false;
  for (const json& each : found["candidates"]) {
    const double predicted = each["predicted_us"];
    least = std::min(least, predicted);
    has_plan |= each["kind"] == "plan";
    if (each["algorithm"] == found["chosen"] && each["nic_rule"] == found["nic_rule"]) {
      chosen = std::min(chosen, predicted);
    }
  }
  if (!has_plan) return "no plan is a candidate";
  if (chosen > 1.1 * least) {
    return fmt::format("{} takes {} us, the best {}", found["chosen"].dump(), chosen, least);
  }
  double shares = found["nic_gbps"].size() > 1 ? 0 : 1;
  for (const json& each : found["channel_nics"]) shares += each["share"].get<double>();
  if (std::abs(shares - 1) > 1e-9) return fmt::format("the NICs' shares are {}", shares);
  return fmt::format("{} {}", found["chosen"].dump(), found["nic_rule"].dump());
}

// By prices alone: how long calls take is measured by benchmarks/between_hosts.
TEST(HostsOfSeveralNics, UnaskedTheCheapestRunsPlansAmongThem) {
  for (const std::vector<int>& rates : {std::vector{30}, std::vector{20, 10}}) {
    const TwoHosts hosts(rates);
    if (!hosts.ready() || !hosts.shaped()) {
      GTEST_SKIP() << "network namespaces with shaped interfaces cannot be made here";
    }
    RankOptions options;
    options.settings = {{"TIMEOUT", "60"}, {"NET", "tcp"}, {"PLANNING", "wait"}};
    options.before = [&](int rank) { hosts.enter(rank % 2); };
    RankProcesses ranks(5, options, [](comm::Communicator& comm) {
      std::string all;
      for (const Collective collective : {Collective::kAllReduce, Collective::kBroadcast,
                                          Collective::kAllGather, Collective::kReduceScatter}) {
        const std::size_t gathers =
            collective == Collective::kAllReduce || collective == Collective::kBroadcast
                ? 1
                : static_cast<std::size_t>(comm.size());
        for (const std::size_t unit : {std::size_t{64} << 10, std::size_t{4} << 20}) {
          all += chosen_by_price(comm, collective, unit * gathers) + ", ";
        }
      }
      return all + "wrong: " + wrong_collectives(comm);
    });
    const std::vector<std::string> texts = texts_of(ranks, 5);
    for (const std::string& text : texts) {
      EXPECT_EQ(text, texts.front());
      EXPECT_TRUE(text.ends_with("wrong: ")) << text;
      for (const char* words : {"no plan", "takes", "shares"}) {
        EXPECT_EQ(text.find(words), std::string::npos) << text;
      }
    }
  }
}

// What carries the links between hosts, and the settings that choose it.
struct Network {
  std::string label;
  std::string net;
  std::vector<std::pair<std::string, std::string>> settings{};
  const char* library = nullptr;  // without which there is nothing to try
};

// gtest's word for a case.
std::ostream& operator<<(std::ostream& out, const Network& network) { return out << network.label; }

// Loaded in a process of its own, since ranks are forked from this one.
bool loads(const char* library) {
  const pid_t child = fork();
  if (child == 0) _exit(dlopen(library, RTLD_NOW) != nullptr ? 0 : 1);
  int status = 1;
  return waitpid(child, &status, 0) == child && status == 0;
}

class HostsOver : public ::testing::TestWithParam<Network> {};

TEST_P(HostsOver, ThreeHostsWithARankEach) {
  const Network& over = GetParam();
  if (over.library != nullptr && !loads(over.library)) {
    GTEST_SKIP() << over.net << " needs " << over.library << ", which this machine does not have";
  }
  const transport::SoftwareFabric fabric;
  RankOptions options;
  options.settings = {
      {"TIMEOUT", "60"}, {"LINKS", "network"}, {"SOCKET_IFNAME", "lo"}, {"NET", over.net}};
  std::ranges::copy(over.settings, std::back_inserter(options.settings));
  RankProcesses ranks(3, options, [](comm::Communicator& comm) {
    return fmt::format("{} hosts over {}, wrong: {}", comm.facts().num_hosts,
                       comm.links().network(), wrong_collectives(comm));
  });
  for (const std::string& text : texts_of(ranks, 3)) {
    EXPECT_EQ(text, fmt::format("3 hosts over {}, wrong: ", over.net));
  }
}

std::vector<Network> networks() {
  const std::pair<std::string, std::string> bridges{"SISCI_LIBRARY", RW_SOFTWARE_SISCI};
  std::vector<Network> all = {
      {"tcp", "tcp"},
      {"shm", "shm"},
      {"sisci", "sisci", {bridges}},
      {"auto", "auto", {bridges}},
      // The same device twice is two rails.
      {"rails_of_tcp", "rails", {{"RAILS", "tcp:lo,tcp:lo"}}},
      {"rails_of_shm_and_tcp", "rails", {{"RAILS", "shm,tcp"}}},
      {"rails_with_checksums", "rails", {{"RAILS", "tcp:lo,tcp:lo"}, {"VERIFY", "all"}}},
  };
  for (const std::string_view provider : transport::compiled_providers()) {
    if (provider == "ofi") {
      constexpr const char* kLibrary = "libfabric.so.1";
      const std::pair<std::string, std::string> sockets{"OFI_PROVIDER",
                                                        transport::ofi::sockets_provider()};
      all.push_back({"ofi_tcp", "ofi", {sockets}, kLibrary});
      all.push_back({"ofi_tcp_tagged", "ofi", {sockets, {"OFI_LARGE", "tagged"}}, kLibrary});
      all.push_back({"ofi_tcp_checksums", "ofi", {sockets, {"VERIFY", "all"}}, kLibrary});
      // Not its shm, of which ranks that are killed leave files.
    } else if (provider == "psm2") {
      all.push_back({"psm2", "psm2", {{"PSM2_DEVICE", "shm"}}, "libpsm2.so.2"});
    }
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Transports, HostsOver, ::testing::ValuesIn(networks()),
                         [](const auto& over) { return over.param.label; });

// ---- several transports in one communicator --------------------------------------------------

// The transports over which the connections of a rank send, as its log says.
std::set<std::string> transports_in(const std::string& log) {
  constexpr std::string_view kSays = "auto: a connection sends over ";
  std::set<std::string> found;
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);) {
    const std::size_t at = line.find(kSays);
    if (at != std::string::npos) found.insert(line.substr(at + kSays.size()));
  }
  return found;
}

// Of three hosts the first two have PCIe bridges, the last two are containers that share a network
// namespace, and so memory; the first and the last have TCP alone.
TEST(HostsOverAuto, EachPairOfACommunicatorHasTheTransportThatJoinsIt) {
  const TwoHosts hosts;
  if (!hosts.ready()) GTEST_SKIP() << "network namespaces cannot be made here";
  const transport::SoftwareFabric fabric;
  const auto log = [&](int rank) {
    return (fabric.folder() / fmt::format("rank-{}.log", rank)).string();
  };
  RankOptions options;
  options.settings = {{"TIMEOUT", "60"},
                      {"LINKS", "network"},
                      {"NET", "auto"},
                      {"DEBUG", "INFO"},
                      {"DEBUG_SUBSYS", "NET"}};
  options.before = [&](int rank) {
    hosts.enter(rank == 0 ? 0 : 1);
    setenv("ROPEWALK_SISCI_LIBRARY", rank == 2 ? "libsisci-none.so" : RW_SOFTWARE_SISCI, 1);
    setenv("ROPEWALK_DEBUG_FILE", log(rank).c_str(), 1);
  };
  RankProcesses ranks(3, options, [](comm::Communicator& comm) {
    return fmt::format("{} hosts, wrong: {}", comm.facts().num_hosts, wrong_collectives(comm));
  });
  for (const std::string& text : texts_of(ranks, 3)) EXPECT_EQ(text, "3 hosts, wrong: ");
  EXPECT_EQ(transports_in(log(0)), (std::set<std::string>{"sisci", "tcp"}));
  EXPECT_EQ(transports_in(log(1)), (std::set<std::string>{"shm", "sisci"}));
  EXPECT_EQ(transports_in(log(2)), (std::set<std::string>{"shm", "tcp"}));
}

// ---- a rail that is lost -------------------------------------------------------------------

// All-reduces until `cut` has been done and two more have followed, each of which is looked at.
// Rank 0 cuts, from another thread while a call runs.
std::string all_reduces_through(comm::Communicator& comm, const std::function<void()>& cut) {
  constexpr std::size_t kCount = std::size_t{2} << 20U;
  std::vector<float> values(kCount);
  std::atomic<bool> is_cut = false;
  std::jthread cutter;
  int left = 2;
  std::string wrong;
  for (int round = 0; left > 0; ++round) {
    const auto value = [&](std::size_t i, int rank) {
      return static_cast<float>(i % 1000 + static_cast<std::size_t>(10 * round + rank));
    };
    for (std::size_t i = 0; i < kCount; ++i) values[i] = value(i, comm.rank());
    if (round == 1 && comm.rank() == 0) {
      cutter = std::jthread([&] {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // the call has begun
        cut();
        is_cut = true;
      });
    }
    comm::CollectiveCall call;
    call.collective = Collective::kAllReduce;
    call.type = DataType::kFloat32;
    call.count = kCount;
    call.input = call.output = values.data();
    const bool was_cut = is_cut;
    comm.run(call);
    std::size_t errors = 0;
    for (std::size_t i = 0; i < kCount; ++i) {
      errors += values[i] == value(i, 0) + value(i, 1) ? 0 : 1;
    }
    if (errors > 0) wrong += fmt::format("{} in call {}, ", errors, round);
    // Over the rails, since the bootstrap's sockets may have been cut.
    float cut_before = was_cut ? 1 : 0;
    call.collective = Collective::kBroadcast;
    call.count = 1;
    call.input = call.output = &cut_before;
    comm.run(call);
    if (cut_before != 0) --left;
  }
  return "wrong: " + wrong;
}

// One of two rails goes while an all-reduce runs over both: its interface goes down, or a switch
// drops all that it gets.
TEST(HostsOverRails, AnAllReduceGoesOnWithoutALostRail) {
  for (const bool silent : {false, true}) {
    for (const int pair : {0, 1}) {
      const transport::rails::testing::TwoHosts hosts({40, 40});
      if (!hosts.ready()) GTEST_SKIP() << "network namespaces cannot be made here";
      if (!hosts.shaped()) GTEST_SKIP() << "the kernel cannot shape interfaces";
      const std::string log = ::testing::TempDir() + fmt::format("rails-{}.log", getpid());
      RankOptions options;
      options.settings = {
          {"TIMEOUT", "30"}, {"NET", "rails"}, {"DEBUG", "INFO"}, {"DEBUG_FILE", log}};
      options.before = [&](int rank) { hosts.enter(rank); };
      RankProcesses ranks(2, options, [&](comm::Communicator& comm) {
        return all_reduces_through(comm,
                                   [&] { silent ? hosts.silence(pair, 0) : hosts.down(pair, 0); });
      });
      for (const std::string& text : texts_of(ranks, 2)) EXPECT_EQ(text, "wrong: ");
      std::ifstream file(log);
      const std::string lines(std::istreambuf_iterator<char>(file), {});
      EXPECT_NE(lines.find(fmt::format("rails: tcp {} is lost: ", hosts.interface(pair, 0))),
                std::string::npos)
          << lines;
    }
  }
}

}  // namespace
}  // namespace ropewalk::testing
