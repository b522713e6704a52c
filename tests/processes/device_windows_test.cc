// Windows in GPU memory between processes, over CUDA IPC, with software that stands in for CUDA's
// driver: what streams put, and what ends their waits when a rank is killed.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "message/messenger.h"
#include "processes/expect_done.h"
#include "processes/rank_processes.h"
#include "processes/window_operation.h"
#include "transport/window/device/gpu.h"
#include "transport/window/device/testing/stand_in.h"

namespace ropewalk::testing {
namespace {

namespace gpus = transport::window;
using message::OperationKind;
using message::OperationSpec;
using message::Window;
using message::WindowSpec;
using std::chrono::milliseconds;

struct Case {
  std::string name;
  bool one_gpu = false;
  bool peer_access = true;
};

RankOptions options_of(const Case& each) {
  RankOptions options;
  options.settings = {{"TIMEOUT", "20"}, {"CUDA_LIBRARY", RW_STAND_IN_CUDA}};
  options.settings.emplace_back("SOCKET_IFNAME", "lo");
  if (!each.peer_access) {
    options.before = [](int) { setenv("RW_STAND_IN_CUDA", "no_peer", 1); };
  }
  return options;
}

gpus::Gpu& gpu_of(comm::Communicator& comm, const Case& each) {
  return comm.runtime().gpus().at(each.one_gpu ? 0 : comm.rank() % 2);
}

class DeviceProcesses : public ::testing::TestWithParam<Case> {};

TEST_P(DeviceProcesses, StreamsAndTheHostPutSignalAndGet) {
  const Case& each = GetParam();
  RankProcesses ranks(3, options_of(each), [&](comm::Communicator& comm) -> std::string {
    constexpr std::size_t kBytes = 100'003;
    gpus::Gpu& gpu = gpu_of(comm, each);
    const bool mapped_all = each.peer_access || each.one_gpu;
    WindowSpec spec;
    spec.bytes = kBytes;
    spec.slots = 2;
    Window& window = comm.create_window(spec, gpu.ordinal());
    const int next = (comm.rank() + 1) % comm.size();
    const int previous = (comm.rank() + 2) % comm.size();
    if (window.part(next).mapped != (mapped_all || next % 2 == comm.rank() % 2)) return "mapped";
    const gpus::DeviceBuffer source(gpu, kBytes, gpus::DeviceBuffer::From::kAllocator);
    const gpus::CurrentContext current(gpu.cuda(), gpu.context());
    gpus::CuStream stream = nullptr;
    gpu.cuda().check(gpu.cuda().stream_create(&stream, gpus::kCuStreamNonBlocking, 0), "stream");
    std::vector<std::byte> seen(kBytes);
    for (int turn = 0; turn < 10; ++turn) {
      const std::vector<std::byte> values(kBytes, static_cast<std::byte>(turn * 3 + comm.rank()));
      gpu.fill(source.data(), values.data(), kBytes);
      OperationSpec put = operation(OperationKind::kPut, window, next);
      put.source = static_cast<const std::byte*>(source.pointer());
      put.bytes = kBytes;
      const OperationSpec signal = operation(OperationKind::kSignal, window, next);
      const OperationSpec wait = operation(OperationKind::kWaitSignal, window, previous);
      if (turn % 2 == 0) {
        comm.enqueue(std::vector{put, signal, wait}, stream);
        while (gpu.cuda().stream_query(stream) == gpus::kCuNotReady) {
          std::this_thread::sleep_for(std::chrono::microseconds(100));
        }
      } else {
        comm.run(put);
        comm.run(signal);
        comm.run(wait);
      }
      gpu.fetch(seen.data(), reinterpret_cast<gpus::CuPointer>(window.own().data), kBytes);
      const auto expected = static_cast<std::byte>(turn * 3 + previous);
      if (std::ranges::any_of(seen, [&](std::byte byte) { return byte != expected; })) {
        return fmt::format("turn {}", turn);
      }
      OperationSpec get = operation(OperationKind::kGet, window, next);
      get.destination = seen.data();
      get.bytes = kBytes;
      comm.run(get);
      if (seen != values) return fmt::format("turn {}: get", turn);
      comm.barrier();
    }
    comm.free_window(window);
    gpu.cuda().check(gpu.cuda().stream_destroy(stream), "stream");
    return "done";
  });
  expect_done(ranks, 3);
}

// What `enqueue` leaves in a stream of each rank ends when rank 1 is killed: the stream goes on,
// and the next call says why.
void expect_end(const Case& each,
                const std::function<void(comm::Communicator&, Window&, gpus::CuStream)>& enqueue) {
  RankProcesses ranks(2, options_of(each), [&](comm::Communicator& comm) -> std::string {
    gpus::Gpu& gpu = gpu_of(comm, each);
    WindowSpec spec;
    spec.bytes = 100;
    Window& window = comm.create_window(spec, gpu.ordinal());
    const gpus::CurrentContext current(gpu.cuda(), gpu.context());
    gpus::CuStream stream = nullptr;
    gpu.cuda().check(gpu.cuda().stream_create(&stream, gpus::kCuStreamNonBlocking, 0), "stream");
    enqueue(comm, window, stream);
    comm.barrier();
    if (comm.rank() == 1) std::this_thread::sleep_for(std::chrono::minutes(1));
    while (gpu.cuda().stream_query(stream) == gpus::kCuNotReady) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
    comm.run(operation(OperationKind::kSignal, window, 0));
    return "no error";
  });
  std::this_thread::sleep_for(milliseconds(500));
  const auto killed = std::chrono::steady_clock::now();
  ranks.signal(1, SIGKILL);
  const std::optional<Report> report = ranks.wait(0, milliseconds(20'000));
  ASSERT_TRUE(report.has_value());
  EXPECT_TRUE(report->error) << report->text;
  EXPECT_EQ(report->code, Errc::kPeerLost) << report->text;
  EXPECT_NE(report->text.find("rank 1"), std::string::npos) << report->text;
  EXPECT_LT(report->when - killed, std::chrono::seconds(3));
}

TEST_P(DeviceProcesses, AKilledPeerEndsAStreamsWait) {
  expect_end(GetParam(), [](comm::Communicator& comm, Window& window, gpus::CuStream stream) {
    const OperationSpec wait = operation(OperationKind::kWaitSignal, window, 1 - comm.rank());
    comm.enqueue({&wait, 1}, stream);
  });
}

// Whose trigger would come from this rank itself.
TEST_P(DeviceProcesses, AKilledPeerEndsTheWaitForATrigger) {
  expect_end(GetParam(), [](comm::Communicator& comm, Window& window, gpus::CuStream stream) {
    message::Batch batch;
    comm.add(batch, operation(OperationKind::kSignal, window, 1 - comm.rank()));
    (void)comm.arm(batch, stream);
  });
}

// A stream and a window with something in it, used by both ranks of `comm`.
class Used {
 public:
  Used(comm::Communicator& comm, const Case& each, std::size_t bytes)
      : comm_(comm), gpu_(gpu_of(comm, each)) {
    WindowSpec spec;
    spec.bytes = bytes;
    window_ = &comm.create_window(spec, gpu_.ordinal());
    const gpus::CurrentContext current(gpu_.cuda(), gpu_.context());
    gpu_.cuda().check(gpu_.cuda().stream_create(&stream_, gpus::kCuStreamNonBlocking, 0), "stream");
    const std::vector<std::byte> data(bytes);
    OperationSpec put = operation(OperationKind::kPut, *window_, 1 - comm.rank());
    put.source = data.data();
    put.bytes = bytes;
    comm.run(put);
    enqueue(OperationKind::kSignal);
    enqueue(OperationKind::kWaitSignal);
    wait();
  }
  ~Used() { gpu_.cuda().warn(gpu_.cuda().stream_destroy(stream_), "stream"); }
  Used(const Used&) = delete;
  Used& operator=(const Used&) = delete;
  void enqueue(OperationKind kind) {
    const OperationSpec spec = operation(kind, *window_, 1 - comm_.rank());
    comm_.enqueue({&spec, 1}, stream_);
  }
  void wait() const {
    while (gpu_.cuda().stream_query(stream_) == gpus::kCuNotReady) {
      std::this_thread::sleep_for(std::chrono::microseconds(100));
    }
  }
  void free() { comm_.free_window(*window_); }

 private:
  comm::Communicator& comm_;
  gpus::Gpu& gpu_;
  Window* window_ = nullptr;
  gpus::CuStream stream_ = nullptr;
};

std::ptrdiff_t descriptors() {
  using std::filesystem::directory_iterator;
  return std::distance(directory_iterator("/proc/self/fd"), directory_iterator());
}

std::string compare(const std::string& before, const std::string& after) {
  return before == after ? "done" : before + "; then " + after;
}

TEST_P(DeviceProcesses, NothingIsLeftOfWindowsThatWereFreed) {
  RankProcesses ranks(2, options_of(GetParam()), [](comm::Communicator& comm) -> std::string {
    constexpr std::size_t kWindows = 100;
    const gpus::testing::StandIn driver;
    std::string before;
    std::ptrdiff_t descriptors_before = 0;
    for (std::size_t k = 0; k < 2 + kWindows; ++k) {
      if (k == 2) {
        before = driver.held();
        descriptors_before = descriptors();
      }
      Used used(comm, GetParam(), 10'000 + k % 10 * 5'000);
      used.free();
    }
    // Connections of the beginning may end meanwhile.
    const std::ptrdiff_t more = descriptors() - descriptors_before;
    if (more >= std::ptrdiff_t{kWindows} / 2) return fmt::format("{} more descriptors", more);
    return compare(before, driver.held());
  });
  expect_done(ranks, 2);
}

// Of the communicator that the others end then.
TEST_P(DeviceProcesses, NothingIsLeftAfterAKill) {
  RankProcesses ranks(2, options_of(GetParam()), [](comm::Communicator& comm) -> std::string {
    const gpus::testing::StandIn driver;
    std::string before;
    for (const bool ends_well : {true, false}) {
      before = driver.held();
      const std::unique_ptr<comm::Communicator> another = comm.split(0, comm.rank());
      Used used(*another, GetParam(), 100'000);
      if (ends_well) {
        used.free();
        another->finalize();
        continue;
      }
      used.enqueue(OperationKind::kWaitSignal);
      try {
        another->barrier();
        if (comm.rank() == 1) raise(SIGKILL);
        used.wait();
        used.free();
        return "no error";
      } catch (const Error& error) {
        if (error.code() != Errc::kPeerLost) return error.what();
      }
    }
    // An error, since this communicator has lost a rank, too.
    throw Error(Errc::kInternal, "{}", compare(before, driver.held()));
  });
  const std::optional<Report> report = ranks.wait(0, milliseconds(20'000));
  ASSERT_TRUE(report.has_value());
  EXPECT_EQ(report->text, "done");
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceProcesses,
                         ::testing::Values(Case{"two_gpus", false, true},
                                           Case{"one_gpu", true, true},
                                           Case{"no_peer_access", false, false}),
                         [](const ::testing::TestParamInfo<Case>& each) {
                           return each.param.name;
                         });

}  // namespace
}  // namespace ropewalk::testing
