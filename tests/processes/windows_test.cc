// Windows between processes: ranks that die while others put, wait and get, and memory that one
// process registered and another cannot map.
#include <dirent.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "message/messenger.h"
#include "processes/expect_done.h"
#include "processes/rank_processes.h"
#include "processes/shared_memory_names.h"
#include "processes/window_operation.h"
#include "ropewalk/device.cuh"

namespace ropewalk::testing {
namespace {

using message::OperationKind;
using message::OperationSpec;
using message::Window;
using message::WindowSpec;
using std::chrono::milliseconds;

struct Case {
  std::string name;
  bool registers = false;
  bool network = false;
  std::string backing;
};

RankOptions options_of(const Case& each) {
  RankOptions options;
  options.settings = {{"TIMEOUT", "20"}};
  if (each.network) {
    options.settings.emplace_back("LINKS", "network");
    options.settings.emplace_back("NET", "tcp");
    options.settings.emplace_back("SOCKET_IFNAME", "lo");
  }
  if (!each.backing.empty()) options.settings.emplace_back("SHM_BACKING", each.backing);
  return options;
}

class WindowProcesses : public ::testing::TestWithParam<Case> {};

// What rank 0 put where it cannot store is there, and what rank 1 has is got.
TEST_P(WindowProcesses, PutSignalGetAndFlush) {
  const Case& each = GetParam();
  RankProcesses ranks(2, options_of(each), [&](comm::Communicator& comm) -> std::string {
    constexpr std::size_t kBytes = 1'000'003;
    std::vector<std::byte> memory(each.registers ? kBytes : 0);
    WindowSpec spec;
    spec.registers = each.registers;
    spec.memory = memory.data();
    spec.bytes = kBytes;
    Window& window = comm.create_window(spec);
    const int peer = 1 - comm.rank();
    std::vector<std::byte> source(kBytes);
    for (int turn = 0; turn < 20; ++turn) {
      const auto value = static_cast<std::byte>(turn * 2 + comm.rank());
      std::fill(source.begin(), source.end(), value);
      OperationSpec put = operation(OperationKind::kPut, window, peer);
      put.source = source.data();
      put.bytes = kBytes - static_cast<std::size_t>(turn);
      put.offset = static_cast<std::size_t>(turn);
      comm.run(put);
      comm.run(operation(OperationKind::kSignal, window, peer));
      comm.run(operation(OperationKind::kWaitSignal, window, peer));
      const auto expected = static_cast<std::byte>(turn * 2 + peer);
      for (std::size_t i = static_cast<std::size_t>(turn); i < kBytes; ++i) {
        if (window.own().data[i] != expected) return fmt::format("turn {}: byte {}", turn, i);
      }
      OperationSpec get = operation(OperationKind::kGet, window, peer);
      std::vector<std::byte> seen(kBytes - 20);
      get.destination = seen.data();
      get.offset = 20;
      get.bytes = seen.size();
      comm.run(get);
      if (seen.front() != value || seen.back() != value) return fmt::format("turn {}: get", turn);
      comm.run(operation(OperationKind::kFlush, window, peer));
      comm.barrier();
    }
    comm.free_window(window);
    return "done";
  });
  expect_done(ranks, 2);
}

// How many processes have come somewhere. Made before they are.
class Arrivals {
 public:
  Arrivals()
      : count_(new (mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE,
                         MAP_SHARED | MAP_ANONYMOUS, -1, 0)) std::atomic<int>(0)) {}
  ~Arrivals() { munmap(count_, sizeof *count_); }
  Arrivals(const Arrivals&) = delete;
  Arrivals& operator=(const Arrivals&) = delete;
  void add() const { ++*count_; }
  void await(int count) const {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (*count_ < count && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    ASSERT_EQ(*count_, count);
  }

 private:
  std::atomic<int>* count_;
};

// Kills rank 2 once all are ready: `others` are told so, soon.
void expect_all_told(RankProcesses& ranks, const Arrivals& ready, const std::vector<int>& others) {
  ready.await(static_cast<int>(others.size()) + 1);
  std::this_thread::sleep_for(milliseconds(300));
  const auto killed = std::chrono::steady_clock::now();
  ranks.signal(2, SIGKILL);
  std::vector<double> delays_ms;
  for (const int r : others) {
    const std::optional<Report> report = ranks.wait(r, milliseconds(30'000));
    ASSERT_TRUE(report.has_value()) << "rank " << r << " hangs";
    EXPECT_TRUE(report->error) << report->text;
    EXPECT_EQ(report->code, Errc::kPeerLost) << report->text;
    EXPECT_NE(report->text.find("rank 2"), std::string::npos) << report->text;
    const std::chrono::duration<double, std::milli> delay = report->when - killed;
    // PEER_LOSS_TIME is 1 s; the machine may be busy.
    EXPECT_LT(delay, std::chrono::seconds(3)) << "rank " << r;
    std::printf("rank %d: %.0f ms after the kill: %s\n", r, delay.count(), report->text.c_str());
    delays_ms.push_back(delay.count());
  }
  std::ranges::sort(delays_ms);
  std::printf("median: %.0f ms\n", delays_ms[delays_ms.size() / 2]);
}

// Rank 2 dies; the others wait for its signal, put to it, get from it, or have requests.
TEST_P(WindowProcesses, AKilledPeerEndsEveryWait) {
  const Case& each = GetParam();
  const std::set<std::string> before = shared_memory_names();
  const Arrivals ready;
  RankProcesses ranks(5, options_of(each), [&](comm::Communicator& comm) -> std::string {
    constexpr std::size_t kBytes = 300'000;
    std::vector<std::byte> memory(kBytes);
    WindowSpec spec;
    spec.registers = each.registers;
    spec.memory = memory.data();
    spec.bytes = kBytes;
    Window& window = comm.create_window(spec);
    comm.barrier();
    ready.add();
    std::vector<std::byte> buffer(kBytes);
    switch (comm.rank()) {
      case 0: comm.run(operation(OperationKind::kWaitSignal, window, 2)); break;
      case 1:
        for (;;) {
          OperationSpec put = operation(OperationKind::kPut, window, 2);
          put.source = buffer.data();
          put.bytes = kBytes;
          comm.run(put);
        }
      case 2: std::this_thread::sleep_for(std::chrono::minutes(1)); break;
      case 3:
        for (;;) {
          OperationSpec get = operation(OperationKind::kGet, window, 2);
          get.destination = buffer.data();
          get.bytes = kBytes;
          comm.run(get);
        }
      default: {
        const auto request = std::make_shared<comm::Request>();
        comm.start(operation(OperationKind::kWaitSignal, window, 2), request);
        if (!request->wait(std::chrono::seconds(50))) return "no end";
        if (request->error().has_value()) throw Error(*request->error());
      }
    }
    return "no error";
  });
  expect_all_told(ranks, ready, {0, 1, 3, 4});
  EXPECT_EQ(new_shared_memory_names(before), std::set<std::string>{});
}

// The same where the others are in the functions that kernels call, here on threads of the host:
// they wait for a signal, by a batch, too, for a message, and for room in a queue.
TEST_P(WindowProcesses, AKilledPeerEndsTheWaitsOfKernels) {
  using device::Status;
  using device::Thread;
  const Case& each = GetParam();
  const Arrivals ready;
  RankProcesses ranks(5, options_of(each), [&](comm::Communicator& comm) -> std::string {
    std::vector<std::byte> memory(64);
    WindowSpec spec;
    spec.registers = each.registers;
    spec.memory = memory.data();
    spec.bytes = memory.size();
    Window& window = comm.create_window(spec);
    WindowSpec of_queues;
    of_queues.queue_bytes = 512;
    Window& queues = comm.create_window(of_queues);
    message::Batch batch;
    comm.add(batch, operation(OperationKind::kSignal, window, comm.rank()));
    comm.add(batch, operation(OperationKind::kWaitSignal, window, 2));
    const rwDeviceWindow signals = comm.device_window(window);
    const rwDeviceWindow lines = comm.device_window(queues);
    const rwDeviceBatch list = comm.device_batch(batch);
    comm.barrier();
    ready.add();
    std::uint64_t word = 0;
    Status status = Status::kDone;
    switch (comm.rank()) {
      case 0: status = device::wait_signal(Thread{}, signals, 2); break;
      case 1: {
        const Thread thread;
        status = device::Queue<Thread>(thread, lines, 2).receive(&word, sizeof word);
        break;
      }
      case 2: std::this_thread::sleep_for(std::chrono::minutes(1)); break;
      case 3:
        while (status == Status::kDone) {
          status = device::send(Thread{}, lines, 2, &word, sizeof word);
        }
        break;
      default: status = device::launch(Thread{}, list);
    }
    if (status != Status::kAborted) return fmt::format("status {}", static_cast<int>(status));
    comm.run(operation(OperationKind::kSignal, window, 2));
    return "no error";
  });
  expect_all_told(ranks, ready, {0, 1, 3, 4});
}

// How much of the process is shared memory of ours, in mappings and descriptors.
std::size_t shared_things() {
  std::size_t found = 0;
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    found += line.find("memfd:ropewalk") != std::string::npos ? 1 : 0;
  }
  if (DIR* folder = opendir("/proc/self/fd")) {
    while (readdir(folder) != nullptr) ++found;
    closedir(folder);
  }
  return found;
}

TEST_P(WindowProcesses, WindowsThatAreFreedLeaveNothing) {
  const Case& each = GetParam();
  RankProcesses ranks(2, options_of(each), [&](comm::Communicator& comm) -> std::string {
    std::vector<std::byte> memory(10'000);
    WindowSpec spec;
    spec.registers = each.registers;
    spec.memory = memory.data();
    spec.bytes = memory.size();
    const auto make = [&] {
      Window& window = comm.create_window(spec);
      const int peer = 1 - comm.rank();
      OperationSpec put = operation(OperationKind::kPut, window, peer);
      put.source = memory.data();
      put.bytes = 1000;
      put.offset = 5000;
      comm.run(put);
      comm.run(operation(OperationKind::kSignal, window, peer));
      comm.run(operation(OperationKind::kWaitSignal, window, peer));
      comm.free_window(window);
    };
    make();  // makes the links
    const std::size_t before = shared_things();
    for (int turn = 0; turn < 20; ++turn) make();
    const std::size_t after = shared_things();
    // Connections of joining may end meanwhile.
    return after <= before ? "done" : fmt::format("{} before, {} after", before, after);
  });
  expect_done(ranks, 2);
}

INSTANTIATE_TEST_SUITE_P(Cases, WindowProcesses,
                         ::testing::Values(Case{"Allocated", false, false, ""},
                                           Case{"AllocatedInDevShm", false, false, "dev_shm"},
                                           Case{"Registered", true, false, ""},
                                           Case{"OverTcp", false, true, ""}),
                         [](const ::testing::TestParamInfo<Case>& each) {
                           return each.param.name;
                         });

}  // namespace
}  // namespace ropewalk::testing
