#include "core/descriptor_server.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/shared_memory.h"
#include "core/testing/in_child.h"

namespace ropewalk {
namespace {

using testing::in_child;
using testing::message_of;
using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(30);

TEST(DescriptorServer, NamesAreRandom) {
  const DescriptorServer a;
  const DescriptorServer b;
  EXPECT_EQ(a.name().size(), 32U);
  EXPECT_EQ(a.name().find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_NE(a.name(), b.name());
}

TEST(DescriptorServer, ServesSeveralProcesses) {
  SharedMemory memory = SharedMemory::create(4096, ShmBacking::kAuto);
  DescriptorServer server;
  EXPECT_EQ(server.serve(memory.fd()), 0);
  constexpr int kReceivers = 5;
  std::vector<pid_t> children;
  for (int i = 0; i < kReceivers; ++i) {
    const pid_t pid = fork();
    if (pid == 0) {
      int status = 1;
      try {
        SharedMemory seen =
            SharedMemory::map(fetch_descriptor(server.name(), Clock::now() + kPatience), 4096);
        seen.data()[i] = static_cast<std::byte>(i + 1);
        status = (fcntl(seen.fd(), F_GETFD) & FD_CLOEXEC) != 0 ? 0 : 2;
      } catch (const std::exception& error) {
        fprintf(stderr, "child: %s\n", error.what());
      }
      _exit(status);
    }
    children.push_back(pid);
  }
  server.serve(memory.fd(), kReceivers, Clock::now() + kPatience, [] {});
  for (const pid_t pid : children) {
    int status = 0;
    waitpid(pid, &status, 0);
    EXPECT_EQ(status, 0);
  }
  for (int i = 0; i < kReceivers; ++i) EXPECT_EQ(memory.data()[i], static_cast<std::byte>(i + 1));
}

TEST(DescriptorServer, Deadlines) {
  const SharedMemory memory = SharedMemory::create(4096, ShmBacking::kAuto);
  DescriptorServer server;
  message_of([&] { server.serve(memory.fd(), 1, Clock::now(), [] {}); }, Errc::kTimeout);
  message_of([&] { fetch_descriptor(server.name(), Clock::now() + std::chrono::milliseconds(20)); },
             Errc::kTimeout);
}

TEST(DescriptorServer, TheWaitEndsByAnEventMeanwhile) {
  const SharedMemory memory = SharedMemory::create(4096, ShmBacking::kMemfd);
  DescriptorServer server;
  const auto begin = Clock::now();
  int looks = 0;
  const std::string words = message_of(
      [&] {
        server.serve(memory.fd(), 1, Clock::now() + kPatience, [&] {
          if (++looks == 3) throw Error(Errc::kPeerLost, "rank 7 died");
        });
      },
      Errc::kPeerLost);
  EXPECT_EQ(words, "rank 7 died");
  EXPECT_LT(Clock::now() - begin, kPatience / 2);
}

TEST(DescriptorServer, NoServerIsAnError) {
  const std::string words = message_of(
      [] { fetch_descriptor("00000000000000000000000000000000", Clock::now() + kPatience); },
      Errc::kSystem);
  EXPECT_NE(words.find("Connection refused"), std::string::npos) << words;
  message_of([] { fetch_descriptor(std::string(200, 'a'), Clock::now() + kPatience); },
             Errc::kInvalidArgument);
}

TEST(DescriptorServer, OtherUsersGetNothing) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const SharedMemory memory = SharedMemory::create(4096, ShmBacking::kAuto);
  DescriptorServer server;
  // The child is refused by its own check of the server and, past that, by the server's.
  EXPECT_EQ(in_child([&] {
              if (setresuid(65534, 65534, 65534) != 0) return 2;
              const std::string words =
                  message_of([&] { fetch_descriptor(server.name(), Clock::now() + kPatience); },
                             Errc::kSystem);
              return words.find("another user") != std::string::npos ? 0 : 1;
            }),
            0);
  int ready[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ready), 0);
  const FileDescriptor ours(ready[0]);
  FileDescriptor theirs(ready[1]);
  const pid_t pid = fork();
  if (pid == 0) {
    int status = 1;
    if (setresuid(65534, 65534, 65534) == 0) {
      const int stranger = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      const std::string path = "ropewalk-" + server.name();
      std::memcpy(address.sun_path + 1, path.data(), path.size());
      const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + path.size());
      char byte = 'x';
      if (connect(stranger, reinterpret_cast<sockaddr*>(&address), bytes) == 0 &&
          write(theirs.get(), &byte, 1) == 1) {
        status = read(stranger, &byte, 1) == 1 ? 3 : 0;  // nothing but the end may come
      }
    }
    _exit(status);
  }
  theirs = FileDescriptor();
  char byte = 0;
  EXPECT_EQ(read(ours.get(), &byte, 1), 1);
  // The first stranger was taken off the queue too: neither counts.
  EXPECT_EQ(server.serve(memory.fd()), 0);
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ropewalk
