#include "core/status_socket.h"

#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <string>
#include <vector>

#include "core/testing/status_client.h"

namespace ropewalk {
namespace {

using testing::ask_status;
using testing::status_names;

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
  EXPECT_EQ(ask_status(names[0], "calls 12\n"), "12\n");
  EXPECT_EQ(ask_status(names[0], "calls 1\n"), much);
  for (const char* question : {"calls -1\n", "calls\n", "calls 1 2\n", "GET /\r\n", "\n"}) {
    EXPECT_EQ(ask_status(names[0], question), "") << question;
  }
  EXPECT_EQ(ask_status(names[0], std::string(100, '1')), "");
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
