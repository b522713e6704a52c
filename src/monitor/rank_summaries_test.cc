// Ranks that are monitored without a communicator: joined by the bootstrap alone.
#include "monitor/rank_summaries.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "bootstrap/test_support.h"
#include "core/socket.h"
#include "monitor/job_ports.h"

namespace ropewalk::monitor {
namespace {

using bootstrap::soon;
using ::testing::HasSubstr;

RankSummary summary_of(int rank) {
  RankSummary summary;
  summary.rank = rank;
  summary.host = "here";
  summary.call = 100 + static_cast<std::uint64_t>(rank);
  summary.counts["all_reduce"] = 7 + static_cast<std::uint64_t>(rank);
  return summary;
}

SocketAddress on_loopback(std::uint16_t port) {
  return SocketAddress::of(AF_INET, {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}},
                           port, 0);
}

// What the port answers; "" where nobody listens.
std::string metrics_of(std::uint16_t port) {
  const FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress address = on_loopback(port);
  if (connect(socket.get(), address.get(), address.length()) != 0) return "";
  const std::string question = "GET /metrics HTTP/1.1\r\n\r\n";
  (void)send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL);
  std::string answer;
  std::array<char, 4096> bytes{};
  for (ssize_t got = 0; (got = recv(socket.get(), bytes.data(), bytes.size(), 0)) > 0;) {
    answer.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return answer;
}

// Of a rank that asks until all have answered; the others' summaries are as they are then.
TEST(RankSummaries, ComeFromAllRanksAsTheyAreWhenAsked) {
  bootstrap::run_ranks(3, [](bootstrap::Bootstrap& joined) {
    RankSummary own = summary_of(joined.rank());
    RankSummaries summaries(joined, [&own] { return own; });
    joined.barrier(soon());
    if (joined.rank() == 0) {
      summaries.ask({});
      RankSummaries::Answers answers;
      const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
      while (!answers.all && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
        answers = summaries.answers();
      }
      EXPECT_TRUE(answers.all);
      for (const auto& [rank, summary] : answers.by_rank) {
        EXPECT_EQ(summary.call, 100U + static_cast<unsigned>(rank));
      }
      EXPECT_EQ(answers.by_rank.size(), 3U);
    }
    joined.barrier(soon());
  });
}

TEST(JobPorts, AnswerForWhatIsMonitoredUntilItIsRemoved) {
  SocketAddress bound;
  { const FileDescriptor socket = listen_on(on_loopback(0), &bound); }
  Config config = bootstrap::quiet_config();
  config.set("METRICS_PORT", std::to_string(bound.port()), "test");
  bootstrap::Context context;
  const bootstrap::UniqueId id = make_unique_id(config, context);
  JobPorts ports(context);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      const auto joined = bootstrap::Bootstrap::join(id, rank, 2, config, soon(), context);
      bootstrap::FailureState failure;
      RankSummaries summaries(*joined, [rank] { return summary_of(rank); });
      const MonitoredComm comm{17, rank, 2, config, failure, summaries};
      ports.add(comm);
      joined->barrier(soon());
      if (rank == 0) {
        const std::string answer = metrics_of(bound.port());
        EXPECT_THAT(answer, HasSubstr("HTTP/1.1 200 OK"));
        EXPECT_THAT(answer, HasSubstr(R"(rank="1",operation="all_reduce"} 8)"));
      }
      joined->barrier(soon());
      ports.remove(comm);
      joined->leave();
    });
  }
  for (std::thread& thread : threads) thread.join();
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!metrics_of(bound.port()).empty() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_EQ(metrics_of(bound.port()), "");
}

}  // namespace
}  // namespace ropewalk::monitor
