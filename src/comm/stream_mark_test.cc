#include "comm/stream_mark.h"

#include <gtest/gtest.h>

#include "core/error.h"

namespace ropewalk::comm {
namespace {

using std::chrono::microseconds;
using std::chrono::milliseconds;

// Passed at the n-th question; -1: never.
class CountedMark final : public StreamMark {
 public:
  explicit CountedMark(int questions) : left_(questions) {}
  bool passed() override {
    ++asked;
    return left_ >= 0 && asked > left_;
  }
  int asked = 0;

 private:
  int left_;
};

TEST(StreamMark, APassedMarkIsQueriedOnce) {
  CountedMark mark(0);
  EXPECT_TRUE(wait(mark, microseconds(0)));
  EXPECT_EQ(mark.asked, 1);
}

TEST(StreamMark, WithoutTimeALookIsAll) {
  CountedMark mark(1);
  EXPECT_FALSE(wait(mark, microseconds(0)));
  EXPECT_EQ(mark.asked, 1);
}

TEST(StreamMark, WaitsWhileTheTimeLasts) {
  CountedMark never(-1);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_FALSE(wait(never, milliseconds(5)));
  EXPECT_GE(std::chrono::steady_clock::now() - begin, milliseconds(5));
  CountedMark late(100);
  EXPECT_TRUE(wait(late, microseconds(-1)));
  EXPECT_EQ(late.asked, 101);
}

TEST(StreamMark, WithoutGpusThereIsNone) {
  if (why_no_device().empty()) GTEST_SKIP() << "this machine has GPUs";
  try {
    const auto mark = mark_stream(0, nullptr);
    FAIL() << "a mark without a GPU";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidUsage);
    EXPECT_EQ(error.what(), why_no_device());
  }
}

}  // namespace
}  // namespace ropewalk::comm
