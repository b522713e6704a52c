// With software that stands in for CUDA's driver.
#include "transport/window/device/ipc_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/log.h"
#include "core/testing/in_child.h"
#include "transport/window/device/testing/ipc_owner.h"

namespace ropewalk::transport::window {
namespace {

using ropewalk::testing::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::IpcOwner;
using testing::numbered;
using testing::StandIn;
using testing::TestGpus;

class IpcMemories : public ::testing::Test {
 protected:
  IpcMemories() { stand_in_.configure(""); }
  ~IpcMemories() override { stand_in_.configure(""); }
  IpcMemories(const IpcMemories&) = delete;
  IpcMemories& operator=(const IpcMemories&) = delete;

  Gpu& gpu(int ordinal = 0) { return gpus_.gpus.at(ordinal); }
  // The handles that CUDA has open.
  [[nodiscard]] int open_now() const {
    const std::string held = stand_in_.held();
    const std::size_t end = held.find(" IPC handles");
    return std::stoi(held.substr(held.rfind(' ', end - 1) + 1));
  }
  // Whether the owner's bytes are there.
  [[nodiscard]] static bool reads(Gpu& gpu, const IpcMemory& memory, std::size_t allocation = 0) {
    std::vector<char> seen(IpcOwner::kBytes);
    gpu.fetch(seen.data(), memory.base(), seen.size());
    return seen == numbered(IpcOwner::kBytes, allocation);
  }
  [[nodiscard]] std::string refused(const CuIpcHandle& handle, int ordinal = 0) {
    return message_of([&] { const IpcMemory none(gpu(ordinal), handle, "rank 3"); }, Errc::kCuda);
  }

  StandIn stand_in_;
  IpcOwner owner_{2};
  TestGpus gpus_{RW_STAND_IN_CUDA};
};

TEST_F(IpcMemories, ShowsTheOwnersBytesAndClosesAtItsEnd) {
  for (const int ordinal : {0, 1}) {
    const IpcMemory first(gpu(ordinal), owner_.handle(0), "rank 3");
    const IpcMemory second(gpu(ordinal), owner_.handle(1), "rank 3");
    EXPECT_EQ(open_now(), 2);
    EXPECT_TRUE(reads(gpu(ordinal), first, 0));
    EXPECT_TRUE(reads(gpu(ordinal), second, 1));
  }
  EXPECT_EQ(open_now(), 0);
  EXPECT_EQ(IpcMemory().base(), 0U);
}

TEST_F(IpcMemories, CudaOpensAHandleOnceForEachGpu) {
  const IpcMemory first(gpu(), owner_.handle(), "rank 3");
  stand_in_.configure("refuse=cuIpcOpenMemHandle_v2:2");
  const IpcMemory again(gpu(), owner_.handle(), "rank 4");
  EXPECT_EQ(again.base(), first.base());
  EXPECT_TRUE(reads(gpu(), again));
  // The other GPU has a mapping of its own, and so has another allocation.
  EXPECT_THAT(refused(owner_.handle(), 1), HasSubstr("on GPU 1"));
  EXPECT_THAT(refused(owner_.handle(1)), HasSubstr("on GPU 0"));
  EXPECT_EQ(open_now(), 1);
}

TEST_F(IpcMemories, TheLastUserClosesInWhateverOrderTheyGo) {
  stand_in_.configure("ipc_uncounted");
  for (const bool first_goes_first : {true, false}) {
    // Users may come from different Gpus, which go with them.
    std::optional<TestGpus> others(RW_STAND_IN_CUDA);
    std::optional<IpcMemory> first(std::in_place, others->gpus.at(0), owner_.handle(), "rank 3");
    std::optional<IpcMemory> second(std::in_place, gpu(), owner_.handle(), "rank 3");
    if (first_goes_first) {
      first.reset();
      others.reset();
      EXPECT_TRUE(reads(gpu(), *second));
      EXPECT_EQ(open_now(), 1);
      second.reset();
    } else {
      second.reset();
      EXPECT_TRUE(reads(others->gpus.at(0), *first));
      EXPECT_EQ(open_now(), 1);
      first.reset();
    }
    EXPECT_EQ(open_now(), 0);
  }
}

TEST_F(IpcMemories, MovesTakeAUserAlong) {
  stand_in_.configure("ipc_uncounted");
  IpcMemory first(gpu(), owner_.handle(0), "rank 3");
  IpcMemory taken(std::move(first));
  EXPECT_TRUE(reads(gpu(), taken, 0));
  IpcMemory other(gpu(), owner_.handle(1), "rank 3");
  EXPECT_EQ(open_now(), 2);
  other = std::move(taken);
  EXPECT_EQ(open_now(), 1);
  EXPECT_TRUE(reads(gpu(), other, 0));
  other = {};
  EXPECT_EQ(open_now(), 0);
}

TEST_F(IpcMemories, AFailureNamesFunctionOwnerAndGpuAndLeavesNothing) {
  const std::string held = stand_in_.held();
  stand_in_.configure("refuse=cuIpcOpenMemHandle_v2:2");
  EXPECT_THAT(refused(owner_.handle(), 1),
              AllOf(HasSubstr("cuIpcOpenMemHandle (memory of rank 3, on GPU 1 ("),
                    HasSubstr("CUDA_ERROR_OUT_OF_MEMORY")));
  stand_in_.configure("refuse=cuCtxPushCurrent_v2:201");
  EXPECT_THAT(refused(owner_.handle()), HasSubstr("cuCtxPushCurrent"));
  stand_in_.configure("no_peer");
  EXPECT_THAT(refused(owner_.handle(), 1), HasSubstr("cuIpcOpenMemHandle"));
  EXPECT_THAT(refused(IpcOwner::wrong_handle()), HasSubstr("cuIpcOpenMemHandle"));
  EXPECT_EQ(open_now(), 0);
  stand_in_.configure("");
  {
    const IpcMemory memory(gpu(1), owner_.handle(), "rank 3");
    EXPECT_TRUE(reads(gpu(1), memory)) << "after the failures";
    // One that fails takes nothing from the others.
    stand_in_.configure("refuse=cuIpcOpenMemHandle_v2:2");
    EXPECT_NE(refused(owner_.handle(), 0), "");
    stand_in_.configure("");
    EXPECT_TRUE(reads(gpu(1), memory));
  }
  EXPECT_EQ(open_now(), 0);
}

std::vector<std::string>& heard_warnings() {
  static std::vector<std::string> heard;
  return heard;
}

TEST_F(IpcMemories, AFailureToCloseIsAWarningThatNamesTheOwner) {
  heard_warnings().clear();
  log::set_listener(
      [](log::Level, std::uint32_t, const char* line) { heard_warnings().emplace_back(line); });
  {
    const IpcMemory memory(gpu(), owner_.handle(), "rank 3");
    stand_in_.configure("refuse=cuIpcCloseMemHandle:1");
  }
  stand_in_.configure("");
  log::set_listener(nullptr);
  ASSERT_EQ(heard_warnings().size(), 1U);
  EXPECT_THAT(heard_warnings()[0], HasSubstr("cuIpcCloseMemHandle (memory of rank 3, on GPU 0 ("));
  const IpcMemory again(gpu(), owner_.handle(), "rank 3");
  EXPECT_TRUE(reads(gpu(), again));
  EXPECT_EQ(gpus_.cuda.ipc_close(again.base()), kCuSuccess);  // what was refused
}

TEST_F(IpcMemories, UsersComeAndGoAtOnce) {
  stand_in_.configure("ipc_uncounted");
  const std::vector<char> expected = numbered(64, 0);
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      Gpu& mine = gpu(t % 2);
      for (int turn = 0; turn < 100; ++turn) {
        try {
          const IpcMemory memory(mine, owner_.handle(), "rank 3");
          std::vector<char> seen(expected.size());
          mine.fetch(seen.data(), memory.base(), seen.size());
          if (seen != expected) ++wrong;
        } catch (const Error&) {
          ++wrong;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(open_now(), 0);
}

// CUDA closes when the GPU's work is done. Begins to close `memory`, which ends when `mark` is 1.
class SlowClosing {
 public:
  SlowClosing(Gpu& gpu, IpcMemory memory) : mark_(gpu.take_mark()), memory_(std::move(memory)) {
    const CurrentContext current(gpu.cuda(), gpu.context());
    CuStreamOperation wait;
    wait.operation = kCuStreamWait64;
    wait.address = mark_.device;
    wait.value = 1;
    gpu.cuda().check(gpu.cuda().stream_batch(gpu.stream(0), 1, &wait, 0), "cuStreamBatchMemOp");
    thread_ = std::thread([this] { memory_ = {}; });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // until CUDA closes it
  }
  ~SlowClosing() {
    end();
    thread_.join();
  }
  SlowClosing(const SlowClosing&) = delete;
  SlowClosing& operator=(const SlowClosing&) = delete;
  void end() { mark_.host->store(1, std::memory_order_release); }

 private:
  MarkWord mark_;
  IpcMemory memory_;
  std::thread thread_;
};

// A kernel that closing waits for may itself wait for a thread that opens something else.
TEST_F(IpcMemories, AClosingThatWaitsHoldsUpNoOtherHandle) {
  {
    SlowClosing slow(gpu(), IpcMemory(gpu(), owner_.handle(0), "rank 3"));
    std::future<CuPointer> other = std::async(std::launch::async, [&] {
      const IpcMemory memory(gpu(1), owner_.handle(1), "rank 3");
      const CuPointer base = memory.base();
      slow.end();  // this handle's closing waits for the stream, too
      return base;
    });
    EXPECT_EQ(other.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    slow.end();
    EXPECT_NE(other.get(), 0U);
  }
  EXPECT_EQ(open_now(), 0);
}

// A driver that does not count would give it the address that is closed then.
TEST_F(IpcMemories, WhoOpensWhatIsBeingClosedGetsItAnew) {
  stand_in_.configure("ipc_uncounted");
  {
    std::optional<SlowClosing> slow(std::in_place, gpu(),
                                    IpcMemory(gpu(), owner_.handle(), "rank 3"));
    std::future<IpcMemory> opening =
        std::async(std::launch::async, [&] { return IpcMemory(gpu(), owner_.handle(), "rank 3"); });
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    slow.reset();
    const IpcMemory anew = opening.get();
    EXPECT_TRUE(reads(gpu(), anew));
  }
  EXPECT_EQ(open_now(), 0);
}

TEST_F(IpcMemories, OnlyMemoryOfCudaMallocHasAHandle) {
  const DeviceBuffer ordinary(gpu(), 5000, DeviceBuffer::From::kAllocator);
  const DeviceBuffer paged(gpu(), 5000, DeviceBuffer::From::kVirtualMemory);
  int on_host = 0;
  EXPECT_TRUE(is_ipc_capable(gpus_.cuda, ordinary.pointer()));
  EXPECT_FALSE(is_ipc_capable(gpus_.cuda, paged.pointer()));
  EXPECT_FALSE(is_ipc_capable(gpus_.cuda, &on_host));
  const Allocation found = allocation_of(gpu(), ordinary.data() + 4321);
  EXPECT_EQ(found.base, ordinary.data());
  EXPECT_GE(found.bytes, 5000U);
  EXPECT_THAT(message_of([&] { (void)allocation_of(gpu(), 4096); }, Errc::kCuda),
              HasSubstr("cuMemGetAddressRange of 0x1000: CUDA_ERROR_"));
  EXPECT_THAT(message_of([&] { (void)ipc_handle_of(gpu(), paged.data()); }, Errc::kCuda),
              HasSubstr("cuIpcGetMemHandle: "));
  // A process cannot open its own.
  const CuIpcHandle own = ipc_handle_of(gpu(), ordinary.data());
  EXPECT_THAT(refused(own), HasSubstr("cuIpcOpenMemHandle"));
}

}  // namespace
}  // namespace ropewalk::transport::window
