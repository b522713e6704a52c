// What the shared-memory path promises of its words, between two threads.
#include "transport/window/shm/shm.h"

#include <gtest/gtest.h>
#include <pthread.h>
#include <sched.h>

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <thread>
#include <vector>

namespace ropewalk::transport::window {
namespace {

std::vector<int> usable_cpus() {
  cpu_set_t set;
  std::vector<int> cpus;
  if (sched_getaffinity(0, sizeof set, &set) != 0) return cpus;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  return cpus;
}

void stay_on(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(cpu, &set);
  pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Both ends put a word at once, and then read the one that the other puts. Were the puts not
// ordered before the reads, a processor would delay its own until after it has read (x86-64 too),
// and in some rounds both ends would read what was before: without the fence in a hundredth to a
// quarter of the rounds, on two cores of an EPYC.
TEST(ShmPath, OfTwoEndsThatPutThenReadOneSeesTheOther) {
  constexpr std::size_t kRounds = 20'000;
  constexpr std::size_t kWord = 64;
  const std::vector<int> cpus = usable_cpus();
  if (cpus.size() < 2) GTEST_SKIP() << "needs two CPUs";
  const std::unique_ptr<Driver> driver = make_shm_driver(Config());
  const WindowSizes sizes{4096, 4096};
  const std::unique_ptr<Acceptor> acceptor = driver->open_acceptor(0, sizes);
  std::array<std::unique_ptr<Path>, 2> ends = {driver->connect(0, acceptor->handle(), sizes),
                                               nullptr};
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!ends[1]) {
    ASSERT_LT(std::chrono::steady_clock::now(), deadline);
    ends[1] = acceptor->accept();
  }
  while (!ends[0]->ready()) ASSERT_LT(std::chrono::steady_clock::now(), deadline);

  // On a busy machine the threads seldom run together: as many rounds as there is time for.
  const auto enough = std::chrono::steady_clock::now() + std::chrono::seconds(1);
  std::array<std::vector<std::uint64_t>, 2> seen;
  std::array<std::atomic<std::size_t>, 2> met = {};
  std::array<std::thread, 2> threads;
  std::atomic<std::size_t> last = kRounds;
  for (std::size_t self = 0; self < 2; ++self) {
    threads[self] = std::thread([&, self] {
      stay_on(cpus[self]);
      Path& path = *ends[self];
      std::minstd_rand random(static_cast<unsigned>(self + 1));
      const auto meet = [&](std::size_t number) {
        met[self] = number;
        for (int turns = 0; met[1 - self] < number; ++turns) {
          if (turns % 100'000 == 99'999) std::this_thread::yield();
        }
      };
      for (std::size_t i = 1; i <= last; ++i) {
        meet(2 * i - 1);
        (void)path.read_word(kWord);  // into this core's cache, where what is put has to go first
        meet(2 * i);
        for (volatile auto wait = random() % 200; wait > 0;) wait = wait - 1;
        path.put_word(kWord, i);
        path.order_puts_before_reads();
        seen[self].push_back(path.read_word(kWord));
        // One end decides, before the other can be so far.
        if (self == 0 && i % 256 == 0 && last == kRounds &&
            std::chrono::steady_clock::now() > enough) {
          last = std::min(kRounds, i + 2);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(seen[0].size(), seen[1].size());
  for (std::size_t i = 0; i < seen[0].size(); ++i) {
    ASSERT_TRUE(seen[0][i] > i || seen[1][i] > i) << "in round " << i + 1;
  }
}

}  // namespace
}  // namespace ropewalk::transport::window
