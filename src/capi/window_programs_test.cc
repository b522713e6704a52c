// Random programs on windows in the host's memory, by all that uses one at once: calls, and the
// functions of ropewalk/device.cuh, as several kernels of one and of several threads call them.
#include "message/testing/window_programs.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "capi/testing/host_team.h"
#include "core/testing/seeds.h"
#include "ropewalk/device.cuh"
#include "ropewalk/messages.h"
#include "ropewalk/ropewalk.h"

namespace ropewalk::capi {
namespace {

using device::Status;
using device::Thread;
using message::testing::Bytes;
using message::testing::Step;
using message::testing::WindowPrograms;
using testing::check;
using testing::Rank;
using testing::Team;

constexpr int kCalls = 0;  // the lane of calls; then kernels of one thread, and of a team
constexpr int kTeam = 3;
constexpr int kWindowLanes = 4;
constexpr int kLooked = kWindowLanes;  // the slot that says that a rank has looked at its window
constexpr std::size_t kRoom = 2000;    // of a queue
constexpr std::size_t kMessages = 3;   // at most, which fit

// A call, or the end of a request of one.
void by_call(const Step& step, rwMessageWindow_t window, Bytes& got, bool with_request) {
  rwRequest_t request = nullptr;
  rwRequest_t* const out = with_request ? &request : nullptr;
  switch (step.kind) {
    case Step::Kind::kPut:
      check(rwPut(step.data.data(), step.data.size(), step.target, step.offset, window, nullptr,
                  out));
      break;
    case Step::Kind::kGet:
      check(rwGet(got.data(), got.size(), step.target, step.offset, window, nullptr, out));
      break;
    case Step::Kind::kSignal:
      check(rwSignal(step.target, step.lane, step.count, window, nullptr, out));
      break;
    case Step::Kind::kFlush: check(rwFlush(step.target, window, nullptr, out)); break;
  }
  if (request == nullptr) return;
  check(rwRequestWait(request, -1));
  rwRequestFree(request);
}

template <typename Scope>
Status by_kernel(const Scope& scope, const Step& step, const rwDeviceWindow& window, Bytes& got) {
  switch (step.kind) {
    case Step::Kind::kPut:
      return device::put(scope, window, step.target, step.offset, step.data.data(),
                         step.data.size());
    case Step::Kind::kGet:
      return device::get(scope, window, step.target, step.offset, got.data(), got.size());
    case Step::Kind::kSignal:
      return device::signal(scope, window, step.target, step.lane, step.count);
    case Step::Kind::kFlush: break;
  }
  return device::flush(scope, window);
}

// A rank's windows: one for puts, one of queues.
class Programmer {
 public:
  explicit Programmer(const Rank& rank) : rank_(rank) {
    check(rwWindowCreate(rank.comm, WindowPrograms::bytes(rank.size, kWindowLanes),
                         kWindowLanes + 1, &window_));
    check(rwWindowDevice(window_, &device_));
    check(rwWindowCreateQueues(rank.comm, -1, kRoom, 1, &queues_));
    check(rwWindowDevice(queues_, &device_queues_));
    void* memory = nullptr;
    check(rwWindowMemory(window_, rank.rank, &memory, nullptr));
    memory_ = static_cast<std::byte*>(memory);
  }

  void run(unsigned seed) {
    WindowPrograms programs(seed, rank_.size, kWindowLanes);
    check(rwBarrier(rank_.comm));
    std::memset(memory_, 0, WindowPrograms::bytes(rank_.size, kWindowLanes));
    check(rwBarrier(rank_.comm));
    for (int round = 0; round < 2; ++round) {
      programs.next_round();
      run_round(programs, seed * 2 + static_cast<unsigned>(round));
      ASSERT_FALSE(::testing::Test::HasFailure()) << "seed " << seed << " round " << round;
    }
  }
  void free() {
    check(rwWindowFree(queues_));
    check(rwWindowFree(window_));
  }

 private:
  void run_round(const WindowPrograms& programs, unsigned seed) {
    std::vector<std::thread> kernels;
    for (int lane = kCalls + 1; lane < kWindowLanes; ++lane) {
      kernels.emplace_back([this, &programs, seed, lane] {
        // Each waits for the signals of another kernel.
        const int slot = 1 + (lane - 1 + static_cast<int>(seed % 3)) % 3;
        if (lane == kTeam) {
          std::vector<Bytes> got = destinations(programs, lane);
          testing::with_team(
              [&](const Team& team) { run_kernel(team, programs, lane, slot, got); });
          compare(programs, lane, got);
        } else {
          std::vector<Bytes> got = destinations(programs, lane);
          run_kernel(Thread{}, programs, lane, slot, got);
          compare(programs, lane, got);
        }
      });
    }
    kernels.emplace_back([this, seed] { run_queues(seed); });
    run_calls(programs, seed);
    for (std::thread& kernel : kernels) kernel.join();
    for (int source = 0; source < rank_.size; ++source) {
      for (int lane = 0; lane < kWindowLanes; ++lane) {
        const Bytes& expected = programs.region(source, lane, rank_.rank);
        EXPECT_EQ(
            std::memcmp(memory_ + programs.offset(source, lane), expected.data(), expected.size()),
            0)
            << "from lane " << lane << " of rank " << source;
      }
    }
    for (int peer = 0; peer < rank_.size; ++peer) {
      check(rwSignal(peer, kLooked, 1, window_, nullptr, nullptr));
    }
    for (int peer = 0; peer < rank_.size; ++peer) {
      check(rwWaitSignal(peer, kLooked, 1, window_, nullptr, nullptr));
    }
  }

  void run_calls(const WindowPrograms& programs, unsigned seed) {
    std::mt19937 random(seed);
    std::vector<Bytes> got = destinations(programs, kCalls);
    const std::vector<Step>& steps = programs.steps(rank_.rank, kCalls);
    for (std::size_t k = 0; k < steps.size(); ++k) {
      by_call(steps[k], window_, got[k], random() % 2 == 0);
    }
    for (int source = 0; source < rank_.size; ++source) {
      check(rwWaitSignal(source, kCalls, programs.signals(source, kCalls, rank_.rank), window_,
                         nullptr, nullptr));
    }
    compare(programs, kCalls, got);
  }

  template <typename Scope>
  void run_kernel(const Scope& scope, const WindowPrograms& programs, int lane, int slot,
                  std::vector<Bytes>& got) {
    const std::vector<Step>& steps = programs.steps(rank_.rank, lane);
    for (std::size_t k = 0; k < steps.size(); ++k) {
      EXPECT_EQ(by_kernel(scope, steps[k], device_, got[k]), Status::kDone);
    }
    for (int source = 0; source < rank_.size; ++source) {
      EXPECT_EQ(device::wait_signal(scope, device_, source, slot,
                                    programs.signals(source, slot, rank_.rank)),
                Status::kDone);
    }
    // What it put is read before the round ends.
    EXPECT_EQ(device::flush(scope, device_), Status::kDone);
  }

  // Some messages to each rank, and as many as each has for this one.
  void run_queues(unsigned seed) {
    const auto messages = [&](int source, int target) {
      std::mt19937 random((seed * 16 + static_cast<unsigned>(source)) * 16 +
                          static_cast<unsigned>(target));
      std::vector<Bytes> made(random() % (kMessages + 1));
      for (Bytes& each : made) {
        each.resize(random() % (kRoom / kMessages - 8));
        ropewalk::testing::fill_pattern(each.data(), each.size(), random());
      }
      return made;
    };
    for (int peer = 0; peer < rank_.size; ++peer) {
      for (const Bytes& each : messages(rank_.rank, peer)) {
        EXPECT_EQ(device::send(Thread{}, device_queues_, peer, each.data(), each.size()),
                  Status::kDone);
      }
    }
    for (int peer = 0; peer < rank_.size; ++peer) {
      for (const Bytes& each : messages(peer, rank_.rank)) {
        Bytes got(each.size());
        EXPECT_EQ(device::receive(Thread{}, device_queues_, peer, got.data(), got.size()),
                  Status::kDone);
        EXPECT_TRUE(got == each) << "a message of " << each.size() << " bytes of rank " << peer;
      }
    }
  }

  // Where a lane's gets write.
  [[nodiscard]] std::vector<Bytes> destinations(const WindowPrograms& programs, int lane) const {
    std::vector<Bytes> made;
    for (const Step& step : programs.steps(rank_.rank, lane)) {
      made.emplace_back(step.kind == Step::Kind::kGet ? step.data.size() : 0);
    }
    return made;
  }
  void compare(const WindowPrograms& programs, int lane, const std::vector<Bytes>& got) const {
    const std::vector<Step>& steps = programs.steps(rank_.rank, lane);
    for (std::size_t k = 0; k < steps.size(); ++k) {
      if (steps[k].kind == Step::Kind::kGet) {
        EXPECT_TRUE(got[k] == steps[k].data) << "a get of lane " << lane;
      }
    }
  }

  const Rank& rank_;
  rwMessageWindow_t window_ = nullptr;
  rwMessageWindow_t queues_ = nullptr;
  rwDeviceWindow device_{};
  rwDeviceWindow device_queues_{};
  std::byte* memory_ = nullptr;
};

class WindowProgramsOfKernels : public ::testing::TestWithParam<std::string> {
 protected:
  void SetUp() override { testing::set_links(GetParam()); }
  void TearDown() override { testing::reset_links(); }
};

// Two threads of each rank have a communicator each.
TEST_P(WindowProgramsOfKernels, DoWhatAModelDoes) {
  constexpr unsigned kThreads = 2;
  const ropewalk::testing::Seeds seeds =
      ropewalk::testing::chosen_seeds().value_or(ropewalk::testing::Seeds{0, 15});
  for (const int size : {2, 3}) {
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        testing::with_ranks(size, [&](Rank& rank) {
          Programmer programmer(rank);
          for (unsigned seed = seeds.first; seed < seeds.end; ++seed) {
            programmer.run(seed * kThreads + thread);
            ASSERT_FALSE(::testing::Test::HasFailure());
          }
          programmer.free();
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Between, WindowProgramsOfKernels,
                         ::testing::Values("memory", "tcp", "shm"),
                         [](const ::testing::TestParamInfo<std::string>& each) {
                           return each.param;
                         });

}  // namespace
}  // namespace ropewalk::capi
