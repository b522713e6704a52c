#include "machine/shared_text.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "core/error.h"

namespace ropewalk::machine {
namespace {

std::shared_ptr<link::HostSegment> segment() {
  const link::HostSegment::Layout layout{2, 1, {}};
  return std::make_shared<link::HostSegment>(
      layout, SharedMemory::create(layout.bytes(), ShmBacking::kAuto));
}

void no_wait() {}

TEST(SharedText, IsMadeOnce) {
  const auto shared = segment();
  int makes = 0;
  const auto make = [&] { return fmt::format("made {} times", ++makes); };
  EXPECT_EQ(SharedText(shared).get(make, no_wait), "made 1 times");
  EXPECT_EQ(SharedText(shared).get(make, no_wait), "made 1 times");
}

TEST(SharedText, OfManyAtOnceOneMakesIt) {
  const auto shared = segment();
  std::atomic<int> makes{0};
  std::vector<std::string> got(8);
  std::vector<std::thread> threads;
  for (std::string& text : got) {
    threads.emplace_back([&] {
      text = SharedText(shared).get(
          [&] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            return std::string(100'000, static_cast<char>('a' + makes++));
          },
          no_wait);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(makes, 1);
  for (const std::string& text : got) EXPECT_EQ(text, std::string(100'000, 'a'));
}

TEST(SharedText, OtherProcessesHaveIt) {
  const auto shared = segment();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)SharedText(shared).get([] { return std::string("of the child"); }, no_wait);
    _exit(0);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(SharedText(shared).get([] { return std::string("of the parent"); }, no_wait),
            "of the child");
}

TEST(SharedText, WhoeverFailsLeavesItToTheNext) {
  const auto shared = segment();
  const auto fail = []() -> std::string { throw Error(Errc::kSystem, "not now"); };
  EXPECT_THROW((void)SharedText(shared).get(fail, no_wait), Error);
  const std::string large(link::HostSegment::kBytesBesideLinks, 'x');
  EXPECT_THROW((void)SharedText(shared).get([&] { return large; }, no_wait), Error);
  EXPECT_EQ(SharedText(shared).get([] { return std::string(); }, no_wait), "");
}

// Its maker has died: a waiting rank learns from `waiting` that it need not continue.
TEST(SharedText, AWaitCanEnd) {
  const auto shared = segment();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    (void)SharedText(shared).get([]() -> std::string { _exit(0); }, no_wait);
    _exit(1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  int waits = 0;
  const auto lost = [&] {
    if (++waits == 3) throw Error(Errc::kPeerLost, "it died");
  };
  EXPECT_THROW((void)SharedText(shared).get([] { return std::string(); }, lost), Error);
  EXPECT_EQ(waits, 3);
}

// The links' memory stays as it is.
TEST(SharedText, LiesBesideTheLinks) {
  const auto shared = segment();
  const std::size_t stride = shared->layout().link_stride();
  std::byte* const last = shared->link(0, 1, 1);
  last[stride - 1] = std::byte{42};
  (void)SharedText(shared).get([] { return std::string(1'000'000, 'x'); }, no_wait);
  EXPECT_EQ(last[stride - 1], std::byte{42});
  EXPECT_EQ(SharedText(shared).get([] { return std::string(); }, no_wait).size(), 1'000'000U);
}

}  // namespace
}  // namespace ropewalk::machine
