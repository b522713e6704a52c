#include "schedule/checked.h"

#include <gtest/gtest.h>

#include <set>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/error.h"

namespace ropewalk::schedule {
namespace {

const Request kRequest{Collective::kAllReduce, 4, 0, 1};

static_assert(!std::is_default_constructible_v<Checked>);
static_assert(!std::is_constructible_v<Checked, Schedule, CheckReport, int>);

TEST(Checked, HoldsAnAcceptedSchedule) {
  const Checked checked = Checked::from(compile("ring", kRequest), 3);
  EXPECT_TRUE(checked.report().accepted);
  EXPECT_EQ(checked.schedule(), compile("ring", kRequest));
  EXPECT_EQ(checked.slots(), 3);
}

TEST(Checked, RefusesListingTheDefects) {
  Schedule schedule = compile("ring", kRequest);
  schedule.programs[2][0].pop_back();
  try {
    Checked::from(schedule);
    ADD_FAILURE();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Errc::kInvalidUsage);
    EXPECT_NE(std::string(error.what()).find("rank 2, channel 0: writes 3 of 4"), std::string::npos)
        << error.what();
  }
}

TEST(CheckedSchedules, EqualRequestsShareOneSchedule) {
  CheckedSchedules cache;
  const auto ring = cache.get("ring", kRequest);
  EXPECT_EQ(cache.get("ring", kRequest), ring);
  EXPECT_NE(cache.get("ring", kRequest, 4), ring);
  EXPECT_NE(cache.get("chain", kRequest), ring);
  EXPECT_NE(cache.get("ring", {Collective::kAllReduce, 4, 0, 2}), ring);
  EXPECT_EQ(cache.size(), 4U);
  const auto on_hosts = [&](std::vector<int> hosts) {
    return cache.get("hierarchical", {Collective::kAllReduce, 4, 0, 1, {}, std::move(hosts)});
  };
  const auto in_turn = on_hosts({0, 1, 0, 1});
  EXPECT_EQ(on_hosts({0, 1, 0, 1}), in_turn);
  EXPECT_NE(on_hosts({0, 0, 1, 1})->schedule(), in_turn->schedule());
}

TEST(CheckedSchedules, FailureIsReportedEachTime) {
  CheckedSchedules cache;
  for (int i = 0; i < 2; ++i) EXPECT_THROW(cache.get("no such", kRequest), Error);
  EXPECT_TRUE(cache.get("ring", kRequest)->report().accepted);
}

TEST(CheckedSchedules, KeepsTheMostRecentlyUsed) {
  // Whichever name comes first.
  for (const auto& [kept, left] : {std::pair("ring", "chain"), std::pair("chain", "ring")}) {
    CheckedSchedules cache(2);
    const auto used = cache.get(kept, kRequest);
    const auto unused = cache.get(left, kRequest);
    EXPECT_EQ(cache.get(kept, kRequest), used);
    cache.get("one_shot", kRequest);  // evicts the least recently used entry
    EXPECT_EQ(cache.size(), 2U);
    EXPECT_EQ(cache.get(kept, kRequest), used) << kept;
    EXPECT_NE(cache.get(left, kRequest), unused) << left;
    EXPECT_TRUE(unused->report().accepted);
  }
}

TEST(CheckedSchedules, ThreadsGetTheSameSchedule) {
  CheckedSchedules cache;
  std::vector<std::shared_ptr<const Checked>> got(8);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < got.size(); ++i) {
    threads.emplace_back([&, i] { got[i] = cache.get(i % 2 == 0 ? "ring" : "chain", kRequest); });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(std::set(got.begin(), got.end()).size(), 2U);
}

}  // namespace
}  // namespace ropewalk::schedule
