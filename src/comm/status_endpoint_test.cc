#include "comm/status_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <barrier>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/testing/ranks.h"
#include "core/file_descriptor.h"
#include "core/unix_socket.h"

namespace ropewalk::comm {
namespace {

using nlohmann::json;
using testing::quiet;
using testing::with_ranks;

constexpr std::chrono::seconds kEndpointDeadline{60};

// Names of this process's endpoints, as the system lists them.
std::vector<std::string> endpoints() {
  const std::string prefix =
      "@ropewalk-status-" + std::to_string(geteuid()) + "-" + std::to_string(getpid()) + "-";
  std::vector<std::string> names;
  std::ifstream list("/proc/net/unix");
  for (std::string line; std::getline(list, line);) {
    const std::size_t at = line.find(prefix);
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + 1);
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return names;
}

FileDescriptor connect_to_endpoint(const std::string& name) {
  FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UnixAddress address = abstract_address(name);
  EXPECT_EQ(connect(socket.get(), address.get(), address.bytes), 0);
  return socket;
}

std::string ask(const std::string& name, const std::string& question) {
  const FileDescriptor socket = connect_to_endpoint(name);
  EXPECT_EQ(send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(question.size()));
  std::string answer;
  std::array<char, 4096> bytes{};
  for (ssize_t got = 0; (got = recv(socket.get(), bytes.data(), bytes.size(), 0)) > 0;) {
    answer.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return answer;
}

std::vector<json> reports(const std::string& answer) {
  std::vector<json> found;
  std::istringstream lines(answer);
  for (std::string line; std::getline(lines, line);) found.push_back(json::parse(line));
  return found;
}

template <typename Condition>
void wait_until(Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + kEndpointDeadline;
  while (!condition()) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

void add_up(Communicator& comm) {
  float value = 1;
  CollectiveCall call;
  call.input = &value;
  call.output = &value;
  call.count = 1;
  comm.run(call);
}

class StatusEndpoints : public ::testing::Test {
 protected:
  // The last test's ends on a thread of its own.
  void SetUp() override {
    wait_until([] { return endpoints().empty(); });
  }
};

TEST_F(StatusEndpoints, TellsOfAllCommunicatorsAsLongAsThereAreAny) {
  Runtime runtime;
  quiet(runtime);
  std::barrier together(2);
  with_ranks(2, runtime, [&](Communicator& comm) {
    for (int i = 0; i < 3; ++i) add_up(comm);
    together.arrive_and_wait();
    if (comm.rank() == 0) {
      const std::vector<std::string> names = endpoints();
      ASSERT_EQ(names.size(), 1U);
      for (const std::size_t wanted : {std::size_t{100}, std::size_t{2}, std::size_t{0}}) {
        const std::vector<json> found =
            reports(ask(names[0], "calls " + std::to_string(wanted) + "\n"));
        ASSERT_EQ(found.size(), 2U);
        EXPECT_NE(found[0]["rank"], found[1]["rank"]);
        for (const json& report : found) {
          EXPECT_EQ(report["ranks"], 2);
          EXPECT_EQ(report["begun"], 3);
          EXPECT_EQ(report["records"].size(), std::min<std::size_t>(wanted, 3));
          if (wanted != 0) {
            EXPECT_EQ(report["records"].back()["call"], 3);
            EXPECT_EQ(report["records"].back()["state"], "completed");
          }
        }
      }
      // What is no question gets no answer, and costs nobody else one.
      EXPECT_EQ(ask(names[0], "GET / HTTP/1.1\r\n"), "");
      EXPECT_EQ(ask(names[0], "calls -1\n"), "");
      EXPECT_EQ(ask(names[0], std::string(1000, 'x')), "");
      std::vector<FileDescriptor> silent;
      for (int i = 0; i < 20; ++i) silent.push_back(connect_to_endpoint(names[0]));
      silent.clear();
      EXPECT_EQ(reports(ask(names[0], "calls 1\n")).size(), 2U);
    }
    together.arrive_and_wait();
  });
  wait_until([] { return endpoints().empty(); });
}

TEST_F(StatusEndpoints, TellsWhomARankWaitsFor) {
  Runtime runtime;
  quiet(runtime);
  std::barrier together(3);
  with_ranks(3, runtime, [&](Communicator& comm) {
    add_up(comm);
    together.arrive_and_wait();
    if (comm.rank() == 1) {
      const std::string name = endpoints().at(0);
      json waiting;
      wait_until([&] {
        for (const json& report : reports(ask(name, "calls 4\n"))) {
          if (report["rank"] == 0) waiting = report["waiting"];
        }
        return !waiting.is_null();
      });
      EXPECT_EQ(waiting["in"], "all_reduce of 1 float32");
      EXPECT_GT(waiting["seconds"], 0.09);
      // For rank 1, or for a rank that waits for it.
      EXPECT_THAT(waiting["for"].get<std::vector<int>>(), ::testing::Not(::testing::IsEmpty()));
    }
    add_up(comm);
  });
}

TEST_F(StatusEndpoints, IsNotThereWhereASettingSaysSo) {
  for (const char* setting : {"STATUS", "TRACE"}) {
    Runtime runtime;
    quiet(runtime);
    runtime.set(setting, setting == std::string("TRACE") ? "off" : "0", "test");
    with_ranks(2, runtime, [&](Communicator& comm) {
      add_up(comm);
      EXPECT_TRUE(endpoints().empty());
    });
  }
}

TEST_F(StatusEndpoints, WritesRecordsAtASignal) {
  Runtime runtime;
  quiet(runtime);
  const std::filesystem::path folder =
      std::filesystem::temp_directory_path() / ("ropewalk-signal-" + std::to_string(getpid()));
  std::filesystem::create_directories(folder);
  runtime.set("TRACE_FILE", (folder / "calls-%r.json").string(), "test");
  runtime.set("TRACE_SIGNAL", "USR2", "test");
  std::barrier together(2);
  with_ranks(2, runtime, [&](Communicator& comm) {
    add_up(comm);
    together.arrive_and_wait();
    if (comm.rank() == 0) {
      // Once the endpoint is watched: before, the signal is kept.
      ASSERT_EQ(raise(SIGUSR2), 0);
      for (const char* name : {"calls-0.json", "calls-1.json"}) {
        wait_until([&] { return std::filesystem::exists(folder / name); });
        const json report = json::parse(std::ifstream(folder / name));
        EXPECT_EQ(report["begun"], 1);
        EXPECT_EQ(report["failure"], nullptr);
      }
    }
    together.arrive_and_wait();
  });
  std::filesystem::remove_all(folder);
  EXPECT_NE(std::signal(SIGUSR2, SIG_DFL), SIG_DFL);
}

}  // namespace
}  // namespace ropewalk::comm
