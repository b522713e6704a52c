#include "executor/host/limits.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/wait.h>

#include <cerrno>
#include <cmath>

namespace ropewalk::executor {
namespace {

bool is_positive(double value) { return std::isfinite(value) && value > 0; }

TEST(Limits, AreMeasuredAndPlausible) {
  const Limits limits = measure_limits(std::chrono::milliseconds(60));
  ASSERT_FALSE(limits.cores.empty());
  ASSERT_GE(limits.bandwidth.size(), 2u);
  for (std::size_t i = 0; i < limits.bandwidth.size(); ++i) {
    const BandwidthPoint& point = limits.bandwidth[i];
    EXPECT_TRUE(is_positive(point.memcpy_bytes_per_second));
    EXPECT_TRUE(is_positive(point.streaming_bytes_per_second));
    EXPECT_TRUE(is_positive(point.combine_bytes_per_second));
    EXPECT_TRUE(i == 0 || point.working_set > limits.bandwidth[i - 1].working_set);
  }
  // Within a core's first cache, and beyond all caches.
  EXPECT_EQ(limits.bandwidth.front().working_set, std::size_t{24} << 10);
  EXPECT_EQ(limits.bandwidth.back().working_set, std::size_t{192} << 20);
  EXPECT_EQ(limits.cached_copy_bytes_per_second(),
            limits.bandwidth.front().memcpy_bytes_per_second);
  EXPECT_EQ(limits.uncached_combine_bytes_per_second(),
            limits.bandwidth.back().combine_bytes_per_second);
  EXPECT_EQ(limits.best_line_latency_seconds().has_value(), limits.cores.size() > 1);
  for (const LineLatency& latency : limits.line_latency) {
    EXPECT_TRUE(is_positive(latency.seconds));
    EXPECT_NE(latency.first_core, latency.second_core);
    // Light needs 1 ns for 30 cm: anything faster than 0.1 ns was not measured.
    EXPECT_GT(latency.seconds, 1e-10);
  }
  if (limits.process_read) {
    EXPECT_TRUE(is_positive(limits.process_read->seconds_per_call));
    EXPECT_TRUE(is_positive(limits.process_read->small_bytes_per_second));
    EXPECT_TRUE(is_positive(limits.process_read->large_bytes_per_second));
    EXPECT_TRUE(is_positive(limits.process_read->fresh_bytes_per_second));
    EXPECT_TRUE(is_positive(limits.process_read->moved_bytes_per_second));
  }
  EXPECT_TRUE(is_positive(limits.tcp_latency_seconds.value_or(1)));
  EXPECT_TRUE(is_positive(limits.tcp_message_seconds.value_or(1)));
}

TEST(Limits, WorkOnOneCoreAndLeaveNothingBehind) {
  cpu_set_t before;
  ASSERT_EQ(sched_getaffinity(0, sizeof before, &before), 0);
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(first, &one);
  ASSERT_EQ(sched_setaffinity(0, sizeof one, &one), 0);
  const Limits limits = measure_limits(std::chrono::milliseconds(10));
  cpu_set_t after;
  ASSERT_EQ(sched_getaffinity(0, sizeof after, &after), 0);
  ASSERT_EQ(sched_setaffinity(0, sizeof before, &before), 0);

  EXPECT_EQ(limits.cores, std::vector<int>{first});
  EXPECT_TRUE(limits.line_latency.empty());
  EXPECT_FALSE(limits.best_line_latency_seconds().has_value());
  EXPECT_TRUE(CPU_EQUAL(&after, &one)) << "the core set was not put back";
  errno = 0;
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a child process is left";
  EXPECT_EQ(errno, ECHILD);
}

}  // namespace
}  // namespace ropewalk::executor
