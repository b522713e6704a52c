// For tests whose ranks all come to their end.
#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <optional>

#include "processes/rank_processes.h"

namespace ropewalk::testing {

/// Each of the `size` ranks reports "done" within a minute.
inline void expect_done(RankProcesses& ranks, int size) {
  for (int r = 0; r < size; ++r) {
    const std::optional<Report> report = ranks.wait(r, std::chrono::minutes(1));
    ASSERT_TRUE(report.has_value());
    EXPECT_EQ(report->text, "done");
  }
}

}  // namespace ropewalk::testing
