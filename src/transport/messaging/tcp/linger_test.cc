// Sockets that were closed while their last bytes are in flight.
#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <utility>
#include <vector>

#include "core/file_descriptor.h"
#include "transport/messaging/tcp/connection.h"

namespace ropewalk::transport::tcp {
namespace {

using Clock = std::chrono::steady_clock;

// Two ends of a connection over the loopback device.
std::pair<FileDescriptor, FileDescriptor> connected() {
  const FileDescriptor listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  EXPECT_EQ(bind(listener.get(), generic, bytes), 0);
  EXPECT_EQ(listen(listener.get(), 1), 0);
  EXPECT_EQ(getsockname(listener.get(), generic, &bytes), 0);
  FileDescriptor one(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(connect(one.get(), generic, bytes), 0);
  FileDescriptor other(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return {std::move(one), std::move(other)};
}

bool is_open(int descriptor) { return fcntl(descriptor, F_GETFD) >= 0; }

// As many bytes as the two systems hold for a peer that reads nothing, and some that wait.
std::size_t fill_socket(int socket) {
  const std::vector<std::byte> piece(std::size_t{64} << 10);
  std::size_t sum = 0;
  while (true) {
    const ssize_t sent = send(socket, piece.data(), piece.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return sum;
    sum += static_cast<std::size_t>(sent);
  }
}

TEST(TcpLinger, SettlesWhenThePeersSystemHasTheLastBytes) {
  auto [mine, theirs] = connected();
  Linger linger;
  ASSERT_EQ(send(mine.get(), "abc", 3, 0), 3);
  const int number = mine.get();
  linger.adopt(std::move(mine));
  linger.settle();
  EXPECT_FALSE(is_open(number));
  char bytes[4];
  EXPECT_EQ(recv(theirs.get(), bytes, sizeof bytes, 0), 3);
  EXPECT_EQ(recv(theirs.get(), bytes, sizeof bytes, 0), 0);
}

TEST(TcpLinger, WaitsForABoundedTimeAndKeepsUnfinishedSockets) {
  auto [mine, theirs] = connected();
  Linger linger;
  const std::size_t sent = fill_socket(mine.get());
  const int number = mine.get();
  linger.adopt(std::move(mine));
  const Clock::time_point begin = Clock::now();
  linger.settle();
  EXPECT_LT(Clock::now() - begin, std::chrono::seconds(20));
  EXPECT_TRUE(is_open(number));
  // Nothing was lost by that.
  std::vector<std::byte> bytes(sent);
  EXPECT_EQ(recv(theirs.get(), bytes.data(), sent, MSG_WAITALL), static_cast<ssize_t>(sent));
  EXPECT_EQ(recv(theirs.get(), bytes.data(), sent, 0), 0);
  linger.settle();
  EXPECT_FALSE(is_open(number));
}

// The peer has ended, too: the system delivers the bytes in flight.
TEST(TcpLinger, ClosesAtOnceWhereThePeerHasEnded) {
  auto [mine, theirs] = connected();
  Linger linger;
  const std::size_t sent = fill_socket(mine.get());
  ASSERT_EQ(shutdown(theirs.get(), SHUT_WR), 0);
  const int number = mine.get();
  linger.adopt(std::move(mine));
  EXPECT_FALSE(is_open(number));
  std::vector<std::byte> bytes(sent);
  EXPECT_EQ(recv(theirs.get(), bytes.data(), sent, MSG_WAITALL), static_cast<ssize_t>(sent));
  EXPECT_EQ(recv(theirs.get(), bytes.data(), sent, 0), 0);
}

// Its error is taken by the read that finds it: no later look may wait for bytes that are lost.
TEST(TcpLinger, ClosesAtOnceAfterAReset) {
  auto [mine, theirs] = connected();
  Linger linger;
  fill_socket(mine.get());
  theirs = FileDescriptor();  // over unread bytes: a reset
  const int number = mine.get();
  linger.adopt(std::move(mine));
  EXPECT_FALSE(is_open(number));
}

}  // namespace
}  // namespace ropewalk::transport::tcp
