#include "monitor/job_ports.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/testing/ranks.h"
#include "core/socket.h"

namespace ropewalk::comm {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::quiet;
using ::testing::StartsWith;
using testing::with_ranks;

constexpr std::chrono::seconds kDeadline{60};

SocketAddress loopback(std::uint16_t port) {
  return SocketAddress::of(AF_INET, {std::byte{127}, std::byte{0}, std::byte{0}, std::byte{1}},
                           port, 0);
}

// One that nobody has.
std::uint16_t free_port() {
  SocketAddress bound;
  const FileDescriptor socket = listen_on(loopback(0), &bound);
  return bound.port();
}

// A connection on which `question` was sent; none where nobody listens.
FileDescriptor asked(std::uint16_t port, const std::string& question) {
  FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress address = loopback(port);
  if (connect(socket.get(), address.get(), address.length()) != 0) return FileDescriptor();
  EXPECT_EQ(send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(question.size()));
  return socket;
}

// All that is answered until the other end closes; "" where nobody listens.
std::string ask(std::uint16_t port, const std::string& question) {
  const FileDescriptor socket = asked(port, question);
  if (!socket) return "";
  std::string answer;
  std::array<char, 4096> bytes{};
  for (ssize_t got = 0; (got = recv(socket.get(), bytes.data(), bytes.size(), 0)) > 0;) {
    answer.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return answer;
}

// The service thread begins to listen soon.
std::string ask_soon(std::uint16_t port, const std::string& question) {
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while (std::chrono::steady_clock::now() < deadline) {
    std::string answer = ask(port, question);
    if (!answer.empty()) return answer;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return "no answer";
}

// Three ranks, of which rank 2 comes to the third all-reduce only when `body`, which rank 0 runs in
// a thread of its own, is over.
void with_late_rank(Runtime& runtime, const std::function<void()>& body) {
  std::atomic<bool> over{false};
  with_ranks(3, runtime, [&](Communicator& comm) {
    std::vector<float> data(8, 1.0F);
    CollectiveCall call;
    call.count = data.size();
    call.input = call.output = data.data();
    comm.run(call);
    comm.run(call);
    std::thread asks;
    if (comm.rank() == 0) {
      asks = std::thread([&] {
        body();
        over = true;
      });
    }
    while (comm.rank() == 2 && !over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    comm.run(call);
    if (asks.joinable()) asks.join();
  });
}

TEST(JobPorts, AnswerAsNcclsRas) {
  const std::uint16_t port = free_port();
  Runtime runtime;
  quiet(runtime);
  runtime.set("RAS_PORT", std::to_string(port), "test");
  with_late_rank(runtime, [&] {
    std::string text;
    const auto deadline = std::chrono::steady_clock::now() + kDeadline;
    // Ranks 0 and 1 may not have entered the third one yet.
    do {
      text = ask_soon(port, "client protocol 2\r\nTIMEOUT 5\nVERBOSE STATUS\n");
    } while (text.find("MISMATCH") == std::string::npos &&
             std::chrono::steady_clock::now() < deadline);
    EXPECT_THAT(text, StartsWith("SERVER PROTOCOL 2\nOK\n"));
    EXPECT_THAT(text, HasSubstr("2 ranks have launched up to operation 3"));
    EXPECT_THAT(text, HasSubstr("Rank 2 has launched up to operation 2 -- GPU 0 managed by"));
    const std::string answer = ask_soon(port, "SET FORMAT json\nSTATUS\n");
    EXPECT_THAT(answer, StartsWith("OK\n"));
    const json report = json::parse(answer.substr(3));
    const json& communicator = report["communicators"][0];
    EXPECT_EQ(communicator["missing_ranks_count"], 0);
    std::vector<int> counts;
    for (const json& rank : communicator["ranks"]) {
      counts.push_back(rank["collective_counts"]["AllReduce"].get<int>());
    }
    EXPECT_THAT(counts, ::testing::ElementsAre(3, 3, 2));
    EXPECT_THAT(ask_soon(port, "MONITOR lifecycle,all\nwhat is it\nMONITOR all\nSTATUS\n"),
                StartsWith("OK\nERROR: Unknown command: what is it\nOK\nRopewalk, "));
    EXPECT_THAT(ask_soon(port, "MONITOR lifecycle,gossip\nmonitor ,\nSTATUS\n"),
                StartsWith("ERROR: Invalid event group 'GOSSIP'\nERROR: Invalid event group ''\n"));
    EXPECT_THAT(ask_soon(port, "MONITOR all of it\nSTATUS\n"),
                StartsWith("ERROR: Invalid event group 'ALL OF IT'\n"));
  });
  EXPECT_EQ(ask(port, "STATUS\n"), "") << "the port is free when the communicators are gone";
}

// Whole lines until `piece` is in them, or what came until the deadline.
std::string read_until(const FileDescriptor& socket, const std::string& piece) {
  std::string text;
  std::array<char, 4096> bytes{};
  const auto deadline = std::chrono::steady_clock::now() + kDeadline;
  while ((text.find(piece) == std::string::npos || text.back() != '\n') &&
         std::chrono::steady_clock::now() < deadline) {
    const ssize_t got = recv(socket.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
    if (got == 0) break;
    if (got > 0) text.append(bytes.data(), static_cast<std::size_t>(got));
    if (got < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return text;
}

TEST(JobPorts, TellThoseWhoMonitorOfRanksThatFinalize) {
  const std::uint16_t port = free_port();
  Runtime runtime;
  quiet(runtime);
  runtime.set("RAS_PORT", std::to_string(port), "test");
  std::atomic<bool> monitored{false};
  std::atomic<bool> told{false};
  const auto wait_for = [](const std::atomic<bool>& flag) {
    while (!flag) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  };
  with_ranks(3, runtime, [&](Communicator& comm) {
    comm.barrier();
    if (comm.rank() == 2) {
      wait_for(monitored);
      comm.finalize();
    } else if (comm.rank() == 0) {
      (void)ask_soon(port, "STATUS\n");
      std::vector<FileDescriptor> clients;
      for (const char* question :
           {"MONITOR\n", "MONITOR trace\n", "set format json\nmonitor all\n"}) {
        clients.push_back(asked(port, question));
        EXPECT_TRUE(clients.back());
      }
      EXPECT_EQ(read_until(clients[0], "OK\n"), "OK\n");
      EXPECT_EQ(read_until(clients[1], "OK\n"), "OK\n");
      EXPECT_EQ(read_until(clients[2], "OK\nOK\n"), "OK\nOK\n");
      (void)ask_soon(port, "STATUS\n");  // all ranks have said who they are
      monitored = true;
      const std::string text = read_until(clients[1], "PEER_DISCONNECTED");
      EXPECT_THAT(text, HasSubstr("] PEER_DISCONNECTED: Process " + std::to_string(getpid()) +
                                  " on node "));
      EXPECT_THAT(text, HasSubstr(" managing no GPU rank 2 of communicator "));
      const json event = json::parse(read_until(clients[2], "\n}\n"));
      EXPECT_EQ(event["group"], "TRACE");
      EXPECT_EQ(event["event"], "PEER_DISCONNECTED");
      EXPECT_EQ(event["peer"]["pid"], getpid());
      EXPECT_EQ(event["peer"]["cuda_devs"], json::array());
      std::array<char, 64> bytes{};
      EXPECT_EQ(recv(clients[0].get(), bytes.data(), bytes.size(), MSG_DONTWAIT), -1)
          << "it asked for who comes and dies alone";
      told = true;
    } else {
      wait_for(told);
    }
  });
}

TEST(JobPorts, AnswerPrometheus) {
  const std::uint16_t port = free_port();
  Runtime runtime;
  quiet(runtime);
  runtime.set("METRICS_PORT", std::to_string(port), "test");
  with_late_rank(runtime, [&] {
    const std::string text =
        ask_soon(port, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: */*\r\n\r\n");
    EXPECT_THAT(text, StartsWith("HTTP/1.1 200 OK\r\n"));
    EXPECT_THAT(text, HasSubstr("\r\n\r\n# HELP ropewalk_ranks "));
    EXPECT_THAT(text, HasSubstr("rank=\"2\",operation=\"all_reduce\"} 2\n"));
    EXPECT_THAT(text, HasSubstr("# TYPE ropewalk_link_bytes_total counter"));
    EXPECT_THAT(ask_soon(port, "GET / HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
    EXPECT_THAT(ask_soon(port, "POST /metrics HTTP/1.1\r\n\r\n"), StartsWith("HTTP/1.1 404 "));
  });
}

// Another process of the host has the port: the ranks run without.
TEST(JobPorts, OfAnotherHarmNothing) {
  SocketAddress bound;
  const FileDescriptor taken = listen_on(loopback(0), &bound);
  Runtime runtime;
  quiet(runtime);
  runtime.set("RAS_PORT", std::to_string(bound.port()), "test");
  with_ranks(2, runtime, [](Communicator& comm) { comm.barrier(); });
}

// Clients that leave early, say too much or say nothing.
TEST(JobPorts, EndureTheirClients) {
  const std::uint16_t port = free_port();
  Runtime runtime;
  quiet(runtime);
  runtime.set("RAS_PORT", std::to_string(port), "test");
  with_late_rank(runtime, [&] {
    (void)ask_soon(port, "STATUS\n");
    std::vector<FileDescriptor> silent;
    for (int i = 0; i < 8; ++i) {
      silent.push_back(asked(port, i % 2 == 0 ? "STATUS\n" : ""));
      ASSERT_TRUE(silent.back());
      if (i % 4 == 0) silent.pop_back();
    }
    EXPECT_EQ(ask(port, std::string(20000, 'x')), "");
    EXPECT_THAT(ask_soon(port, "STATUS\n"), HasSubstr("Job summary"));
  });
}

}  // namespace
}  // namespace ropewalk::comm
