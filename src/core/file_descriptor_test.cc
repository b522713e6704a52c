#include "core/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <functional>
#include <utility>

#include "core/socket.h"
#include "core/testing/in_child.h"

namespace ropewalk {
namespace {

using InForkedChild = FileDescriptor::InForkedChild;

bool is_open(int fd) { return fcntl(fd, F_GETFD) != -1; }

int open_null() { return open("/dev/null", O_RDONLY | O_CLOEXEC); }

bool holds_in_child(const std::function<bool()>& check) {
  return testing::in_child([&] { return check() ? 0 : 1; }) == 0;
}

TEST(FileDescriptors, AreClosedOnce) {
  const int first = open_null();
  const int second = open_null();
  {
    FileDescriptor owner(first);
    FileDescriptor other(second, InForkedChild::kClosed);
    owner = std::move(other);
    EXPECT_FALSE(is_open(first));
    EXPECT_EQ(owner.get(), second);
    EXPECT_FALSE(other);  // NOLINT(bugprone-use-after-move): what moving leaves
    EXPECT_TRUE(is_open(second));
    owner.close();
    EXPECT_FALSE(is_open(second));
    EXPECT_FALSE(owner);
    // The number is another file's now, which the owner must leave alone.
    const int again = open_null();
    owner.close();
    EXPECT_TRUE(is_open(again));
    close(again);
  }
}

TEST(FileDescriptors, ForkedChildrenHaveOnlyKeptDescriptors) {
  const FileDescriptor kept(open_null());
  const FileDescriptor connection(open_null(), InForkedChild::kClosed);
  EXPECT_TRUE(holds_in_child([&] { return is_open(kept.get()) && !is_open(connection.get()); }));
  EXPECT_TRUE(is_open(connection.get()));
}

TEST(FileDescriptors, AChildsCopyLeavesAnotherFileWithItsNumberAlone) {
  FileDescriptor connection(open_null(), InForkedChild::kClosed);
  EXPECT_TRUE(holds_in_child([&] {
    const int number = connection.get();
    if (dup2(open_null(), number) != number) return false;
    connection.close();
    return is_open(number);
  }));
}

TEST(FileDescriptors, AllStreamSocketsAreClosedInForkedChildren) {
  SocketAddress address = resolve("127.0.0.1:1").front();
  address.set_port(0);
  const FileDescriptor listener = listen_on(address, &address);
  EXPECT_NE(address.port(), 0);
  const FileDescriptor client = start_connect(address);
  ASSERT_TRUE(wait_ready(listener.get(), POLLIN, 10'000));
  int error = 0;
  SocketAddress from;
  const FileDescriptor server = accept_from(listener, &from, &error);
  ASSERT_TRUE(server) << error;
  EXPECT_TRUE(from.same_host(address));
  EXPECT_EQ(from.port(), local_address(client.get()).port());
  EXPECT_EQ(connect_error(client), 0);
  EXPECT_TRUE(holds_in_child([&] {
    return !is_open(listener.get()) && !is_open(client.get()) && !is_open(server.get());
  }));
}

}  // namespace
}  // namespace ropewalk
