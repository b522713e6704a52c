#include "core/process_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <numeric>
#include <vector>

#include "core/error.h"
#include "core/shared_memory.h"

namespace ropewalk {
namespace {

// A forked child that does nothing until it is killed; its memory is a copy of the parent's at the
// fork, so equal addresses hold equal bytes.
class SleepingChild {
 public:
  SleepingChild() : pid_(fork()) {
    if (pid_ == 0) {
      for (;;) pause();
    }
  }
  ~SleepingChild() { end(); }
  SleepingChild(const SleepingChild&) = delete;
  SleepingChild& operator=(const SleepingChild&) = delete;
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  [[nodiscard]] pid_t pid() const { return pid_; }

 private:
  pid_t pid_;
};

std::vector<std::uint8_t> numbered(std::size_t bytes, int seed) {
  std::vector<std::uint8_t> data(bytes);
  std::iota(data.begin(), data.end(), static_cast<std::uint8_t>(seed));
  return data;
}

std::uint64_t address_of(const void* data) { return reinterpret_cast<std::uint64_t>(data); }

#define SKIP_WITHOUT_SINGLE_COPY(child, probe) \
  if (std::string reason = try_in_child(child, probe); !reason.empty()) GTEST_SKIP() << reason

std::string try_in_child(const SleepingChild& child, const ProcessProbe& probe) {
  ProbeAddress address = probe.address();
  address.pid = child.pid();
  return try_single_copy(address);
}

TEST(ProcessMemory, OwnProbeIsReadable) {
  const ProcessProbe probe;
  EXPECT_EQ(probe.address().pid, getpid());
  const std::string reason = try_single_copy(probe.address());
  if (!reason.empty()) GTEST_SKIP() << reason;
}

TEST(ProcessMemory, KnowsMappedMemory) {
  constexpr std::size_t kPage = 4096;
  void* const memory =
      mmap(nullptr, 3 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::byte* const data = static_cast<std::byte*>(memory);
  EXPECT_TRUE(is_mapped(data, 3 * kPage));
  EXPECT_TRUE(is_mapped(data + 17, 1));
  EXPECT_TRUE(is_mapped(nullptr, 0));
  EXPECT_FALSE(is_mapped(nullptr, 1));
  EXPECT_FALSE(is_mapped(data, std::size_t{1} << 63U));
  EXPECT_FALSE(is_mapped(data, ~std::size_t{0}));
  ASSERT_EQ(munmap(data + kPage, kPage), 0);
  EXPECT_TRUE(is_mapped(data, kPage));
  EXPECT_FALSE(is_mapped(data, kPage + 1));
  EXPECT_FALSE(is_mapped(data, 3 * kPage));
  EXPECT_FALSE(is_mapped(data + kPage + 5, 1));
  munmap(data, 3 * kPage);
}

TEST(ProcessMemory, ProbesDiffer) {
  EXPECT_NE(ProcessProbe().address().pattern, ProcessProbe().address().pattern);
}

TEST(ProcessMemory, WrongContentIsNoticed) {
  const ProcessProbe probe;
  if (std::string reason = try_single_copy(probe.address()); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  ProbeAddress address = probe.address();
  address.pattern[31] ^= std::byte{1};
  EXPECT_EQ(try_single_copy(address), "wrong content: another process-id namespace");
}

TEST(ProcessMemory, ReasonNamesCallAndProcess) {
  const ProcessProbe probe;
  SleepingChild child;
  const pid_t gone = child.pid();
  child.end();
  ProbeAddress address = probe.address();
  address.pid = gone;
  EXPECT_NE(try_single_copy(address).find(fmt::format("process_vm_readv of process {}: ", gone)),
            std::string::npos);
}

TEST(ProcessMemory, ReadsAndWritesAnotherProcess) {
  const ProcessProbe probe;
  std::vector<std::uint8_t> data = numbered(1'000'003, 1);
  SleepingChild child;
  SKIP_WITHOUT_SINGLE_COPY(child, probe);

  const std::vector<std::uint8_t> original = data;
  const std::vector<std::uint8_t> changed = numbered(data.size(), 99);
  std::fill(data.begin(), data.end(), std::uint8_t{0});  // ours; the child's stays
  std::vector<std::uint8_t> seen(data.size());
  read_process(child.pid(), seen.data(), address_of(data.data()), seen.size());
  EXPECT_EQ(seen, original);
  read_process(child.pid(), nullptr, 0, 0);  // nothing to move, nothing touched
  if (!can_guard_writes()) GTEST_SKIP() << "writes cannot be guarded";
  const std::uint64_t word = 1;
  EXPECT_FALSE(write_process(child.pid(), address_of(data.data()), changed.data(), 1, {&word, 2}));
  EXPECT_TRUE(write_process(child.pid(), address_of(data.data()) + 3, changed.data() + 3,
                            changed.size() - 5, {&word, 1}));
  read_process(child.pid(), seen.data(), address_of(data.data()), seen.size());
  EXPECT_EQ(std::vector<std::uint8_t>(seen.begin() + 3, seen.end() - 2),
            std::vector<std::uint8_t>(changed.begin() + 3, changed.end() - 2));
  EXPECT_EQ(seen[2], original[2]);
  EXPECT_EQ(seen[seen.size() - 2], original[seen.size() - 2]);
}

TEST(ProcessMemory, SeesWhetherAProcessIsStopped) {
  SleepingChild child;
  EXPECT_FALSE(is_stopped(child.pid()));
  kill(child.pid(), SIGSTOP);
  int status = 0;
  waitpid(child.pid(), &status, WUNTRACED);
  EXPECT_TRUE(is_stopped(child.pid()));
  const pid_t gone = child.pid();
  child.end();
  EXPECT_TRUE(is_stopped(gone));
}

TEST(ProcessMemory, LengthsBeyondOneCallOfTheKernel) {
  // Memory stays small: the source is untouched zero pages but for its end, the destination one
  // file of 48 MiB mapped again and again. A piece of a read is no multiple of that, so that one
  // which lands where an earlier one did ends elsewhere in the file.
  constexpr std::size_t kTileBytes = std::size_t{48} << 20;
  constexpr std::size_t kBytes = 54 * kTileBytes;
  constexpr std::size_t kCopied = kBytes - 12345;
  void* source = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(source, MAP_FAILED);
  static_cast<char*>(source)[kCopied - 1] = 42;
  const ProcessProbe probe;
  SleepingChild child;
  munmap(source, kBytes);
  SKIP_WITHOUT_SINGLE_COPY(child, probe);
  void* destination =
      mmap(nullptr, kBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(destination, MAP_FAILED);
  const SharedMemory tile = SharedMemory::create(kTileBytes, ShmBacking::kAuto);
  auto* bytes = static_cast<char*>(destination);
  for (std::size_t at = 0; at < kBytes; at += kTileBytes) {
    ASSERT_NE(
        mmap(bytes + at, kTileBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, tile.fd(), 0),
        MAP_FAILED);
  }
  read_process(child.pid(), destination, address_of(source), kCopied);
  EXPECT_EQ(bytes[kCopied - 1], 42);
  munmap(destination, kBytes);
}

TEST(ProcessMemory, UnmappedMemoryIsAnError) {
  const ProcessProbe probe;
  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  auto* two_pages = static_cast<std::byte*>(
      mmap(nullptr, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  ASSERT_NE(two_pages, MAP_FAILED);
  munmap(two_pages + page, page);
  SleepingChild child;
  SKIP_WITHOUT_SINGLE_COPY(child, probe);
  std::vector<std::byte> here(2 * page);
  try {
    read_process(child.pid(), here.data(), address_of(two_pages), 2 * page);
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kSystem);
    EXPECT_NE(std::string(error.what()).find("process_vm_readv"), std::string::npos);
    EXPECT_NE(std::string(error.what()).find("Bad address"), std::string::npos);
  }
  munmap(two_pages, page);
}

TEST(ProcessMemory, DeadProcessIsPeerLost) {
  SleepingChild child;
  const pid_t gone = child.pid();
  child.end();
  std::byte byte{};
  for (const bool writing : {false, true}) {
    try {
      if (writing) {
        if (!can_guard_writes()) continue;
        const std::uint64_t word = 1;
        write_process(gone, address_of(&byte), &byte, 1, {&word, 1});
      } else {
        read_process(gone, &byte, address_of(&byte), 1);
      }
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), Errc::kPeerLost) << error.what();
    }
  }
}

}  // namespace
}  // namespace ropewalk
