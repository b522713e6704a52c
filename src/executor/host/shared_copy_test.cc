#include "executor/host/shared_copy.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include "core/error.h"
#include "core/process_memory.h"
#include "core/testing/child_process.h"
#include "core/testing/share.h"

namespace ropewalk::executor {
namespace {

using ropewalk::testing::Child;
using ropewalk::testing::read_all;
using ropewalk::testing::write_all;

constexpr std::size_t kCopyBytes = (std::size_t{3} << 20U) + 12345;

// Both ends of a link, and a chunk that was given by address. The writer writes into this process:
// the system lets a process do to itself what it does to others.
class SharedCopyTest : public ::testing::Test {
 protected:
  struct Free {
    void operator()(std::byte* memory) const { std::free(memory); }
  };

  SharedCopyTest()
      : memory_(static_cast<std::byte*>(std::aligned_alloc(4096, kLinkBytes))),
        source_(kCopyBytes),
        destination_(kCopyBytes) {
    std::memset(memory_.get(), 0, kLinkBytes);
    send_.lie_in(memory_.get(), shape_);
    receive_.lie_in(memory_.get(), shape_);
    send_.process = getpid();
  }

  void SetUp() override {
    const ProcessProbe probe;
    const std::string reason = try_single_copy(probe.address());
    if (!reason.empty()) GTEST_SKIP() << reason;
    if (!can_guard_writes()) GTEST_SKIP() << "writes cannot be guarded";
  }

  // Publishes the next chunk, with fresh content.
  void give(std::size_t bytes) {
    for (std::size_t i = 0; i < source_.size(); ++i) {
      source_[i] = static_cast<unsigned char>(i * 7 + i / 4096 + send_.published);
    }
    std::fill(destination_.begin(), destination_.end(), 0);
    SlotHeader* header = send_.header(++send_.published);
    header->kind = SlotKind::kAddress;
    header->bytes = static_cast<std::uint32_t>(bytes);
    header->address = reinterpret_cast<std::uint64_t>(source_.data());
  }

  SharedCopy post(std::size_t bytes) {
    return {receive_, getpid(), reinterpret_cast<std::byte*>(destination_.data()), bytes};
  }

  void read(SharedCopy::Range range) {
    std::memcpy(destination_.data() + range.begin, source_.data() + range.begin, range.bytes);
  }

  [[nodiscard]] bool right(std::size_t bytes) const {
    return std::memcmp(source_.data(), destination_.data(), bytes) == 0;
  }

  static constexpr std::size_t kLinkBytes = std::size_t{1} << 20U;
  const FifoShape shape_{16, 2, 4096};
  std::unique_ptr<std::byte, Free> memory_;
  SendEnd send_;
  ReceiveEnd receive_;
  std::vector<unsigned char> source_;
  std::vector<unsigned char> destination_;
};

TEST_F(SharedCopyTest, BothSidesTogetherCopyEachByteOnce) {
  std::size_t by_reader = 0;
  std::size_t by_writer = 0;
  const int turns = ropewalk::testing::share() > 1 ? 8 : 30;
  for (int turn = 0; turn < turns; ++turn) {
    const std::size_t bytes =
        turn % 3 == 0 ? kCopyBytes : (std::size_t{64} << 10U) + 1000U * static_cast<unsigned>(turn);
    give(bytes);
    std::atomic<bool> done{false};
    std::atomic<bool> helped{false};
    std::thread writer([&] {
      while (!done.load()) {
        if (help_copying(send_)) helped = true;
      }
    });
    // The scheduler decides who gets which piece, but in every other turn the writer gets one.
    const bool waits = turn % 2 == 0;
    std::size_t read_bytes = 0;
    {
      SharedCopy copy = post(bytes);
      std::size_t expected_begin = 0;
      for (SharedCopy::Range range = copy.claim(); range.bytes > 0; range = copy.claim()) {
        EXPECT_EQ(range.begin, expected_begin);
        expected_begin += range.bytes;
        read(range);
        read_bytes += range.bytes;
        while (waits && !helped.load()) std::this_thread::yield();
      }
      while (copy.rest() == SharedCopy::Rest::kPending) std::this_thread::yield();
      EXPECT_EQ(copy.rest(), SharedCopy::Rest::kWritten);
      EXPECT_TRUE(right(bytes)) << "turn " << turn;
    }
    done = true;
    writer.join();
    ++receive_.received;
    by_reader += read_bytes;
    by_writer += bytes - read_bytes;
  }
  EXPECT_GT(by_reader, 0U);
  EXPECT_GT(by_writer, 0U);
}

TEST_F(SharedCopyTest, WriterThatNeverComesLeavesAllToTheReader) {
  give(kCopyBytes);
  SharedCopy copy = post(kCopyBytes);
  for (SharedCopy::Range range = copy.claim(); range.bytes > 0; range = copy.claim()) read(range);
  EXPECT_EQ(copy.rest(), SharedCopy::Rest::kWritten);
  EXPECT_TRUE(right(kCopyBytes));
}

TEST_F(SharedCopyTest, AClaimIsThreeEighthsOfThePiecesThatAreLeft) {
  constexpr std::size_t kPieceBytes = std::size_t{32} << 10U;
  const auto claims = [&](std::size_t bytes) {
    std::vector<std::size_t> found;
    SharedCopy copy = post(bytes);
    for (SharedCopy::Range range = copy.claim(); range.bytes > 0; range = copy.claim()) {
      found.push_back(range.bytes);
    }
    return found;
  };
  const auto pieces = [](std::vector<std::size_t> counts) {
    for (std::size_t& count : counts) count *= kPieceBytes;
    return counts;
  };
  EXPECT_EQ(claims(16 * kPieceBytes), pieces({6, 4, 3, 2, 1}));
  std::vector<std::size_t> with_one_more = pieces({7, 4, 3, 2});
  with_one_more.push_back(1);
  EXPECT_EQ(claims(16 * kPieceBytes + 1), with_one_more);
}

// Nothing is copied here: claims are numbers.
TEST_F(SharedCopyTest, TheLongestCopyHasNoMorePiecesThanADeskCounts) {
  constexpr std::size_t kLongest = (std::size_t{1} << 31U) - (std::size_t{32} << 10U);
  static_assert(is_shared_copy(kLongest) && !is_shared_copy(kLongest + 1));
  SharedCopy copy = post(kLongest);
  std::size_t end = 0;
  for (SharedCopy::Range range = copy.claim(); range.bytes > 0; range = copy.claim()) {
    EXPECT_EQ(range.begin, end);
    end += range.bytes;
  }
  EXPECT_EQ(end, kLongest);
  EXPECT_EQ(copy.rest(), SharedCopy::Rest::kWritten);
}

TEST_F(SharedCopyTest, WriterTakesFromTheBack) {
  give(kCopyBytes);
  SharedCopy copy = post(kCopyBytes);
  const SharedCopy::Range first = copy.claim();
  read(first);
  EXPECT_TRUE(help_copying(send_));
  EXPECT_EQ(copy.claim().bytes, 0U);
  EXPECT_EQ(copy.rest(), SharedCopy::Rest::kWritten);
  EXPECT_EQ(copy.writers_part().begin, first.begin + first.bytes);
  EXPECT_EQ(copy.writers_part().begin + copy.writers_part().bytes, kCopyBytes);
  EXPECT_TRUE(right(kCopyBytes));
}

TEST_F(SharedCopyTest, NothingIsWrittenBeforeThePostOrAfterIt) {
  give(kCopyBytes);
  EXPECT_FALSE(help_copying(send_));
  {
    SharedCopy copy = post(kCopyBytes);
    copy.claim();
  }  // given up: an exception passed
  EXPECT_FALSE(help_copying(send_));
  EXPECT_EQ(std::count(destination_.begin(), destination_.end(), 0),
            static_cast<std::ptrdiff_t>(destination_.size()));
}

TEST_F(SharedCopyTest, AWriterStoppedWithAClaimWritesNothingWhenItGoesOn) {
  give(kCopyBytes);
  const pid_t stopped = fork();
  if (stopped == 0) {
    for (;;) pause();
  }
  kill(stopped, SIGSTOP);
  waitpid(stopped, nullptr, WUNTRACED);
  auto& desk = *reinterpret_cast<CopyDesk*>(memory_.get() + kLineBytes);
  const auto destination = reinterpret_cast<std::uint64_t>(destination_.data());
  {
    SharedCopy copy(receive_, stopped, reinterpret_cast<std::byte*>(destination_.data()),
                    kCopyBytes);
    EXPECT_EQ(desk.destination, destination);
    desk.claims -= 10;    // the writer takes the last ten pieces, and is stopped
  }                       // the reader gives up
  std::thread late([&] {  // the writer goes on with its claim
    EXPECT_FALSE(write_process(getpid(), destination, source_.data(), kCopyBytes,
                               {&desk.destination, destination}));
    EXPECT_FALSE(help_copying(send_));
  });
  late.join();
  EXPECT_EQ(std::count(destination_.begin(), destination_.end(), 0),
            static_cast<std::ptrdiff_t>(destination_.size()));
  kill(stopped, SIGKILL);
  waitpid(stopped, nullptr, 0);
}

TEST_F(SharedCopyTest, ReaderCopiesWhenTheWriterMayNotWrite) {
  give(kCopyBytes);
  void* room =
      mmap(nullptr, kCopyBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(room, MAP_FAILED);
  const Child other([&](int socket) {
    munmap(room, kCopyBytes);
    write_all(socket, "x", 1);
    return pause();
  });
  char nothing_there = 0;
  read_all(other.socket(), &nothing_there, 1);
  send_.process = other.pid();
  {
    SharedCopy copy(receive_, other.pid(), static_cast<std::byte*>(room), kCopyBytes);
    const SharedCopy::Range first = copy.claim();
    EXPECT_FALSE(help_copying(send_));
    EXPECT_EQ(send_.process, 0);  // never again on this link
    std::size_t reader_end = first.bytes;
    for (SharedCopy::Range range = copy.claim(); range.bytes > 0; range = copy.claim()) {
      reader_end = range.begin + range.bytes;
    }
    EXPECT_EQ(copy.rest(), SharedCopy::Rest::kFailed);
    EXPECT_EQ(copy.writers_part().begin, reader_end);
    EXPECT_EQ(copy.writers_part().begin + copy.writers_part().bytes, kCopyBytes);
  }
  munmap(room, kCopyBytes);
}

TEST_F(SharedCopyTest, ADeadReaderIsAnError) {
  give(kCopyBytes);
  const pid_t other = fork();
  if (other == 0) _exit(0);
  waitpid(other, nullptr, 0);
  send_.process = other;
  SharedCopy copy = post(kCopyBytes);
  try {
    help_copying(send_);
    ADD_FAILURE() << "wrote to a process that has ended";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kPeerLost);
  }
}

TEST_F(SharedCopyTest, NumbersOfChunksMayPassTwoToTheThirtyTwo) {
  send_.published = receive_.received = 0xffff'ffff;
  give(kCopyBytes);
  ASSERT_EQ(send_.published, std::uint64_t{1} << 32U);
  SharedCopy copy = post(kCopyBytes);
  EXPECT_TRUE(help_copying(send_));
  EXPECT_EQ(copy.claim().bytes, 0U);
  EXPECT_EQ(copy.rest(), SharedCopy::Rest::kWritten);
  EXPECT_TRUE(right(kCopyBytes));
}

}  // namespace
}  // namespace ropewalk::executor
