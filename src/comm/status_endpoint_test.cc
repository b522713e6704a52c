#include "comm/status_endpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

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
#include "core/testing/status_client.h"

namespace ropewalk::comm {
namespace {

using nlohmann::json;
using ropewalk::testing::ask_status;
using ropewalk::testing::connect_to_status;
using ropewalk::testing::status_names;
using testing::quiet;
using testing::with_ranks;

constexpr std::chrono::seconds kEndpointDeadline{60};

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
    wait_until([] { return status_names().empty(); });
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
      const std::vector<std::string> names = status_names();
      ASSERT_EQ(names.size(), 1U);
      for (const std::size_t wanted : {std::size_t{100}, std::size_t{2}, std::size_t{0}}) {
        const std::vector<json> found =
            reports(ask_status(names[0], "calls " + std::to_string(wanted) + "\n"));
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
      EXPECT_EQ(ask_status(names[0], "GET / HTTP/1.1\r\n"), "");
      EXPECT_EQ(ask_status(names[0], "calls -1\n"), "");
      EXPECT_EQ(ask_status(names[0], std::string(1000, 'x')), "");
      std::vector<FileDescriptor> silent;
      for (int i = 0; i < 20; ++i) silent.push_back(connect_to_status(names[0]));
      silent.clear();
      EXPECT_EQ(reports(ask_status(names[0], "calls 1\n")).size(), 2U);
    }
    together.arrive_and_wait();
  });
  wait_until([] { return status_names().empty(); });
}

TEST_F(StatusEndpoints, TellsWhomARankWaitsFor) {
  Runtime runtime;
  quiet(runtime);
  std::barrier together(3);
  with_ranks(3, runtime, [&](Communicator& comm) {
    add_up(comm);
    together.arrive_and_wait();
    if (comm.rank() == 1) {
      const std::string name = status_names().at(0);
      json waiting;
      wait_until([&] {
        for (const json& report : reports(ask_status(name, "calls 4\n"))) {
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
      EXPECT_TRUE(status_names().empty());
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
