// What communicators record of their calls, and report.
#include "comm/call_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "comm/communicator.h"
#include "comm/testing/ranks.h"
#include "core/error.h"

namespace ropewalk::comm {
namespace {

using nlohmann::json;
using testing::quiet;
using testing::with_ranks;
using trace::CallRecords;
using trace::SentBytes;

CollectiveCall all_reduce_of(std::size_t count) {
  CollectiveCall call;
  call.count = count;
  return call;
}

json report_in(const std::string& path) { return json::parse(std::ifstream(path)); }

class TraceFile : public ::testing::Test {
 protected:
  TraceFile()
      : folder_(std::filesystem::path(::testing::TempDir()) / fmt::format("trace-{}", getpid())) {
    std::filesystem::create_directories(folder_);
  }
  ~TraceFile() override { std::filesystem::remove_all(folder_); }
  [[nodiscard]] std::string path(std::string_view name) const { return (folder_ / name).string(); }

  std::filesystem::path folder_;
};

TEST_F(TraceFile, HasTheCallsOfACommunicatorThatWasLeft) {
  Runtime runtime;
  quiet(runtime);
  runtime.set("TRACE_FILE", path("%r.json"), "test");
  with_ranks(2, runtime, [&](Communicator& comm) {
    std::vector<float> data(4, 1.0F);
    CollectiveCall call = all_reduce_of(4);
    call.input = call.output = data.data();
    for (int i = 0; i < 3; ++i) comm.run(call);
    PointToPointCall message;
    message.sends = comm.rank() == 0;
    message.input = message.output = data.data();
    message.count = 4;
    message.peer = 1 - comm.rank();
    comm.run({message});
    const auto request = std::make_shared<Request>();
    comm.start(call, request);
    ASSERT_TRUE(request->wait(std::chrono::microseconds(-1)));
    comm.barrier();
  });
  for (int rank = 0; rank < 2; ++rank) {
    const json report = report_in(path(fmt::format("{}.json", rank)));
    EXPECT_EQ(report["schema"], "ropewalk-calls");
    EXPECT_EQ(report["rank"], rank);
    EXPECT_EQ(report["ranks"], 2);
    EXPECT_EQ(report["failure"], nullptr);
    const std::vector<std::string> operations = {"all_reduce", "all_reduce",
                                                 "all_reduce", rank == 0 ? "send" : "receive",
                                                 "all_reduce", "barrier"};
    ASSERT_EQ(report["records"].size(), operations.size());
    std::int64_t last = 0;
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const json& record = report["records"][i];
      EXPECT_EQ(record["operation"], operations[i]);
      EXPECT_EQ(record["state"], "completed") << record;
      EXPECT_EQ(record["algorithm"].is_null(), i == 3) << record;
      EXPECT_GE(record["started_ns"], record["scheduled_ns"]);
      EXPECT_GE(record["completed_ns"], record["started_ns"]);
      EXPECT_GE(record["scheduled_ns"], last);
      last = record["scheduled_ns"];
    }
    EXPECT_EQ(report["records"][5]["call"], 5);
  }
}

// The call that a rank hangs in is there, and is not over.
TEST_F(TraceFile, HasTheCallThatACommunicatorBrokeIn) {
  Runtime runtime;
  quiet(runtime);
  runtime.set("TRACE_FILE", path("%r-%c.json"), "test");
  runtime.set("TIMEOUT", "100ms", "test");
  std::string file;
  try {
    with_ranks(2, runtime, [&](Communicator& comm) {
      std::vector<float> data(4, 1.0F);
      CollectiveCall call = all_reduce_of(4);
      call.input = call.output = data.data();
      comm.run(call);
      if (comm.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
        return;
      }
      file = path(fmt::format("0-{:016x}.json", comm.identity()));
      EXPECT_THROW(comm.run(call), Error);
    });
  } catch (const Error&) {
    // Rank 1 leaves a communicator that is broken.
  }
  const json report = report_in(file);
  ASSERT_EQ(report["records"].size(), 2U);
  EXPECT_EQ(report["records"][0]["state"], "completed");
  EXPECT_EQ(report["records"][1]["state"], "started");
  EXPECT_EQ(report["records"][1]["completed_ns"], nullptr);
  EXPECT_THAT(report["failure"].get<std::string>(), ::testing::HasSubstr("nothing moved"));
}

// Bytes by peer and kind of link; of a communicator without a network.
TEST(CallReport, HasTheBytesOfEachLink) {
  Runtime runtime;
  quiet(runtime);
  with_ranks(3, runtime, [](Communicator& comm) {
    std::vector<float> data(50'000, 1.0F);
    // Rank 0 sends a short message to rank 1 and a long one to rank 2.
    for (const auto& [peer, count] : {std::pair{1, std::size_t{100}}, {2, data.size()}}) {
      PointToPointCall message;
      message.sends = comm.rank() == 0;
      message.input = message.output = data.data();
      message.count = count;
      message.peer = message.sends ? peer : 0;
      if (message.sends || comm.rank() == peer) comm.run({message});
    }
    const json report = json::parse(call_report(comm));
    std::map<int, std::size_t> sent;
    for (const json& link : report["links"]) {
      EXPECT_TRUE(link["over"] == "shared memory" || link["over"] == "memory by address") << link;
      sent[link["to"].get<int>()] += link["bytes"].get<std::size_t>();
    }
    if (comm.rank() == 0) {
      EXPECT_EQ(sent[1], 400U);
      EXPECT_EQ(sent[2], 200'000U);
    } else {
      EXPECT_TRUE(sent.empty());
    }
    comm.barrier();
  });
}

// By each record what was counted where it left, whatever runs.
TEST(CallReport, RecordsHaveTheBytesOfEachLink) {
  for (const std::string_view algorithm :
       {"auto", "ring", "chain", "direct", "double_binary_tree"}) {
    Runtime runtime;
    quiet(runtime);
    runtime.set("ALGORITHM", algorithm, "test");
    with_ranks(4, runtime, [&](Communicator& comm) {
      constexpr std::size_t kMost = 30'001;
      std::vector<float> input(kMost * 4, 1.0F);
      std::vector<float> output(kMost * 4, 0.0F);
      for (int kind = 0; kind < kNumCollectives; ++kind) {
        for (const std::size_t count : {std::size_t{0}, std::size_t{1}, std::size_t{70}, kMost}) {
          CollectiveCall call = all_reduce_of(count);
          call.collective = static_cast<Collective>(kind);
          call.root = has_root(call.collective) ? 2 : 0;
          call.input = input.data();
          call.output = output.data();
          comm.run(call);
          if (count == kMost) comm.run(call);
        }
      }
      std::map<int, std::size_t> counted;
      for (const executor::Traffic::Entry& link : comm.traffic().read()) {
        counted[link.peer] += link.bytes;
      }
      std::map<int, std::size_t> recorded;
      for (const CallRecords::Record& record : comm.records().read()) {
        ASSERT_TRUE(record.sent.has_value()) << record.operation << ' ' << record.count;
        for (const SentBytes& to : *record.sent) recorded[to.peer] += to.bytes;
      }
      EXPECT_EQ(recorded, counted) << algorithm << ", rank " << comm.rank();
      EXPECT_FALSE(recorded.empty());
      comm.barrier();
    });
  }
}

// Between hosts: by transport and NIC.
TEST(CallReport, HasTheBytesOfNetworkLinks) {
  bootstrap::Context context;
  Runtime first;
  quiet(first);
  const bootstrap::UniqueId id = bootstrap::make_unique_id(first.config(), context);
  std::vector<std::thread> ranks;
  for (int r = 0; r < 2; ++r) {
    ranks.emplace_back([&id, r] {
      Runtime runtime;
      quiet(runtime);
      runtime.set("HOST_ID", r == 0 ? "oak" : "elm", "test");
      runtime.set("NET", "tcp", "test");
      runtime.set("SOCKET_IFNAME", "lo", "test");
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime);
      std::vector<float> data(50'000, 1.0F);
      PointToPointCall message;
      message.sends = r == 0;
      message.input = message.output = data.data();
      message.count = data.size();
      message.peer = 1 - r;
      comm->run({message});
      const json links = json::parse(call_report(*comm))["links"];
      if (r == 0) {
        ASSERT_EQ(links.size(), 1U) << links;
        EXPECT_EQ(links[0]["to"], 1);
        EXPECT_EQ(links[0]["over"], "tcp lo");
        EXPECT_EQ(links[0]["bytes"], 200'000);
      } else {
        EXPECT_TRUE(links.empty()) << links;
      }
      comm->finalize();
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

TEST_F(TraceFile, ThatCannotBeWrittenHarmsNothing) {
  Runtime runtime;
  quiet(runtime);
  runtime.set("TRACE_FILE", path("no/such/folder/%r.json"), "test");
  with_ranks(2, runtime, [&](Communicator& comm) { comm.barrier(); });
  Runtime wrong;
  quiet(wrong);
  wrong.set("TRACE_FILE", path("%q"), "test");
  with_ranks(2, wrong, [&](Communicator& comm) { comm.barrier(); });
}

TEST(CallReport, IsEmptyWithoutRecords) {
  Runtime runtime;
  quiet(runtime);
  runtime.set("TRACE", "off", "test");
  with_ranks(2, runtime, [&](Communicator& comm) {
    comm.barrier();
    const json report = json::parse(call_report(comm));
    EXPECT_EQ(report["records"].size(), 0U);
    EXPECT_EQ(report["begun"], 0);
  });
}

}  // namespace
}  // namespace ropewalk::comm
