#include "link/progress_thread.h"

#include <gtest/gtest.h>
#include <sched.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/test_support.h"
#include "transport/registry.h"

namespace ropewalk::link {
namespace {

using std::chrono::milliseconds;

std::set<int> threads_here() {
  std::set<int> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    ids.insert(std::stoi(entry.path().filename().string()));
  }
  return ids;
}

// Of processors, so far.
milliseconds time_of(int thread) {
  std::ifstream file("/proc/self/task/" + std::to_string(thread) + "/schedstat");
  long long on_processors = 0;
  file >> on_processors;
  return std::chrono::duration_cast<milliseconds>(std::chrono::nanoseconds(on_processors));
}

std::vector<int> allowed_processors(int thread) {
  cpu_set_t set;
  CPU_ZERO(&set);
  std::vector<int> found;
  if (sched_getaffinity(thread, sizeof set, &set) != 0) return found;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) found.push_back(cpu);
  }
  return found;
}

// A rank alone, with links to nobody; `body` is told the thread.
template <typename Body>
void with_thread(const ProgressThread::Policy& policy, Body&& body) {
  bootstrap::run_ranks(1, [&](bootstrap::Bootstrap& bootstrap) {
    auto links = std::make_unique<NetworkLinks>(
        bootstrap, transport::make_transport("tcp", bootstrap::quiet_config()),
        NetworkLinks::Options());
    const std::set<int> before = threads_here();
    ProgressThread thread(std::move(links), policy, [](const Error&) {});
    std::vector<int> made;
    for (const int id : threads_here()) {
      if (!before.contains(id)) made.push_back(id);
    }
    ASSERT_EQ(made.size(), 1U);
    body(thread, made.front());
  });
}

TEST(ProgressThread, RunsWhereItIsTold) {
  const std::vector<int> all = allowed_processors(0);
  ASSERT_FALSE(all.empty());
  ProgressThread::Policy policy;
  policy.cpus = {all.back(), CPU_SETSIZE - 1};
  with_thread(policy, [&](ProgressThread&, int thread) {
    for (int i = 0; i < 2000 && allowed_processors(thread).size() > 1; ++i) {
      std::this_thread::sleep_for(milliseconds(5));
    }
    EXPECT_EQ(allowed_processors(thread), std::vector<int>{all.back()});
  });
}

TEST(ProgressThread, RunsAnywhereWhereNoneOfItsProcessorsMayBeUsed) {
  const std::vector<int> all = allowed_processors(0);
  ProgressThread::Policy policy;
  policy.cpus = {CPU_SETSIZE - 1};
  with_thread(policy, [&](ProgressThread&, int thread) {
    std::this_thread::sleep_for(milliseconds(20));
    EXPECT_EQ(allowed_processors(thread), all);
  });
}

// Once nothing has moved for a while; what it takes is counted by the system, whatever else runs.
TEST(ProgressThread, TakesLittleOfAProcessorWhileNothingMoves) {
  ProgressThread::Policy policy;
  policy.busy = milliseconds(1);
  policy.naps_for = milliseconds(20);
  with_thread(policy, [](ProgressThread&, int thread) {
    std::this_thread::sleep_for(milliseconds(60));
    const milliseconds before = time_of(thread);
    std::this_thread::sleep_for(milliseconds(1000));
    EXPECT_LT(time_of(thread) - before, milliseconds(150));
  });
}

}  // namespace
}  // namespace ropewalk::link
