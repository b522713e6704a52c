// Plans that take long: made in the background, and taken into use by all ranks at the same call.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <latch>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/group.h"
#include "comm/testing/ranks.h"
#include "core/interrupt.h"
#include "topology/json.h"
#include "topology/testing/recorded.h"
#include "tune/kept_plans.h"

namespace ropewalk::comm {
namespace {

using std::chrono::milliseconds;
using tune::PlansMade;
using tune::PlansRequest;

constexpr int kPlanningRanks = 3;
constexpr std::size_t kPlannedCount = 16 << 10;
constexpr const char* kSlow = "plan-packed";  // what is made to take long

// A brief request leaves out all plans; a thorough one makes the packed one, after `slow`.
tune::KeptPlans::Planner slow_planner(std::function<void()> slow) {
  return [slow = std::move(slow)](const topology::Topology& machine, const PlansRequest& request) {
    PlansMade made;
    if (!request.thorough) {
      made.later = {kSlow};
      return made;
    }
    slow();
    made = tune::make_plans(machine, request);
    std::erase_if(made.algorithms, [](const auto& each) { return each.name != kSlow; });
    return made;
  };
}

// A DGX-1V a thousand times as slow, so that short messages are to its links what long ones are to
// the machine's: plans serve them.
const std::string& slow_machine() {
  static const std::string file = [] {
    topology::Description description = topology::testing::machine("dgx1v").description();
    for (topology::Link& link : description.links) link.capacity /= 1000;
    std::string path =
        (std::filesystem::path(::testing::TempDir()) / fmt::format("slow-dgx1v-{}.json", getpid()))
            .string();
    std::ofstream(path) << topology::write_json(topology::Topology(std::move(description)));
    return path;
  }();
  return file;
}

void no_delay() {}

void prepare(Runtime& runtime, std::function<void()> slow = no_delay) {
  testing::quiet(runtime);
  runtime.set("TOPOLOGY", slow_machine(), "test");
  runtime.plans()->plan_with(slow_planner(std::move(slow)));
}

// Runs `body` on every rank, each in a thread, with a runtime of its own: as processes have.
void with_runtimes(const std::vector<std::unique_ptr<Runtime>>& runtimes,
                   const std::function<void(Communicator&)>& body) {
  const bootstrap::UniqueId id =
      bootstrap::make_unique_id(runtimes[0]->config(), runtimes[0]->context());
  std::vector<std::thread> threads;
  for (int r = 0; r < static_cast<int>(runtimes.size()); ++r) {
    threads.emplace_back([&, r] {
      try {
        const auto comm = Communicator::join(id, r, static_cast<int>(runtimes.size()),
                                             *runtimes[static_cast<std::size_t>(r)]);
        body(*comm);
        comm->finalize();
      } catch (const std::exception& error) {
        ADD_FAILURE() << "rank " << r << ": " << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Makes all-reduces, checks every result, and records at which call each algorithm began.
class Reducing {
 public:
  explicit Reducing(Communicator& comm, std::size_t count = kPlannedCount)
      : comm_(comm), input_(count), output_(count) {
    call_.input = input_.data();
    call_.output = output_.data();
    call_.count = count;
    call_.type = DataType::kInt32;
  }

  void fill() {
    ++calls_;
    for (std::size_t i = 0; i < input_.size(); ++i) {
      input_[i] = static_cast<int>(i) * (comm_.rank() + 1) + calls_;
    }
  }
  void check() {
    const int ranks = comm_.size();
    int wrong = 0;
    for (std::size_t i = 0; i < output_.size(); ++i) {
      wrong += output_[i] != static_cast<int>(i) * ranks * (ranks + 1) / 2 + calls_ * ranks ? 1 : 0;
    }
    ASSERT_EQ(wrong, 0) << "rank " << comm_.rank() << ", call " << calls_;
  }
  void note() { note(comm_.algorithm_of(call_)); }
  void note(const std::string& algorithm) {
    if (began_.empty() || began_.back().second != algorithm) {
      began_.emplace_back(calls_, algorithm);
    }
  }
  // One call.
  void operator()() {
    fill();
    comm_.run(call_);
    // What ran: before the call a rank may not know yet that the others begin with it.
    note(comm_.records().read(1).back().algorithm);
    check();
  }
  void until_planned(int at_most = 100'000) {
    while (!planned() && calls_ < at_most) (*this)();
    EXPECT_TRUE(planned()) << "after " << calls_ << " calls";
  }
  [[nodiscard]] bool planned() const {
    return !began_.empty() && began_.back().second.starts_with("plan-");
  }
  [[nodiscard]] const std::vector<std::pair<int, std::string>>& began() const { return began_; }
  [[nodiscard]] int calls() const { return calls_; }
  CollectiveCall& call() { return call_; }

 private:
  Communicator& comm_;
  std::vector<int> input_;
  std::vector<int> output_;
  CollectiveCall call_;
  int calls_ = 0;
  std::vector<std::pair<int, std::string>> began_;
};

using Began = std::vector<std::vector<std::pair<int, std::string>>>;

void expect_one_switch(const Began& began) {
  ASSERT_EQ(began[0].size(), 2U);
  EXPECT_FALSE(began[0][0].second.starts_with("plan-"));
  EXPECT_TRUE(began[0][1].second.starts_with("plan-")) << began[0][1].second;
  EXPECT_GT(began[0][1].first, 1);
  for (const auto& rank : began) EXPECT_EQ(rank, began[0]);
}

TEST(BackgroundPlans, AreTakenIntoUseByAllRanksAtTheSameCall) {
  Runtime runtime;
  std::promise<void> gate;
  prepare(runtime, [opened = gate.get_future().share()] { opened.wait(); });
  Began began(kPlanningRanks);
  testing::with_ranks(kPlanningRanks, runtime, [&](Communicator& comm) {
    Reducing reduce(comm);
    for (int i = 0; i < 20; ++i) reduce();
    EXPECT_FALSE(reduce.planned());
    if (comm.rank() == 1) gate.set_value();
    // All stop at the same call, or never.
    reduce.until_planned();
    for (int i = 0; i < 20; ++i) reduce();
    began[static_cast<std::size_t>(comm.rank())] = reduce.began();
  });
  expect_one_switch(began);
}

TEST(BackgroundPlans, ProcessesThatPlanAtDifferentSpeedsSwitchTogether) {
  const std::string folder =
      (std::filesystem::path(::testing::TempDir()) / fmt::format("background-plans-{}", getpid()))
          .string();
  std::filesystem::remove_all(folder);
  for (const bool kept : {false, true}) {
    std::vector<std::unique_ptr<Runtime>> runtimes;
    for (int r = 0; r < kPlanningRanks; ++r) {
      runtimes.push_back(std::make_unique<Runtime>());
      prepare(*runtimes.back(), [r] { std::this_thread::sleep_for(milliseconds(60 * r)); });
      // Rank 2 has a folder, in the second round with the plans in it.
      if (r == 2) {
        runtimes.back()->set("TUNE", "1", "test");
        runtimes.back()->set("TUNING_FILE", folder + "/tuning.json", "test");
      }
    }
    Began began(kPlanningRanks);
    with_runtimes(runtimes, [&](Communicator& comm) {
      Reducing reduce(comm);
      reduce.until_planned();
      reduce();
      began[static_cast<std::size_t>(comm.rank())] = reduce.began();
    });
    expect_one_switch(began);
    EXPECT_TRUE(std::filesystem::exists(folder + "/plans")) << kept;
  }
  std::filesystem::remove_all(folder);
}

TEST(BackgroundPlans, RanksWithDifferentPlansKeepTheirPlans) {
  std::vector<std::unique_ptr<Runtime>> runtimes;
  for (int r = 0; r < kPlanningRanks; ++r) {
    runtimes.push_back(std::make_unique<Runtime>());
    prepare(*runtimes.back());
  }
  runtimes[1]->plans()->plan_with(
      [](const topology::Topology& machine, const PlansRequest& request) {
        PlansMade made;
        made.later = {kSlow};
        if (request.thorough) {
          made = tune::make_plans(machine, request);
          std::erase_if(made.algorithms, [](const auto& each) { return each.name != "plan-ring"; });
        }
        return made;
      });
  Began began(kPlanningRanks);
  with_runtimes(runtimes, [&](Communicator& comm) {
    Reducing reduce(comm);
    for (int i = 0; i < 30; ++i) reduce();
    std::this_thread::sleep_for(milliseconds(50));
    for (int i = 0; i < 30; ++i) reduce();
    began[static_cast<std::size_t>(comm.rank())] = reduce.began();
  });
  for (const auto& rank : began) {
    ASSERT_EQ(rank.size(), 1U);
    EXPECT_FALSE(rank[0].second.starts_with("plan-"));
  }
}

TEST(BackgroundPlans, IfOneRankCannotPlanAllKeepTheirPlans) {
  std::vector<std::unique_ptr<Runtime>> runtimes;
  for (int r = 0; r < kPlanningRanks; ++r) {
    runtimes.push_back(std::make_unique<Runtime>());
    prepare(*runtimes.back(), [r] {
      if (r == 2) throw std::bad_alloc();
    });
  }
  with_runtimes(runtimes, [&](Communicator& comm) {
    Reducing reduce(comm);
    for (int i = 0; i < 30; ++i) reduce();
    EXPECT_EQ(reduce.began().size(), 1U);
    EXPECT_FALSE(reduce.planned());
  });
}

TEST(BackgroundPlans, RequestsTakeThemByTheNumbersTheyWereStartedWith) {
  Runtime runtime;
  prepare(runtime, [] { std::this_thread::sleep_for(milliseconds(20)); });
  testing::with_ranks(kPlanningRanks, runtime, [&](Communicator& comm) {
    constexpr std::size_t kAtOnce = 8;
    std::vector<std::unique_ptr<Reducing>> all;
    for (std::size_t i = 0; i < kAtOnce; ++i) all.push_back(std::make_unique<Reducing>(comm));
    for (bool planned = false; !planned;) {
      std::vector<std::shared_ptr<Request>> requests;
      for (const auto& reduce : all) {
        reduce->fill();
        requests.push_back(std::make_shared<Request>());
        comm.start(reduce->call(), requests.back());
      }
      for (const auto& request : requests) {
        ASSERT_TRUE(request->wait(std::chrono::microseconds(-1)));
        ASSERT_FALSE(request->error().has_value()) << request->error()->what();
      }
      for (const auto& reduce : all) reduce->check();
      // What ran last is the same on all ranks; what is next a rank may not know yet.
      all[0]->note(comm.records().read(1).back().algorithm);
      planned = all[0]->planned();
      ASSERT_LT(all[0]->calls(), 3'000);
    }
  });
}

// One thread makes all calls of a group's first communicator before those of the second: no call
// may wait for another rank's.
TEST(BackgroundPlans, GroupsOfSeveralRanksInOneThreadGoOn) {
  Runtime runtime;
  prepare(runtime, [] { std::this_thread::sleep_for(milliseconds(20)); });
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime.config(), runtime.context());
  std::vector<std::unique_ptr<Communicator>> comms(kPlanningRanks);
  std::vector<std::thread> joining;
  for (int r = 0; r < kPlanningRanks; ++r) {
    joining.emplace_back([&, r] {
      comms[static_cast<std::size_t>(r)] = Communicator::join(id, r, kPlanningRanks, runtime);
    });
  }
  for (std::thread& thread : joining) thread.join();
  std::vector<std::vector<std::unique_ptr<Reducing>>> all(kPlanningRanks);
  for (std::size_t r = 0; r < kPlanningRanks; ++r) {
    for (int i = 0; i < 5; ++i) all[r].push_back(std::make_unique<Reducing>(*comms[r], 4096));
  }
  const auto planned = [&] {
    int ranks = 0;
    for (auto& of_rank : all) {
      of_rank[0]->note();
      ranks += of_rank[0]->planned() ? 1 : 0;
    }
    return ranks;
  };
  int rounds = 0;
  while (planned() < kPlanningRanks) {
    ASSERT_LT(++rounds, 100'000);
    Group::of_thread().start();
    for (std::size_t r = kPlanningRanks; r-- > 0;) {
      for (auto& reduce : all[r]) {
        reduce->fill();
        Group::of_thread().add(*comms[r], reduce->call(), nullptr);
      }
    }
    Group::of_thread().end();
    for (auto& of_rank : all) {
      for (auto& reduce : of_rank) reduce->check();
    }
  }
  std::vector<std::thread> leaving;
  for (auto& comm : comms) leaving.emplace_back([&] { comm->finalize(); });
  for (std::thread& thread : leaving) thread.join();
}

TEST(BackgroundPlans, EachCommunicatorAgreesByItself) {
  Runtime runtime;
  prepare(runtime, [] { std::this_thread::sleep_for(milliseconds(10)); });
  testing::with_ranks(kPlanningRanks, runtime, [&](Communicator& comm) {
    const std::unique_ptr<Communicator> other = comm.split(0, -comm.rank());
    Reducing reduce(comm);
    reduce.until_planned();
    // Its plans are there already: agreed on all the same.
    Reducing second(*other);
    second.until_planned();
    EXPECT_EQ(second.began().size(), 2U);
    other->finalize();
    for (int i = 0; i < 5; ++i) reduce();
  });
}

TEST(BackgroundPlans, ACommunicatorMayEndWhileItIsPlannedFor) {
  for (const bool aborts : {false, true}) {
    auto runtime = std::make_unique<Runtime>();
    std::promise<void> gate;
    std::atomic<int> ended{0};
    prepare(*runtime, [&, opened = gate.get_future().share()] {
      opened.wait();
      ++ended;
    });
    if (aborts) {
      const bootstrap::UniqueId id =
          bootstrap::make_unique_id(runtime->config(), runtime->context());
      std::vector<std::thread> threads;
      std::latch reduced(kPlanningRanks);  // a rank that aborts ends the others' calls
      for (int r = 0; r < kPlanningRanks; ++r) {
        threads.emplace_back([&, r] {
          const auto comm = Communicator::join(id, r, kPlanningRanks, *runtime);
          Reducing reduce(*comm);
          reduce();
          reduced.arrive_and_wait();
          comm->abort("test");
        });
      }
      for (std::thread& thread : threads) thread.join();
    } else {
      testing::with_ranks(kPlanningRanks, *runtime, [](Communicator& comm) {
        Reducing reduce(comm);
        for (int i = 0; i < 10; ++i) reduce();
        EXPECT_FALSE(reduce.planned());
      });
    }
    EXPECT_EQ(ended, 0);
    gate.set_value();
    while (ended == 0) std::this_thread::sleep_for(milliseconds(1));
    // The next communicator finds the other's plans in the cache.
    testing::with_ranks(kPlanningRanks, *runtime, [](Communicator& comm) {
      Reducing reduce(comm);
      reduce.until_planned();
    });
    EXPECT_EQ(ended, 1);
    runtime.reset();
  }
}

// At the end of a process, say.
TEST(BackgroundPlans, PlanningEndsWithWhatItIsFor) {
  auto runtime = std::make_unique<Runtime>();
  std::atomic<bool> began{false};
  prepare(*runtime, [&] {
    began = true;
    for (;;) {
      std::this_thread::sleep_for(milliseconds(1));
      check_stopped("test");
    }
  });
  testing::with_ranks(kPlanningRanks, *runtime, [&](Communicator& comm) {
    Reducing reduce(comm);
    reduce();
    while (!began) std::this_thread::sleep_for(milliseconds(1));
  });
  runtime.reset();  // hangs where nothing stops it
}

TEST(BackgroundPlans, ASettingWaitsForThemOrLeavesThemOut) {
  for (const std::string setting : {"wait", "brief"}) {
    Runtime runtime;
    std::atomic<int> made{0};
    prepare(runtime, [&] { ++made; });
    runtime.set("PLANNING", setting, "test");
    testing::with_ranks(kPlanningRanks, runtime, [&](Communicator& comm) {
      Reducing reduce(comm);
      for (int i = 0; i < 15; ++i) reduce();
      EXPECT_EQ(reduce.began().size(), 1U);
      EXPECT_EQ(reduce.planned(), setting == "wait");
      EXPECT_FALSE(comm.explain(reduce.call()).background.has_value());
    });
    EXPECT_EQ(made, setting == "wait" ? 1 : 0);
  }
}

TEST(BackgroundPlans, ExplainReportsPlanningAndTheNextChoice) {
  using State = tune::BackgroundPlans::State;
  Runtime runtime;
  std::promise<void> gate;
  prepare(runtime, [opened = gate.get_future().share()] { opened.wait(); });
  testing::with_ranks(kPlanningRanks, runtime, [&](Communicator& comm) {
    Reducing reduce(comm);
    reduce();
    Communicator::Explained now = comm.explain(reduce.call());
    ASSERT_TRUE(now.background.has_value());
    EXPECT_EQ(now.background->algorithms, std::vector<std::string>{kSlow});
    EXPECT_EQ(now.background->state, State::kUnderWay);
    EXPECT_FALSE(now.later.has_value());
    reduce();
    if (comm.rank() == 0) gate.set_value();
    for (;;) {
      now = comm.explain(reduce.call());
      if (now.background->state != State::kUnderWay) break;
      std::this_thread::sleep_for(milliseconds(1));
    }
    if (now.background->state == State::kMade) {
      ASSERT_TRUE(now.later.has_value());
      EXPECT_EQ(now.later->algorithm, kSlow);
      EXPECT_NE(now.algorithm, kSlow);
    }
    reduce.until_planned();
    now = comm.explain(reduce.call());
    EXPECT_EQ(now.background->state, State::kInUse);
    EXPECT_EQ(now.algorithm, kSlow);
    EXPECT_EQ(now.first, static_cast<std::uint64_t>(reduce.began().back().first));
  });
}

}  // namespace
}  // namespace ropewalk::comm
