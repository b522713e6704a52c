#include "core/status_socket.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "core/unix_socket.h"

namespace ropewalk {
namespace {

// Names of this process's sockets, as the system lists them.
std::vector<std::string> status_names() {
  const std::string prefix =
      "@ropewalk-status-" + std::to_string(geteuid()) + "-" + std::to_string(getpid()) + "-";
  std::vector<std::string> names;
  std::ifstream list("/proc/net/unix");
  for (std::string line; std::getline(list, line);) {
    const std::size_t at = line.find(prefix);
    if (at == std::string::npos) continue;
    const std::string name = line.substr(at + 1);
    if (names.empty() || names.back() != name) names.push_back(name);
  }
  return names;
}

std::string asked(const std::string& name, const std::string& question) {
  const FileDescriptor socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const UnixAddress address = abstract_address(name);
  EXPECT_EQ(connect(socket.get(), address.get(), address.bytes), 0);
  EXPECT_EQ(send(socket.get(), question.data(), question.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(question.size()));
  std::string answer;
  std::array<char, 4096> bytes{};
  for (ssize_t got = 0; (got = recv(socket.get(), bytes.data(), bytes.size(), 0)) > 0;) {
    answer.append(bytes.data(), static_cast<std::size_t>(got));
  }
  return answer;
}

TEST(StatusSocket, AnswersQuestionsUntilItStops) {
  EventLoop loop("test");
  // Longer than a socket's buffer: the rest is sent when there is room.
  const std::string much(std::size_t{1} << 22U, 'x');
  const auto socket = std::make_shared<StatusSocket>(
      loop, [&](std::size_t calls) { return calls == 1 ? much : std::to_string(calls) + "\n"; });
  loop.post([&loop, socket] {
    loop.keep(socket);
    socket->start();
  });
  const std::vector<std::string> names = status_names();
  ASSERT_EQ(names.size(), 1U);
  EXPECT_EQ(asked(names[0], "calls 12\n"), "12\n");
  EXPECT_EQ(asked(names[0], "calls 1\n"), much);
  for (const char* question : {"calls -1\n", "calls\n", "calls 1 2\n", "GET /\r\n", "\n"}) {
    EXPECT_EQ(asked(names[0], question), "") << question;
  }
  EXPECT_EQ(asked(names[0], std::string(100, '1')), "");
  std::promise<void> stopped;
  loop.post([&] {
    socket->stop();
    loop.drop(socket.get());
    stopped.set_value();
  });
  stopped.get_future().wait();
}

}  // namespace
}  // namespace ropewalk
