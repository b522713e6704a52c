// Random programs on windows in GPU memory, with software that stands in for CUDA's driver: two
// threads of each rank, each with a communicator, its host calls and three streams.
#include "message/testing/window_programs.h"

#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <deque>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "comm/communicator.h"
#include "comm/testing/device_windows.h"
#include "comm/testing/ranks.h"
#include "core/testing/seeds.h"
#include "message/messenger.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::comm {
namespace {

namespace gpus = transport::window;
using message::Batch;
using message::OperationSpec;
using message::testing::Bytes;
using message::testing::Step;
using message::testing::WindowPrograms;
using testing::DeviceEnd;
using testing::DeviceKind;
using testing::TestStream;

constexpr int kStreams = 3;
constexpr int kHost = kStreams;  // the lane of the host's calls
constexpr int kLanes = kStreams + 1;
constexpr int kLooked = kLanes;  // the slot that says that a rank has looked at its window
constexpr int kThreads = 2;

// What one thread of a rank does with its communicator.
class Programmer {
 public:
  Programmer(Communicator& comm, const DeviceKind& kind)
      : comm_(comm),
        end_(comm, kind, WindowPrograms::bytes(comm.size(), kLanes), kLanes + 1),
        arena_(end_.gpu(), kArena, gpus::DeviceBuffer::From::kAllocator) {
    for (int k = 0; k < kStreams; ++k) streams_.emplace_back(end_.gpu());
  }

  void run(unsigned seed) {
    WindowPrograms programs(seed, comm_.size(), kLanes);
    std::mt19937 order(seed * 64 + static_cast<unsigned>(comm_.rank()));
    comm_.barrier();
    end_.fill(Bytes(WindowPrograms::bytes(comm_.size(), kLanes)));
    comm_.barrier();
    for (int round = 0; round < 2; ++round) {
      programs.next_round();
      run_round(programs, order);
      ASSERT_FALSE(::testing::Test::HasFatalFailure()) << "seed " << seed << " round " << round;
    }
  }
  void free() { end_.free(); }

 private:
  // What the steps of a round have in GPU memory.
  static constexpr std::size_t kArena = 8 * WindowPrograms::kRegion * kLanes;
  struct Got {
    std::size_t at;
    const Bytes* expected;
  };

  void run_round(WindowPrograms& programs, std::mt19937& order) {
    used_ = 0;
    gets_.clear();
    // As single calls, or as a batch.
    std::array<Batch, kLanes> batches;
    std::array<bool, kLanes> batched{};
    for (bool& each : batched) each = order() % 3 == 0;
    const auto give = [&](int lane, const OperationSpec& spec) {
      const auto which = static_cast<std::size_t>(lane);
      if (batched[which]) {
        comm_.add(batches[which], spec);
      } else if (lane == kHost) {
        comm_.run(spec);
      } else {
        comm_.enqueue({&spec, 1}, streams_[which].get());
      }
    };
    // The lanes in turn, a step of any.
    std::array<std::size_t, kLanes> next{};
    std::vector<int> open{0, 1, 2, kHost};
    while (!open.empty()) {
      const std::size_t which = order() % open.size();
      const int lane = open[which];
      const std::vector<Step>& steps = programs.steps(comm_.rank(), lane);
      std::size_t& at = next[static_cast<std::size_t>(lane)];
      if (at < steps.size()) {
        give(lane, operation(steps[at++]));
        continue;
      }
      open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
      Batch& batch = batches[static_cast<std::size_t>(lane)];
      if (batch.size() == 0) continue;
      if (lane == kHost) {
        comm_.run(batch);
      } else {
        comm_.enqueue(batch, streams_[static_cast<std::size_t>(lane)].get());
      }
    }
    // Each waits for the signals of another lane.
    const int shift = static_cast<int>(order() % kLanes);
    for (int lane = 0; lane < kLanes; ++lane) {
      const int slot = (lane + shift) % kLanes;
      for (int source = 0; source < comm_.size(); ++source) {
        const OperationSpec wait =
            end_.wait(source, slot, programs.signals(source, slot, comm_.rank()));
        if (lane == kHost) {
          comm_.run(wait);
        } else {
          comm_.enqueue({&wait, 1}, streams_[static_cast<std::size_t>(lane)].get());
        }
      }
    }
    for (const TestStream& stream : streams_) ASSERT_TRUE(stream.wait());
    compare(programs);
    for (int peer = 0; peer < comm_.size(); ++peer) comm_.run(end_.signal(peer, kLooked));
    for (int peer = 0; peer < comm_.size(); ++peer) comm_.run(end_.wait(peer, kLooked));
  }

  OperationSpec operation(const Step& step) {
    const std::size_t bytes = step.data.size();
    void* const memory = static_cast<std::byte*>(arena_.pointer()) + used_;
    switch (step.kind) {
      case Step::Kind::kPut:
        end_.gpu().fill(arena_.data() + used_, step.data.data(), bytes);
        used_ += bytes;
        return end_.put(step.target, step.offset, memory, bytes);
      case Step::Kind::kGet:
        gets_.push_back({used_, &step.data});
        used_ += bytes;
        return end_.get(step.target, step.offset, memory, bytes);
      case Step::Kind::kSignal: return end_.signal(step.target, step.lane, step.count);
      case Step::Kind::kFlush: break;
    }
    return end_.flush(step.target);
  }

  void compare(const WindowPrograms& programs) {
    ASSERT_LE(used_, kArena);
    Bytes arena(used_);
    end_.gpu().fetch(arena.data(), arena_.data(), used_);
    for (const Got& got : gets_) {
      const auto begin = arena.begin() + static_cast<std::ptrdiff_t>(got.at);
      ASSERT_TRUE(std::equal(got.expected->begin(), got.expected->end(), begin)) << "a get";
    }
    const Bytes window = end_.read(0, WindowPrograms::bytes(comm_.size(), kLanes));
    for (int source = 0; source < comm_.size(); ++source) {
      for (int lane = 0; lane < kLanes; ++lane) {
        const Bytes& expected = programs.region(source, lane, comm_.rank());
        const auto begin =
            window.begin() + static_cast<std::ptrdiff_t>(programs.offset(source, lane));
        ASSERT_TRUE(std::equal(expected.begin(), expected.end(), begin))
            << "from lane " << lane << " of rank " << source;
      }
    }
  }

  Communicator& comm_;
  DeviceEnd end_;
  std::deque<TestStream> streams_;
  gpus::DeviceBuffer arena_;
  std::size_t used_ = 0;
  std::vector<Got> gets_;
};

class WindowProgramsOfStreams : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override { testing::use(runtime_, GetParam(), RW_STAND_IN_CUDA); }
  Runtime runtime_;
};

TEST_P(WindowProgramsOfStreams, DoWhatAModelDoes) {
  const ropewalk::testing::Seeds seeds =
      ropewalk::testing::chosen_seeds().value_or(ropewalk::testing::Seeds{0, 15});
  for (const int size : {2, 3}) {
    std::vector<std::thread> threads;
    for (unsigned thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        testing::with_ranks(size, runtime_, [&](Communicator& comm) {
          Programmer programmer(comm, GetParam());
          for (unsigned seed = seeds.first; seed < seeds.end; ++seed) {
            programmer.run(seed * kThreads + thread);
            ASSERT_FALSE(::testing::Test::HasFatalFailure());
          }
          programmer.free();
        });
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, WindowProgramsOfStreams,
                         ::testing::ValuesIn(testing::device_kinds()),
                         [](const ::testing::TestParamInfo<DeviceKind>& each) {
                           return each.param.name;
                         });

}  // namespace
}  // namespace ropewalk::comm
