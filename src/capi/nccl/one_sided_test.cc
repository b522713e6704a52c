// ncclPutSignal, ncclSignal and ncclWaitSignal by ranks that are threads, with software that stands
// in for CUDA's driver. What needs the CUDA runtime, ncclCommInitRank and the registration of
// collectives, is left out: communicators and windows are made as those functions make them.
#include "capi/nccl/one_sided.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/unique_id.h"
#include "capi/nccl/device_layout.h"
#include "capi/nccl/handle.h"
#include "capi/nccl/windows.h"
#include "comm/testing/ranks.h"
#include "comm/testing/windows.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::nccl {
namespace {

namespace gpus = transport::window;
using comm::testing::pattern;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kBytes = 10'007;

// What is between the ranks.
struct Kind {
  std::string name;
  bool one_gpu = false;
  bool of_pages = false;  // as ncclMemAlloc of NVIDIA's gives it
  bool links = false;
  bool flat = false;  // mapped side by side
};

void PrintTo(const Kind& kind, std::ostream* out) { *out << kind.name; }

// One rank with a window of kBytes, a source of as many, and a stream.
class Rank {
 public:
  Rank(const bootstrap::UniqueId& id, int rank, int size, comm::Runtime& runtime, const Kind& kind,
       SignalCounts counts)
      : flat_(kind.flat),
        gpu_(runtime.gpus().at(kind.one_gpu ? 0 : rank % 2)),
        source_(gpu_, kBytes, from(kind)),
        memory_(gpu_, kBytes, from(kind)) {
    CommConfig config;
    config.signals = counts;
    core_ = std::make_shared<Core>(gpu_.ordinal(), config);
    auto made = comm::Communicator::join(id, rank, size, runtime);
    auto one_sided = std::make_unique<OneSided>(*made, gpu_.ordinal(), counts);
    core_->end(std::move(made), std::move(one_sided));
    comm_ = std::make_unique<ncclComm>(core_);
    const gpus::CurrentContext current(gpu_.cuda(), gpu_.context());
    gpu_.cuda().check(gpu_.cuda().stream_create(&stream_, gpus::kCuStreamNonBlocking, 0), "stream");
  }
  ~Rank() { gpu_.cuda().warn(gpu_.cuda().stream_destroy(stream_), "stream"); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  [[nodiscard]] int rank() const { return core_->comm->rank(); }
  [[nodiscard]] int size() const { return core_->comm->size(); }
  [[nodiscard]] int next() const { return (rank() + 1) % size(); }
  [[nodiscard]] int previous() const { return (rank() + size() - 1) % size(); }
  [[nodiscard]] ncclComm_t comm() const { return comm_.get(); }
  [[nodiscard]] Core& core() const { return *core_; }
  [[nodiscard]] gpus::Gpu& gpu() const { return gpu_; }
  [[nodiscard]] ncclStream_t stream() const { return reinterpret_cast<ncclStream_t>(stream_); }
  [[nodiscard]] const void* source() const { return source_.pointer(); }
  [[nodiscard]] void* memory() const { return memory_.pointer(); }

  // As ncclCommWindowRegister does.
  ncclWindow_t add(void* memory, std::size_t bytes) const {
    Window window;
    window.core = core_.get();
    window.buffer = memory;
    if (flat_) add_flat(*core_->comm, core_->device, window, bytes);
    add_puts(*core_->one_sided, window, bytes);
    return add_window(std::move(window));
  }
  void fill(const Bytes& with) const { gpu_.fill(source_.data(), with.data(), with.size()); }
  [[nodiscard]] Bytes received(std::size_t bytes = kBytes) const {
    Bytes out(bytes);
    gpu_.fetch(out.data(), memory_.data(), bytes);
    return out;
  }
  // @return whether the stream was done in time
  [[nodiscard]] bool synchronize(gpus::CuStream stream) const {
    const gpus::CurrentContext current(gpu_.cuda(), gpu_.context());
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (gpu_.cuda().stream_query(stream) == gpus::kCuNotReady) {
      if (std::chrono::steady_clock::now() > end) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    return gpu_.cuda().stream_query(stream) == gpus::kCuSuccess;
  }
  [[nodiscard]] bool synchronize() const { return synchronize(stream_); }

 private:
  static gpus::DeviceBuffer::From from(const Kind& kind) {
    return kind.of_pages ? gpus::DeviceBuffer::From::kVirtualMemory
                         : gpus::DeviceBuffer::From::kAllocator;
  }
  const bool flat_;
  gpus::Gpu& gpu_;
  gpus::DeviceBuffer source_;
  gpus::DeviceBuffer memory_;
  gpus::CuStream stream_ = nullptr;
  std::shared_ptr<Core> core_;
  std::unique_ptr<ncclComm> comm_;
};

ncclResult_t wait(const Rank& rank, std::vector<ncclWaitSignalDesc_t> waits) {
  return ncclWaitSignal(static_cast<int>(waits.size()), waits.data(), rank.comm(), rank.stream());
}

class OneSidedTest : public ::testing::TestWithParam<Kind> {
 protected:
  void ranks(int size, const Kind& kind, const std::function<void(Rank&)>& body,
             SignalCounts counts = {}) {
    comm::testing::quiet(runtime_);
    runtime_.set("CUDA_LIBRARY", RW_STAND_IN_CUDA, "test");
    if (kind.links) {
      runtime_.set("LINKS", "network", "test");
      runtime_.set("NET", "tcp", "test");
    }
    const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        try {
          Rank rank(id, r, size, runtime_, kind, counts);
          body(rank);
          rank.core().comm->finalize();
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << r << ": " << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  comm::Runtime runtime_;
};

// Round a ring, with a signal back that the memory may be overwritten.
TEST_P(OneSidedTest, DataIsThereWhenItsSignalWasWaitedFor) {
  ranks(3, GetParam(),
        [](Rank& rank) {
          const ncclWindow_t window = rank.add(rank.memory(), kBytes);
          for (int turn = 0; turn < 20; ++turn) {
            rank.fill(pattern(kBytes, rank.rank(), turn));
            if (turn > 0) {
              ASSERT_EQ(wait(rank, {{1, rank.next(), 1, 1}}), ncclSuccess);
            }
            ASSERT_EQ(ncclPutSignal(rank.source(), kBytes, ncclInt8, rank.next(), window, 0, 0, 1,
                                    0, rank.comm(), rank.stream()),
                      ncclSuccess);
            ASSERT_EQ(wait(rank, {{1, rank.previous(), 0, 1}}), ncclSuccess);
            ASSERT_TRUE(rank.synchronize());
            ASSERT_EQ(rank.received(), pattern(kBytes, rank.previous(), turn)) << turn;
            ASSERT_EQ(ncclSignal(rank.previous(), 1, 1, 0, rank.comm(), rank.stream()),
                      ncclSuccess);
          }
          ASSERT_EQ(wait(rank, {{1, rank.next(), 1, 1}}), ncclSuccess);
          ASSERT_TRUE(rank.synchronize());
          rank.core().comm->barrier();
        },
        {2, 2});
}

// In a group the waits come last, whatever the order of the calls, and all peers at once.
TEST_P(OneSidedTest, AGroupsWaitsHoldBackNoPut) {
  ranks(3, GetParam(), [](Rank& rank) {
    const ncclWindow_t window = rank.add(rank.memory(), kBytes);
    rank.fill(pattern(1000, rank.rank(), 5));
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    for (int peer = 0; peer < 3; ++peer) {
      ASSERT_EQ(wait(rank, {{1, peer, 0, 0}}), ncclSuccess);
      ASSERT_EQ(ncclPutSignal(rank.source(), 250, ncclFloat32, peer, window,
                              static_cast<std::size_t>(rank.rank()) * 1000, 0, 0, 0, rank.comm(),
                              rank.stream()),
                ncclSuccess);
    }
    ASSERT_EQ(ncclGroupEnd(), ncclSuccess);
    ASSERT_TRUE(rank.synchronize());
    const Bytes all = rank.received(3000);
    for (int peer = 0; peer < 3; ++peer) {
      const Bytes one(all.begin() + peer * 1000, all.begin() + (peer + 1) * 1000);
      EXPECT_EQ(one, pattern(1000, peer, 5)) << peer;
    }
    rank.core().comm->barrier();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, OneSidedTest,
                         ::testing::Values(Kind{"peer_access"}, Kind{"one_gpu", true},
                                           Kind{"pages_of_one_gpu", true, true},
                                           Kind{"pages", false, true},
                                           Kind{"pages_side_by_side", false, true, false, true},
                                           Kind{"links", false, false, true}),
                         [](const auto& each) { return each.param.name; });

class OneSidedCallsTest : public OneSidedTest {};

// Each index and each context counts by itself, and a wait takes as many as it says.
TEST_F(OneSidedCallsTest, SignalsAreCountedBySourceContextAndIndex) {
  ranks(2, {"peer_access"},
        [](Rank& rank) {
          rank.core().one_sided->open();  // as rmaEagerInit = 1 does: no window is needed
          const int peer = 1 - rank.rank();
          const auto signal = [&](int index, int context) {
            ASSERT_EQ(ncclSignal(peer, index, context, 0, rank.comm(), rank.stream()), ncclSuccess);
          };
          if (rank.rank() == 0) {
            for (int k = 0; k < 3; ++k) signal(1, 0);
            signal(0, 1);
            ASSERT_TRUE(rank.synchronize());
            rank.core().comm->barrier();
            rank.core().comm->barrier();
            signal(1, 0);
            ASSERT_TRUE(rank.synchronize());
            return;
          }
          rank.core().comm->barrier();
          ASSERT_EQ(wait(rank, {{2, peer, 1, 0}, {1, peer, 0, 1}}), ncclSuccess);
          ASSERT_TRUE(rank.synchronize());
          // Two more: one is there, the other comes later.
          ASSERT_EQ(wait(rank, {{2, peer, 1, 0}}), ncclSuccess);
          std::this_thread::sleep_for(std::chrono::milliseconds(50));
          const gpus::CurrentContext current(rank.gpu().cuda(), rank.gpu().context());
          EXPECT_EQ(rank.gpu().cuda().stream_query(reinterpret_cast<gpus::CuStream>(rank.stream())),
                    gpus::kCuNotReady);
          rank.core().comm->barrier();
          ASSERT_TRUE(rank.synchronize());
        },
        {2, 2});
}

TEST_F(OneSidedCallsTest, TheStreamMayBeNull) {
  ranks(2, {"peer_access"}, [](Rank& rank) {
    const ncclWindow_t window = rank.add(rank.memory(), kBytes);
    rank.fill(pattern(kBytes, rank.rank(), 1));
    ASSERT_EQ(ncclPutSignal(rank.source(), kBytes, ncclUint8, rank.next(), window, 0, 0, 0, 0,
                            rank.comm(), nullptr),
              ncclSuccess);
    ncclWaitSignalDesc_t one{1, rank.next(), 0, 0};
    ASSERT_EQ(ncclWaitSignal(1, &one, rank.comm(), nullptr), ncclSuccess);
    ASSERT_TRUE(rank.synchronize(nullptr));
    EXPECT_EQ(rank.received(), pattern(kBytes, rank.next(), 1));
    rank.core().comm->barrier();
  });
}

TEST_F(OneSidedCallsTest, WhatCannotBeRightIsRefusedByName) {
  ranks(2, {"peer_access"}, [](Rank& rank) {
    ncclComm_t comm = rank.comm();
    ncclStream_t stream = rank.stream();
    const auto said = [](ncclResult_t result) {
      return std::pair<ncclResult_t, std::string>(result, ncclGetLastError(nullptr));
    };
    const auto expect = [&](ncclResult_t result, ncclResult_t expected, const std::string& words) {
      // The text is the process's: the other rank says the same.
      EXPECT_EQ(result, expected) << words;
      EXPECT_NE(said(result).second.find(words), std::string::npos)
          << words << " in " << said(result).second;
      rank.core().comm->barrier();
    };
    expect(ncclSignal(1, 0, 0, 0, comm, stream), ncclInvalidUsage,
           "ncclSignal: there are no signals before the communicator's first");
    const ncclWindow_t window = rank.add(rank.memory(), kBytes);
    const void* source = rank.source();
    const auto put = [&](std::size_t count, int type, int peer, ncclWindow_t to, std::size_t offset,
                         int index, int context, unsigned flags) {
      return ncclPutSignal(source, count, static_cast<ncclDataType_t>(type), peer, to, offset,
                           index, context, flags, comm, stream);
    };
    expect(put(1, 7, 1, nullptr, 0, 0, 0, 0), ncclInvalidArgument, "peerWin: NULL");
    expect(put(1, 7, 1, reinterpret_cast<ncclWindow_t>(rank.memory()), 0, 0, 0, 0),
           ncclInvalidArgument, "is not a window");
    expect(put(1, 99, 1, window, 0, 0, 0, 0), ncclInvalidArgument, "datatype: 99");
    expect(put(1, 7, 2, window, 0, 0, 0, 0), ncclInvalidArgument, "peer: 2 is no rank of 2");
    expect(put(1, 7, -1, window, 0, 0, 0, 0), ncclInvalidArgument, "peer: -1 is no rank of 2");
    expect(put(1, 7, 1, window, kBytes - 3, 0, 0, 0), ncclInvalidArgument, "leave the 10007 bytes");
    expect(put(std::size_t{1} << 63U, 7, 1, window, 0, 0, 0, 0), ncclInvalidArgument,
           "count: 9223372036854775808 elements of 4 bytes");
    expect(put(1, 7, 1, window, 0, 1, 0, 0), ncclInvalidArgument, "sigIdx: 1 is outside 0 to 0");
    expect(put(1, 7, 1, window, 0, 0, 1, 0), ncclInvalidArgument, "ctx: 1 is outside 0 to 0");
    expect(put(1, 7, 1, window, 0, 0, 0, 4), ncclInvalidArgument, "flags: 4 is not 0");
    expect(ncclPutSignal(nullptr, 1, ncclInt8, 1, window, 0, 0, 0, 0, comm, stream),
           ncclInvalidArgument, "source: NULL");
    expect(ncclSignal(1, -1, 0, 0, comm, stream), ncclInvalidArgument, "sigIdx: -1");
    expect(ncclSignal(0, 0, 0, 1, comm, stream), ncclInvalidArgument, "flags: 1 is not 0");
    expect(ncclSignal(0, 0, 0, 0, nullptr, stream), ncclInvalidArgument, "comm: NULL");
    expect(ncclWaitSignal(0, nullptr, comm, stream), ncclInvalidArgument, "nDesc: 0");
    expect(ncclWaitSignal(1, nullptr, comm, stream), ncclInvalidArgument, "signalDescs: NULL");
    expect(wait(rank, {{1, 0, 0, 0}, {0, 0, 0, 0}}), ncclInvalidArgument,
           "signalDescs[1]: opCnt: 0 is not positive");
    expect(wait(rank, {{1, 3, 0, 0}}), ncclInvalidArgument, "peer: 3 is no rank of 2");
    // A group is refused as a whole.
    ASSERT_EQ(ncclGroupStart(), ncclSuccess);
    ASSERT_EQ(ncclSignal(rank.next(), 0, 0, 0, comm, stream), ncclSuccess);
    ASSERT_EQ(ncclSignal(7, 0, 0, 0, comm, stream), ncclInvalidArgument);
    ASSERT_EQ(ncclGroupEnd(), ncclInvalidArgument);
    // Nothing was counted, and the communicator is whole: no element is a signal alone.
    ASSERT_EQ(
        ncclPutSignal(nullptr, 0, ncclInt8, rank.next(), window, kBytes, 0, 0, 0, comm, stream),
        ncclSuccess);
    ASSERT_EQ(wait(rank, {{1, rank.next(), 0, 0}}), ncclSuccess);
    ASSERT_TRUE(rank.synchronize());
    rank.core().comm->barrier();
  });
}

// A rank deregisters its own window while the others go on with theirs.
TEST_F(OneSidedCallsTest, AWindowIsLetGoOfByEachRank) {
  ranks(2, {"peer_access"}, [](Rank& rank) {
    const ncclWindow_t first = rank.add(rank.memory(), kBytes);
    const auto put_to = [&](ncclWindow_t window) {
      return ncclPutSignal(rank.source(), kBytes, ncclInt8, 1 - rank.rank(), window, 0, 0, 0, 0,
                           rank.comm(), rank.stream());
    };
    message::Window& puts = *window_of(first)->puts;
    if (rank.rank() == 0) {
      // Behind a wait the put is still in the stream.
      ASSERT_EQ(wait(rank, {{1, 1, 0, 0}}), ncclSuccess);
      ASSERT_EQ(put_to(first), ncclSuccess);
      const auto [code, words] =
          comm::testing::refusal_of([&] { rank.core().one_sided->remove(puts); });
      EXPECT_EQ(code, Errc::kInvalidUsage);
      EXPECT_NE(words.find("a stream has not done yet"), std::string::npos) << words;
      rank.core().comm->barrier();
      ASSERT_TRUE(rank.synchronize());
      rank.core().one_sided->remove(puts);
      EXPECT_EQ(put_to(first), ncclInvalidUsage);
      rank.core().comm->barrier();
    } else {
      rank.core().comm->barrier();
      ASSERT_EQ(ncclSignal(0, 0, 0, 0, rank.comm(), rank.stream()), ncclSuccess);
      ASSERT_EQ(wait(rank, {{1, 0, 0, 0}}), ncclSuccess);
      ASSERT_TRUE(rank.synchronize());
      rank.core().comm->barrier();
      rank.core().one_sided->remove(puts);
    }
    remove_window(first);
    EXPECT_EQ(put_to(first), ncclInvalidArgument);
    const ncclWindow_t second = rank.add(rank.memory(), kBytes);
    rank.fill(pattern(kBytes, rank.rank(), 8));
    ASSERT_EQ(put_to(second), ncclSuccess);
    ASSERT_EQ(wait(rank, {{1, 1 - rank.rank(), 0, 0}}), ncclSuccess);
    ASSERT_TRUE(rank.synchronize());
    EXPECT_EQ(rank.received(), pattern(kBytes, 1 - rank.rank(), 8));
    rank.core().comm->barrier();
  });
}

// Such a window serves collectives, as far as they can.
TEST_F(OneSidedCallsTest, AWindowThatCannotBePutToSaysWhy) {
  ranks(2, {"peer_access"}, [](Rank& rank) {
    Bytes host(100);
    const ncclWindow_t window = rank.add(host.data(), host.size());
    EXPECT_EQ(ncclPutSignal(rank.source(), 1, ncclInt8, 0, window, 0, 0, 0, 0, rank.comm(),
                            rank.stream()),
              ncclInvalidUsage);
    const std::string said = ncclGetLastError(nullptr);
    EXPECT_NE(said.find("peerWin: its ranks cannot put to it: rank 0: memory: it is the host's"),
              std::string::npos)
        << said;
    // Signals need no window.
    ASSERT_EQ(ncclSignal(rank.next(), 0, 0, 0, rank.comm(), rank.stream()), ncclSuccess);
    ASSERT_EQ(wait(rank, {{1, rank.next(), 0, 0}}), ncclSuccess);
    ASSERT_TRUE(rank.synchronize());
    rank.core().comm->barrier();
  });
}

// What a kernel with NVIDIA's header computes, by the words that it reads in the GPU's memory.
TEST_F(OneSidedCallsTest, KernelsFindEveryRanksBuffer) {
  ranks(3, {"pages", false, true, false, true}, [](Rank& rank) {
    const std::size_t bytes = kBytes - static_cast<std::size_t>(rank.rank());
    const ncclWindow_t window = rank.add(rank.memory(), bytes);
    rank.core().comm->barrier();
    ncclWindow_vidmem seen{};
    rank.gpu().fetch(&seen, reinterpret_cast<gpus::CuPointer>(window), sizeof seen);
    EXPECT_EQ(seen.lsaRank, rank.rank());
    EXPECT_EQ(seen.worldRank, rank.rank());
    EXPECT_EQ(seen.stride4G, 1U);
    const auto address_of = [&](int peer, std::size_t offset) {
      const auto lsa = static_cast<std::uint64_t>(seen.lsaRank + (peer - seen.worldRank));
      return reinterpret_cast<gpus::CuPointer>(seen.lsaFlatBase) + ((lsa * seen.stride4G) << 32U) +
             offset;
    };
    for (int peer = 0; peer < 3; ++peer) {
      void* given = nullptr;
      ASSERT_EQ(ncclGetPeerDevicePointer(window, 100, peer, &given), ncclSuccess);
      EXPECT_EQ(reinterpret_cast<gpus::CuPointer>(given), address_of(peer, 100));
      EXPECT_EQ(ncclGetPeerDevicePointer(window, kBytes - 1, peer, &given),
                peer < 2 ? ncclSuccess : ncclInvalidArgument);
      // Each rank writes its own piece of every buffer.
      const Bytes piece = pattern(500, rank.rank(), peer);
      rank.gpu().fill(address_of(peer, static_cast<std::size_t>(rank.rank()) * 500), piece.data(),
                      piece.size());
    }
    rank.core().comm->barrier();
    const Bytes all = rank.received(1500);
    for (int writer = 0; writer < 3; ++writer) {
      const Bytes one(all.begin() + writer * 500, all.begin() + (writer + 1) * 500);
      EXPECT_EQ(one, pattern(500, writer, rank.rank())) << writer;
    }
    rank.core().comm->barrier();
    // Each rank deregisters by itself: what the others have mapped stays.
    const std::shared_ptr<const Window> last = window_of(window);
    rank.core().one_sided->remove(*last->puts);
    remove_window(window);
    EXPECT_EQ(ncclGetPeerDevicePointer(window, 0, 0, nullptr), ncclInvalidArgument);
  });
}

// All ranks or none: then the handle is no address, and pointers are those of other means.
TEST_F(OneSidedCallsTest, MemoryThatCannotBeMappedSideBySideSaysWhy) {
  ranks(2, {"cudaMalloc", false, false, false, true}, [](Rank& rank) {
    const comm::FlatMemory::Made made =
        comm::FlatMemory::map(*rank.core().comm, rank.gpu(), rank.memory(), kBytes);
    EXPECT_EQ(made.memory, nullptr);
    EXPECT_NE(made.why_not.find("is not of CUDA's virtual memory functions"), std::string::npos)
        << made.why_not;
    const ncclWindow_t window = rank.add(rank.memory(), kBytes);
    EXPECT_EQ(window_of(window)->flat, nullptr);
  });
}

TEST(SignalConfig, CountsAreReadAndInherited) {
  ncclConfig_t config{};
  config.size = sizeof config;
  config.magic = kNcclMagic;
  config.version = 23203;
  std::fill_n(reinterpret_cast<int*>(&config.blocking), 4, kNcclUndefInt);
  for (int* field : {&config.splitShare, &config.shrinkShare, &config.numRmaCtx, &config.numRmaSig,
                     &config.rmaEagerInit}) {
    *field = kNcclUndefInt;
  }
  CommConfig inherited;
  inherited.signals = {3, 2};
  EXPECT_EQ(read_config(&config, inherited).signals.contexts, 3);
  config.numRmaCtx = 64;
  config.rmaEagerInit = 1;
  const CommConfig read = read_config(&config, inherited);
  EXPECT_EQ(read.signals.contexts, 64);
  EXPECT_EQ(read.signals.indices, 2);
  EXPECT_TRUE(read.eager_signals);
  config.numRmaSig = 65;
  EXPECT_THROW(read_config(&config, {}), Error);
  config.numRmaSig = 0;
  EXPECT_THROW(read_config(&config, {}), Error);
}

TEST(CtaPolicy, ZeroAsksForCopyEngines) {
  ncclConfig_t config{};
  config.size = sizeof config;
  config.magic = kNcclMagic;
  config.version = 23203;
  for (int* field : {&config.blocking, &config.cgaClusterSize, &config.minCTAs, &config.maxCTAs,
                     &config.splitShare, &config.shrinkShare, &config.numRmaCtx, &config.numRmaSig,
                     &config.rmaEagerInit}) {
    *field = kNcclUndefInt;
  }
  const auto use = [&](int policy) {
    config.CTAPolicy = policy;
    return read_config(&config, {}).blocks.copy_engines;
  };
  EXPECT_EQ(use(kNcclCtaPolicyZero), comm::CopyEngineUse::kOn);
  EXPECT_EQ(use(kNcclCtaPolicyZero | 1), comm::CopyEngineUse::kOn) << "it goes before EFFICIENCY";
  for (const int other : {kNcclUndefInt, 0, 1}) {
    EXPECT_EQ(use(other), comm::CopyEngineUse::kUnset) << other << ": the setting";
  }
  CommConfig inherited;
  inherited.blocks.copy_engines = comm::CopyEngineUse::kOn;
  config.CTAPolicy = kNcclUndefInt;
  EXPECT_EQ(read_config(&config, inherited).blocks.copy_engines, comm::CopyEngineUse::kOn);
}

}  // namespace
}  // namespace ropewalk::nccl
