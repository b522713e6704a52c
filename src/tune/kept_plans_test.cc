// Plans kept in the process and on disk.
#include "tune/kept_plans.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <future>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "topology/testing/recorded.h"

namespace ropewalk::tune {
namespace {

namespace fs = std::filesystem;

const PlansRequest kRequest{Collective::kBroadcast, 3, 16};

class KeptPlansTest : public ::testing::Test {
 protected:
  KeptPlansTest()
      : folder_(fs::path(::testing::TempDir()) /
                ("kept-plans-" +
                 std::string(::testing::UnitTest::GetInstance()->current_test_info()->name()))),
        machine_(topology::testing::machine("dgx1v")) {
    fs::remove_all(folder_);
  }
  ~KeptPlansTest() override { fs::remove_all(folder_); }

  std::shared_ptr<const PlannedCandidates> fresh() const {
    return KeptPlans().get(machine_, kRequest, folder_.string());
  }
  [[nodiscard]] std::string file() const {
    return plans_file(folder_.string(), machine_.hash(), kRequest);
  }
  [[nodiscard]] std::string text() const {
    std::ostringstream out;
    out << std::ifstream(file()).rdbuf();
    return out.str();
  }
  void overwrite(const std::string& text) const { std::ofstream(file()) << text; }

  fs::path folder_;
  PlannedMachine machine_;
};

void expect_same(const PlannedCandidates& a, const PlannedCandidates& b) {
  ASSERT_EQ(a.schedules.size(), b.schedules.size());
  for (std::size_t i = 0; i < a.schedules.size(); ++i) {
    EXPECT_EQ(a.schedules[i]->algorithm, b.schedules[i]->algorithm);
    EXPECT_EQ(a.schedules[i]->checked->schedule(), b.schedules[i]->checked->schedule());
  }
  EXPECT_EQ(a.refused, b.refused);
}

TEST_F(KeptPlansTest, AreMadeOnceInAProcess) {
  KeptPlans plans;
  std::vector<std::shared_ptr<const PlannedCandidates>> got(4);
  std::vector<std::thread> ranks;
  for (auto& mine : got) {
    ranks.emplace_back([&] { mine = plans.get(machine_, kRequest, ""); });
  }
  for (std::thread& rank : ranks) rank.join();
  for (const auto& mine : got) EXPECT_EQ(mine, got.front());
  EXPECT_GT(got.front()->schedules.size(), 2U);
  EXPECT_NE(plans.get(machine_, {Collective::kBroadcast, 4, 16}, ""), got.front());
}

TEST_F(KeptPlansTest, AreReadAsTheyWereMade) {
  const auto made = fresh();
  ASSERT_TRUE(fs::exists(file()));
  const fs::file_time_type written = fs::last_write_time(file());
  expect_same(*fresh(), *made);
  EXPECT_EQ(fs::last_write_time(file()), written);
  // Nothing else is left beside it but the lock.
  for (const auto& entry : fs::directory_iterator(folder_ / "plans")) {
    EXPECT_TRUE(entry.path() == file() || entry.path() == file() + ".lock") << entry.path();
  }
}

TEST_F(KeptPlansTest, AFileWithoutPlansIsWrittenAgain) {
  const auto made = fresh();
  const std::string good = text();
  std::vector<std::string> bad = {
      "",        "\n", "garbage", good.substr(0, good.size() / 2), good.substr(0, good.size() - 1),
      good + "x"};
  std::string changed = good;
  changed[good.size() / 3] ^= 1;
  bad.push_back(changed);
  for (const std::string& each : bad) {
    overwrite(each);
    expect_same(*fresh(), *made);
    EXPECT_EQ(text(), good);
  }
}

TEST_F(KeptPlansTest, AnotherVersionIsReplaced) {
  (void)fresh();
  const std::string good = text();
  // A file that is whole, of a later version: the check sum of its text is right.
  std::string body = good.substr(17);
  body.pop_back();
  const std::string version = "\"version\":" + std::to_string(kKeptPlansVersion);
  body.replace(body.find(version), version.size(), "\"version\":9999");
  overwrite(kept_plans_text(body));
  (void)fresh();
  EXPECT_EQ(text(), good);
}

TEST_F(KeptPlansTest, AFolderThatCannotBeWrittenIsNoError) {
  std::ofstream(folder_.string()) << "a file where the folder should be";
  expect_same(*fresh(), *KeptPlans().get(machine_, kRequest, ""));
}

TEST_F(KeptPlansTest, EveryMachineAndRequestHasAFileOfItsOwn) {
  const PlannedMachine other(topology::testing::machine("dgx1p"));
  EXPECT_NE(other.hash(), machine_.hash());
  EXPECT_NE(plans_file("f", machine_.hash(), kRequest), plans_file("f", other.hash(), kRequest));
  EXPECT_NE(plans_file("f", 1, kRequest), plans_file("f", 1, {Collective::kBroadcast, 3, 8}));
  EXPECT_NE(plans_file("f", 1, kRequest), plans_file("f", 1, {Collective::kBroadcast, 4, 16}));
}

TEST_F(KeptPlansTest, ThoroughPlansAreKeptApartAndMadeInTheBackground) {
  const auto machine =
      std::make_shared<const PlannedMachine>(topology::testing::machine("dgx-h100-x2"));
  const PlansRequest brief{Collective::kAllReduce, 0, 16};
  PlansRequest thorough = brief;
  thorough.thorough = true;
  KeptPlans plans;
  const auto at_once = plans.get(*machine, brief, folder_.string());
  EXPECT_TRUE(at_once->later.contains("plan-packed"));
  EXPECT_TRUE(at_once->later.contains("plan-ring"));
  std::promise<std::shared_ptr<const PlannedCandidates>> promise;
  plans.get_later(machine, thorough, folder_.string(),
                  [&](std::shared_ptr<const PlannedCandidates> made) { promise.set_value(made); });
  const auto later = promise.get_future().get();
  ASSERT_NE(later, nullptr);
  EXPECT_TRUE(later->later.empty());
  std::set<std::string> names;
  for (const auto& each : later->schedules) names.insert(each->algorithm);
  EXPECT_TRUE(names.contains("plan-packed"));
  EXPECT_EQ(plans.get(*machine, thorough, folder_.string()), later);
  EXPECT_NE(digest_of(*at_once), digest_of(*later));
  KeptPlans others;
  const auto read = others.get(*machine, thorough, folder_.string());
  expect_same(*read, *later);
  EXPECT_EQ(digest_of(*read), digest_of(*later));
  EXPECT_TRUE(fs::exists(plans_file(folder_.string(), machine->hash(), brief)));
  EXPECT_TRUE(fs::exists(plans_file(folder_.string(), machine->hash(), thorough)));
}

}  // namespace
}  // namespace ropewalk::tune
