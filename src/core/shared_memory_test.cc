#include "core/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <vector>

#include "core/error.h"

namespace ropewalk {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPatience = std::chrono::seconds(30);

constexpr int kSkipped = 77;

// Runs `body` in a forked child; 0 is success. Its words for a failure go to standard error.
int in_child(const std::function<int()>& body) {
  const pid_t pid = fork();
  if (pid == 0) {
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& error) {
      fprintf(stderr, "child: %s\n", error.what());
    }
    _exit(status);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

std::string message_of(const std::function<void()>& body, Errc expected) {
  try {
    body();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), expected) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

FileDescriptor duplicate(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

class Backings : public testing::TestWithParam<ShmBacking> {
 protected:
  // Nothing when this system has no such backing.
  static std::optional<SharedMemory> create(std::size_t bytes) {
    if (GetParam() == ShmBacking::kDevShm && access("/dev/shm", W_OK) != 0) return std::nullopt;
    return SharedMemory::create(bytes, GetParam());
  }
};

#define CREATE_OR_SKIP(memory, bytes)                \
  std::optional<SharedMemory> made = create(bytes);  \
  if (!made) GTEST_SKIP() << "no writable /dev/shm"; \
  SharedMemory& memory = *made

TEST_P(Backings, IsZeroedSparseAndWholePages) {
  CREATE_OR_SKIP(memory, (std::size_t{1} << 34) + 1);
  EXPECT_EQ(memory.size() % static_cast<std::size_t>(sysconf(_SC_PAGESIZE)), 0U);
  EXPECT_GE(memory.size(), (std::size_t{1} << 34) + 1);
  EXPECT_EQ(memory.data()[0], std::byte{0});
  EXPECT_EQ(memory.data()[memory.size() - 1], std::byte{0});
  struct stat state {};
  ASSERT_EQ(fstat(memory.fd(), &state), 0);
  EXPECT_LT(state.st_blocks, 1024);
  EXPECT_EQ(state.st_mode & (S_IRWXG | S_IRWXO), 0U) << "others may open it";
}

TEST_P(Backings, ReserveTakesMemoryOnce) {
  CREATE_OR_SKIP(memory, std::size_t{40} << 20);
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const auto held = [&] {
    struct stat state {};
    EXPECT_EQ(fstat(memory.fd(), &state), 0);
    return static_cast<std::size_t>(state.st_blocks) * 512;
  };
  memory.reserve(page + 1, page);  // touches two pages
  EXPECT_EQ(held(), 2 * page);
  memory.data()[page] = std::byte{7};
  memory.reserve(0, std::size_t{33} << 20);  // more than one piece, around what is there
  EXPECT_EQ(held(), std::size_t{33} << 20);
  EXPECT_EQ(memory.data()[page], std::byte{7});
  memory.reserve(0, std::size_t{33} << 20);
  EXPECT_EQ(held(), std::size_t{33} << 20);
  memory.reserve(memory.size(), 0);
  EXPECT_EQ(held(), std::size_t{33} << 20);
  message_of([&] { memory.reserve(memory.size(), 1); }, Errc::kInvalidArgument);
  message_of([&] { memory.reserve(1, memory.size()); }, Errc::kInvalidArgument);
}

TEST_P(Backings, ReserveByThreads) {
  CREATE_OR_SKIP(memory, std::size_t{4} << 20);
  std::vector<std::thread> threads;
  for (std::size_t t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      for (std::size_t at = t * 1000; at + 70'000 < memory.size(); at += 31'000) {
        memory.reserve(at, 70'000);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(Backings, TwoMappingsShareBytes) {
  CREATE_OR_SKIP(memory, 10'000);
  const SharedMemory other = SharedMemory::map(duplicate(memory.fd()), 10'000);
  memory.data()[9'999] = std::byte{5};
  EXPECT_EQ(other.data()[9'999], std::byte{5});
  EXPECT_EQ(in_child([&] {
              memory.data()[1] = std::byte{6};
              return 0;
            }),
            0);
  EXPECT_EQ(other.data()[1], std::byte{6});
}

TEST_P(Backings, MapChecksTheSize) {
  CREATE_OR_SKIP(memory, 4096);
  const std::string words = message_of(
      [&] { SharedMemory::map(duplicate(memory.fd()), memory.size() + 1); }, Errc::kSystem);
  EXPECT_NE(words.find("4096 bytes"), std::string::npos) << words;
}

TEST_P(Backings, MovesLeaveNothingTwice) {
  CREATE_OR_SKIP(memory, 4096);
  SharedMemory moved(std::move(memory));
  moved.data()[0] = std::byte{1};
  SharedMemory assigned = SharedMemory::create(8192, GetParam());
  assigned = std::move(moved);
  EXPECT_EQ(assigned.data()[0], std::byte{1});
  EXPECT_EQ(assigned.size(), 4096U);
  assigned.reserve(0, 4096);
}

INSTANTIATE_TEST_SUITE_P(All, Backings,
                         testing::Values(ShmBacking::kAuto, ShmBacking::kMemfd,
                                         ShmBacking::kDevShm),
                         [](const auto& param_info) {
                           switch (param_info.param) {
                             case ShmBacking::kAuto: return "Auto";
                             case ShmBacking::kMemfd: return "Memfd";
                             case ShmBacking::kDevShm: return "DevShm";
                           }
                           return "Unknown";
                         });

TEST(SharedMemory, PeersCannotCutAMemfdShort) {
  const SharedMemory memory = SharedMemory::create(8192, ShmBacking::kMemfd);
  EXPECT_NE(ftruncate(memory.fd(), 0), 0);
  EXPECT_NE(ftruncate(memory.fd(), 1 << 20), 0);
  memory.data()[8191] = std::byte{1};
}

TEST(SharedMemory, NoSizeIsAnError) {
  message_of([] { SharedMemory::create(0, ShmBacking::kAuto); }, Errc::kInvalidArgument);
  message_of([] { SharedMemory::create(~std::size_t{0}, ShmBacking::kAuto); },
             Errc::kInvalidArgument);
}

TEST(SharedMemory, ParsesBackings) {
  EXPECT_EQ(parse_shm_backing("auto"), ShmBacking::kAuto);
  EXPECT_EQ(parse_shm_backing("memfd"), ShmBacking::kMemfd);
  EXPECT_EQ(parse_shm_backing("dev_shm"), ShmBacking::kDevShm);
  message_of([] { parse_shm_backing("shm"); }, Errc::kInvalidArgument);
}

// A private /dev/shm of 1 MiB, seen by a child process alone.
bool enter_small_dev_shm() {
  if (unshare(CLONE_NEWNS) != 0) return false;
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  return mount("tmpfs", "/dev/shm", "tmpfs", 0, "size=1m") == 0;
}

TEST(SharedMemory, FullDevShmIsAnErrorWithItsSize) {
  const int status = in_child([] {
    if (!enter_small_dev_shm()) return kSkipped;
    SharedMemory memory = SharedMemory::create(std::size_t{64} << 20, ShmBacking::kDevShm);
    memory.reserve(0, std::size_t{768} << 10);
    std::memset(memory.data(), 1, std::size_t{768} << 10);
    const std::string words =
        message_of([&] { memory.reserve(0, std::size_t{12} << 20); }, Errc::kSystem);
    if (words.find("/dev/shm is 1 MiB with 256 KiB free; 12 MiB were needed") ==
        std::string::npos) {
      fprintf(stderr, "message: %s\n", words.c_str());
      return 1;
    }
    // The failed attempt took nothing, and the same range may still be had in part.
    memory.reserve(0, std::size_t{1} << 20);
    return 0;
  });
  if (status == kSkipped) GTEST_SKIP() << "no private mount namespace is permitted here";
  EXPECT_EQ(status, 0);
}

TEST(SharedMemory, FileSizeLimitIsAnError) {
  const int status = in_child([] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1 << 20, 1 << 20};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return kSkipped;
    message_of([] { SharedMemory::create(std::size_t{2} << 20, ShmBacking::kMemfd); },
               Errc::kSystem);
    return testing::Test::HasFailure() ? 1 : 0;
  });
  if (status == kSkipped) GTEST_SKIP() << "setrlimit is not permitted here";
  EXPECT_EQ(status, 0);
}

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
  server.serve(memory.fd(), kReceivers, Clock::now() + kPatience);
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
  message_of([&] { server.serve(memory.fd(), 1, Clock::now()); }, Errc::kTimeout);
  message_of([&] { fetch_descriptor(server.name(), Clock::now() + std::chrono::milliseconds(20)); },
             Errc::kTimeout);
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
