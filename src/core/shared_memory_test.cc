#include "core/shared_memory.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/testing/in_child.h"

namespace ropewalk {
namespace {

using testing::in_child;
using testing::kSkipped;
using testing::message_of;

FileDescriptor duplicate(int fd) { return FileDescriptor(fcntl(fd, F_DUPFD_CLOEXEC, 0)); }

class Backings : public ::testing::TestWithParam<ShmBacking> {
 protected:
  // Nothing when this system has no such backing.
  static std::optional<SharedMemory> create(std::size_t bytes) {
    if (GetParam() == ShmBacking::kDevShm && access("/dev/shm", W_OK) != 0) return std::nullopt;
    return SharedMemory::create(bytes, GetParam());
  }
};

// NOLINTNEXTLINE(bugprone-macro-parentheses): a name cannot stand in them
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
  memory.reserve(0, std::size_t{33} << 20);  // more than one piece, around existing data
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

TEST_P(Backings, AProcessHasOneMapping) {
  CREATE_OR_SKIP(memory, 10'000);
  std::byte* const first = memory.data();
  std::optional<SharedMemory> other =
      SharedMemory::map_once(duplicate(memory.fd()), memory.size() / 2);
  EXPECT_EQ(other->data(), first);
  EXPECT_NE(SharedMemory::map(duplicate(memory.fd()), 10'000).data(), first) << "of its own";
  // Whoever ends last unmaps.
  const std::size_t bytes = memory.size();
  FileDescriptor fd = duplicate(memory.fd());
  made.reset();
  other->data()[1] = std::byte{7};
  EXPECT_EQ(SharedMemory::map_once(duplicate(fd.get()), bytes).data(), first);
  other.reset();
  const SharedMemory again = SharedMemory::map_once(std::move(fd), bytes);
  EXPECT_EQ(again.data()[1], std::byte{7}) << "mapped anew";
}

TEST_P(Backings, AMappingThatIsTooShortIsNotShared) {
  CREATE_OR_SKIP(memory, 1 << 20);
  FileDescriptor fd = duplicate(memory.fd());
  made.reset();
  const SharedMemory part = SharedMemory::map_once(duplicate(fd.get()), 4096);
  const SharedMemory whole = SharedMemory::map_once(std::move(fd), 1 << 20);
  EXPECT_NE(whole.data(), part.data());
  part.data()[0] = std::byte{3};
  EXPECT_EQ(whole.data()[0], std::byte{3});
  whole.data()[(1 << 20) - 1] = std::byte{4};
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
                         ::testing::Values(ShmBacking::kAuto, ShmBacking::kMemfd,
                                           ShmBacking::kDevShm),
                         [](const auto& param_info) {
                           switch (param_info.param) {
                             case ShmBacking::kAuto: return "Auto";
                             case ShmBacking::kMemfd: return "Memfd";
                             case ShmBacking::kDevShm: return "DevShm";
                           }
                           return "Unknown";
                         });

// Counts how many there are.
struct Counted final : SharedMemory::Attachment {
  explicit Counted(std::atomic<int>& its_count) : count(its_count) { ++count; }
  ~Counted() override { --count; }
  Counted(const Counted&) = delete;
  Counted& operator=(const Counted&) = delete;
  std::atomic<int>& count;
};

TEST(Attachments, UsersOfAMappingShareOne) {
  std::optional<SharedMemory> first = SharedMemory::create(10'000, ShmBacking::kAuto);
  std::optional<SharedMemory> other = SharedMemory::map_once(duplicate(first->fd()), 4096);
  const SharedMemory apart = SharedMemory::map(duplicate(first->fd()), 4096);
  std::atomic<int> count = 0;
  const int key = 0;
  const int other_key = 0;
  std::span<std::byte> whole;
  const SharedMemory::MakeAttachment make = [&](std::span<std::byte> mapping) {
    whole = mapping;
    return std::make_unique<Counted>(count);
  };
  auto a = first->attach_once(&key, make);
  EXPECT_EQ(count, 1);
  auto b = other->attach_once(&key, make);
  EXPECT_EQ(b.get(), a.get());
  EXPECT_EQ(count, 1);
  EXPECT_EQ(whole.data(), first->data());
  EXPECT_EQ(whole.size(), first->size());
  EXPECT_NE(first->attach_once(&other_key, make).get(), a.get());
  EXPECT_NE(apart.attach_once(&key, make).get(), a.get());
  EXPECT_EQ(count, 1) << "those of another key and of another mapping have ended";
  // The last share ends it. It keeps the mapping, as whoever undoes something needs it.
  first.reset();
  a.reset();
  other.reset();
  EXPECT_EQ(count, 1);
  whole.front() = std::byte{1};
  b.reset();
  EXPECT_EQ(count, 0);
}

TEST(Attachments, WhatCouldNotBeMadeIsNotAttached) {
  const SharedMemory memory = SharedMemory::create(4096, ShmBacking::kAuto);
  std::atomic<int> count = 0;
  const int key = 0;
  const auto words = message_of(
      [&] {
        (void)memory.attach_once(&key, [](auto) -> std::unique_ptr<SharedMemory::Attachment> {
          throw Error(Errc::kCuda, "not {}", "now");
        });
      },
      Errc::kCuda);
  EXPECT_EQ(words, "not now");
  const auto made =
      memory.attach_once(&key, [&](auto) { return std::make_unique<Counted>(count); });
  EXPECT_EQ(count, 1) << "the next call tries again";
}

TEST(Attachments, OneEndsBeforeTheNextBegins) {
  const SharedMemory memory = SharedMemory::create(4096, ShmBacking::kAuto);
  std::atomic<int> count = 0;
  std::atomic<int> at_once = 0;
  const int key = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int turn = 0; turn < 500; ++turn) {
        const auto share = memory.attach_once(&key, [&](auto) {
          if (count > 0) ++at_once;
          return std::make_unique<Counted>(count);
        });
        EXPECT_EQ(count, 1);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(at_once, 0) << "two at once";
  EXPECT_EQ(count, 0);
}

TEST_P(Backings, UnmapsWhenItEnds) {
  // In a process of its own: nothing else takes the addresses in between.
  EXPECT_EQ(in_child([] {
              std::optional<SharedMemory> made = create(1);
              if (!made) return kSkipped;
              std::byte* const page = made->data();
              const std::size_t bytes = made->size();
              EXPECT_EQ(msync(page, bytes, MS_ASYNC), 0) << "mapped while it lives";
              made.reset();
              EXPECT_EQ(msync(page, bytes, MS_ASYNC), -1);
              EXPECT_EQ(errno, ENOMEM);
              return 0;
            }),
            GetParam() == ShmBacking::kDevShm && access("/dev/shm", W_OK) != 0 ? kSkipped : 0);
}

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
    return ::testing::Test::HasFailure() ? 1 : 0;
  });
  if (status == kSkipped) GTEST_SKIP() << "setrlimit is not permitted here";
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace ropewalk
