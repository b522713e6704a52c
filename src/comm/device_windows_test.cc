// Windows in GPU memory, and the operations that streams do, on a stand-in for CUDA's driver: one
// suite over all kinds of windows and links.
#include "comm/testing/device_windows.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <functional>
#include <latch>
#include <memory>
#include <ostream>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "comm/communicator.h"
#include "comm/testing/ranks.h"
#include "comm/testing/windows.h"
#include "core/error.h"
#include "core/testing/seeds.h"
#include "message/messenger.h"
#include "message/puts_and_signals.h"
#include "transport/window/device/gpu.h"
#include "transport/window/device/testing/stand_in.h"

namespace ropewalk::comm {
namespace {

namespace gpus = transport::window;
using message::Batch;
using message::OperationKind;
using message::OperationSpec;
using message::Refused;
using message::Window;
using message::WindowSpec;
using testing::Buffer;
using testing::DeviceEnd;
using testing::DeviceKind;
using testing::pattern;
using testing::refusal_of;
using testing::TestStream;
using testing::with_ranks;
using Bytes = std::vector<std::byte>;

class DeviceWindows : public ::testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override { testing::use(runtime_, GetParam(), RW_STAND_IN_CUDA); }
  void ranks(int size, const std::function<void(Communicator&)>& body) {
    with_ranks(size, runtime_, body);
  }
  Runtime runtime_;
};

TEST_P(DeviceWindows, TheHostPutsGetsAndSignals) {
  ranks(3, [&](Communicator& comm) {
    constexpr std::size_t kMost = (std::size_t{1} << 18) + 3;
    DeviceEnd end(comm, GetParam(), kMost);
    const int next = (comm.rank() + 1) % 3;
    const int previous = (comm.rank() + 2) % 3;
    int turn = 0;
    for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, std::size_t{8}, std::size_t{97},
                                    std::size_t{20'000}, kMost}) {
      ++turn;
      const Bytes source = pattern(bytes, comm.rank(), turn);
      const Buffer there(end.gpu(), source);
      // From the host's memory, and from the GPU's.
      end.run(turn % 2 == 0 ? end.put(next, kMost - bytes, source.data(), bytes)
                            : end.put(next, kMost - bytes, there.data(), bytes));
      end.run(end.signal(next));
      end.run(end.wait(previous));
      ASSERT_EQ(end.read(kMost - bytes, bytes), pattern(bytes, previous, turn)) << bytes;
      Bytes back(bytes);
      end.run(end.get(next, kMost - bytes, back.data(), bytes));
      ASSERT_EQ(back, source) << bytes;
      comm.barrier();
    }
    EXPECT_EQ(comm.arrived(end.window(), previous, 0), 6U);
    end.free();
  });
}

TEST_P(DeviceWindows, AStreamPutsSignalsAndWaits) {
  ranks(2, [&](Communicator& comm) {
    constexpr std::size_t kBytes = 70'000;
    constexpr int kTurns = 6;
    DeviceEnd end(comm, GetParam(), kBytes, 2);
    const int peer = 1 - comm.rank();
    std::vector<std::unique_ptr<Buffer>> sources;
    std::vector<std::unique_ptr<Buffer>> seen;
    // All of it is enqueued before any of it need have happened.
    for (int turn = 0; turn < kTurns; ++turn) {
      sources.push_back(std::make_unique<Buffer>(end.gpu(), pattern(kBytes, comm.rank(), turn)));
      seen.push_back(std::make_unique<Buffer>(end.gpu(), Bytes(kBytes)));
      end.enqueue(end.put(peer, 0, sources.back()->data(), kBytes));
      end.enqueue(end.signal(peer, 0));
      end.enqueue(end.wait(peer, 0));
      // What came is read before the peer is told that it may put again.
      end.enqueue(end.get(comm.rank(), 0, seen.back()->data(), kBytes));
      end.enqueue(end.signal(peer, 1));
      end.enqueue(end.wait(peer, 1));
    }
    ASSERT_TRUE(end.stream().wait());
    for (int turn = 0; turn < kTurns; ++turn) {
      EXPECT_EQ(seen[static_cast<std::size_t>(turn)]->read(), pattern(kBytes, peer, turn)) << turn;
    }
    EXPECT_EQ(comm.arrived(end.window(), peer, 0), std::uint64_t{kTurns});
    end.free();
  });
}

// More than the pinned memory through which links bring it.
TEST_P(DeviceWindows, SignalsComeAfterAllOfALongPut) {
  ranks(2, [&](Communicator& comm) {
    constexpr std::size_t kBytes = (std::size_t{3} << 20) + 5;
    DeviceEnd end(comm, GetParam(), kBytes + 16);
    const int peer = 1 - comm.rank();
    for (int turn = 0; turn < 3; ++turn) {
      const Bytes source = pattern(kBytes, comm.rank(), turn);
      const Bytes word = pattern(8, comm.rank(), turn + 100);
      end.run(end.put(peer, 0, source.data(), kBytes));
      end.run(end.put(peer, kBytes / 8 * 8 + 8, word.data(), 8));
      end.run(end.signal(peer));
      end.run(end.wait(peer));
      ASSERT_EQ(end.read(0, kBytes), pattern(kBytes, peer, turn));
      ASSERT_EQ(end.read(kBytes / 8 * 8 + 8, 8), pattern(8, peer, turn + 100));
      comm.barrier();
    }
    end.free();
  });
}

// One more could stand still in the driver, and the messenger with it.
TEST_P(DeviceWindows, AStreamHoldsSoManyCalls) {
  constexpr int kHeld = 256;
  constexpr int kCalls = kHeld + 40;
  std::atomic<int> enqueued{0};
  ranks(2, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), 8);
    if (comm.rank() == 0) {
      for (; enqueued < kCalls; ++enqueued) end.enqueue(end.wait(1));
    } else {
      while (enqueued < kHeld) std::this_thread::yield();
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      EXPECT_EQ(enqueued, kHeld);
      end.run(end.signal(0, 0, kCalls));
    }
    EXPECT_TRUE(end.stream().wait());
    comm.barrier();
    EXPECT_EQ(enqueued, kCalls);
    end.free();
  });
}

TEST_P(DeviceWindows, ABatchIsLaunchedAgainAndAgain) {
  ranks(3, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), 3000, 2);
    const Buffer source(end.gpu(), pattern(1000, comm.rank(), 1));
    Batch batch;
    for (int peer = 0; peer < 3; ++peer) {
      comm.add(batch,
               end.put(peer, 1000 * static_cast<std::size_t>(comm.rank()), source.data(), 1000));
      comm.add(batch, end.signal(peer, 0));
    }
    for (int peer = 0; peer < 3; ++peer) comm.add(batch, end.wait(peer, 0));
    for (int turn = 0; turn < 5; ++turn) end.enqueue(batch);
    ASSERT_TRUE(end.stream().wait());
    comm.run(batch);
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(end.read(1000 * static_cast<std::size_t>(peer), 1000), pattern(1000, peer, 1));
      EXPECT_EQ(comm.arrived(end.window(), peer, 0), 6U);
    }
    end.free();
  });
}

// By all ranks, on the stand-in's streams.
int kernels_launched() {
  static void* const library = dlopen(RW_STAND_IN_CUDA, RTLD_NOW);
  return reinterpret_cast<int (*)()>(dlsym(library, "stand_in_cuda_launches"))();
}

// Puts and signals of a batch, whatever their number, with the values that the host has counted:
// so it may be mixed with all other calls.
TEST_P(DeviceWindows, ABatchOnAStreamIsOneKernel) {
  constexpr std::size_t kPuts = 64;
  constexpr int kTurns = 7;
  const int before = kernels_launched();
  ranks(2, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), kPuts * 40, 3);
    const int peer = 1 - comm.rank();
    const Buffer source(end.gpu(), pattern(kPuts * 40, comm.rank(), 1));
    const auto* const from = static_cast<const std::byte*>(source.data());
    Batch batch;
    for (std::size_t k = 0; k < kPuts; ++k) {
      comm.add(batch, end.put(peer, 40 * k, from + 40 * k, 1 + k % 40));
    }
    comm.add(batch, end.signal(peer, 0));
    comm.add(batch, end.signal(peer, 1, 3));
    comm.add(batch, end.signal(peer, 0));  // as one with the first
    comm.add(batch, end.wait(peer, 0, 2));
    comm.add(batch, end.wait(peer, 1, 3));
    for (int turn = 0; turn < kTurns; ++turn) {
      end.enqueue(batch);
      // The host and the stream use the same counters.
      end.enqueue(end.signal(peer, 0));
      end.enqueue(end.wait(peer, 0));
      ASSERT_TRUE(end.stream().wait());
      end.run(end.signal(peer, 1, 2));
      end.run(end.wait(peer, 1, 2));
      EXPECT_GE(comm.arrived(end.window(), peer, 0), static_cast<std::uint64_t>(3 * (turn + 1)));
      if (turn == 3) comm.run(batch);
    }
    for (std::size_t k = 0; k < kPuts; ++k) {
      Bytes expected(40);
      const Bytes theirs = pattern(kPuts * 40, peer, 1);
      std::copy_n(theirs.begin() + static_cast<std::ptrdiff_t>(40 * k), 1 + k % 40,
                  expected.begin());
      ASSERT_EQ(end.read(40 * k, 40), expected) << k;
    }
    comm.barrier();
    EXPECT_EQ(comm.arrived(end.window(), peer, 0), std::uint64_t{3 * kTurns + 2});
    EXPECT_EQ(comm.arrived(end.window(), peer, 1), std::uint64_t{5 * kTurns + 3});
    end.free();
    EXPECT_EQ(refusal_of([&] { end.enqueue(batch); }).first, Errc::kInvalidUsage);
  });
  // Two ranks; with STREAM_KERNELS the wait of each turn, too.
  const int expected = 2 * (GetParam().kernels ? 2 * kTurns : kTurns);
  const bool by_kernel = GetParam().net.empty() && !GetParam().in_host;
  EXPECT_EQ(kernels_launched() - before, by_kernel ? expected : 0);
}

// With STREAM_KERNELS; a copy alone, a signal alone and what a kernel cannot do stay as they are.
TEST_P(DeviceWindows, SingleCallsOnAStreamAreKernelsWhereASettingSaysSo) {
  constexpr std::size_t kLong = std::size_t{256} << 10;  // the copy engine's
  ranks(2, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), kLong, 2);
    const int peer = 1 - comm.rank();
    const Buffer source(end.gpu(), pattern(kLong, comm.rank(), 1));
    const auto launches = [&](int expected, const auto& call) {
      comm.barrier();
      const int before = kernels_launched();
      comm.barrier();
      call();
      ASSERT_TRUE(end.stream().wait());
      comm.barrier();
      EXPECT_EQ(kernels_launched() - before, GetParam().kernels ? 2 * expected : 0);
    };
    const auto put_signal = [&](std::size_t bytes) {
      comm.enqueue(std::array{end.put(peer, 0, source.data(), bytes), end.signal(peer)},
                   end.stream().get());
    };
    launches(1, [&] { put_signal(8); });
    launches(1, [&] { end.enqueue(end.wait(peer)); });
    Bytes first = pattern(kLong, peer, 1);
    first.resize(8);
    EXPECT_EQ(end.read(0, 8), first);
    launches(0, [&] { put_signal(kLong); });
    launches(0, [&] { end.enqueue(end.put(peer, 0, source.data(), 8)); });
    launches(0, [&] { end.enqueue(end.signal(peer, 1)); });
    launches(2, [&] {
      end.enqueue(end.wait(peer));
      end.enqueue(end.wait(peer, 1));
    });
    EXPECT_EQ(end.read(0, kLong), pattern(kLong, peer, 1));
    end.free();
  });
}

// More puts and more data than the kernel takes, and what it cannot do.
TEST_P(DeviceWindows, LargeBatchesOnAStream) {
  ranks(2, [&](Communicator& comm) {
    constexpr std::size_t kLong = (std::size_t{200} << 10) + 3;
    constexpr std::size_t kPuts = 200;
    DeviceEnd end(comm, GetParam(), kLong + 2 * kPuts, 40);
    const int peer = 1 - comm.rank();
    const Buffer source(end.gpu(), pattern(kLong + 2 * kPuts, comm.rank(), 5));
    const auto* const from = static_cast<const std::byte*>(source.data());
    Batch puts;
    for (std::size_t k = 0; k < kPuts; ++k) comm.add(puts, end.put(peer, 2 * k, from + 2 * k, 2));
    comm.add(puts, end.put(peer, 2 * kPuts, from + 2 * kPuts, kLong));
    for (int slot = 0; slot < 32; ++slot) comm.add(puts, end.signal(peer, slot));
    for (int slot = 0; slot < 32; ++slot) comm.add(puts, end.wait(peer, slot));
    Batch signals;  // one too many
    for (int slot = 0; slot < 33; ++slot) comm.add(signals, end.signal(peer, slot));
    for (int slot = 0; slot < 33; ++slot) comm.add(signals, end.wait(peer, slot));
    Batch back;  // what comes after a wait
    comm.add(back, end.signal(peer));
    comm.add(back, end.wait(peer));
    comm.add(back, end.put(peer, 0, from + 4, 2));
    comm.add(back, end.signal(peer));
    for (int turn = 0; turn < 2; ++turn) {
      end.enqueue(puts);
      ASSERT_TRUE(end.stream().wait());
      ASSERT_EQ(end.read(0, kLong + 2 * kPuts), pattern(kLong + 2 * kPuts, peer, 5));
      comm.barrier();
      end.enqueue(signals);
      end.enqueue(back);
      end.enqueue(end.wait(peer));
      ASSERT_TRUE(end.stream().wait());
      Bytes expected = pattern(kLong + 2 * kPuts, peer, 5);
      ASSERT_EQ(end.read(0, 2), Bytes(expected.begin() + 4, expected.begin() + 6));
      comm.barrier();
    }
    EXPECT_EQ(comm.arrived(end.window(), peer, 32), 2U);
    EXPECT_EQ(comm.arrived(end.window(), peer, 0), 8U);
    end.free();
  });
}

// A counter that is full refuses the batch before any other one is raised.
TEST_P(DeviceWindows, ABatchThatIsRefusedCountsNothing) {
  ranks(2, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), 8, 2);
    const int peer = 1 - comm.rank();
    const Buffer source(end.gpu(), Bytes(8));
    end.run(end.signal(peer, 1, Window::kMostSignals - 1));
    Batch batch;
    comm.add(batch, end.put(peer, 0, source.data(), 8));
    comm.add(batch, end.signal(peer, 0));
    comm.add(batch, end.signal(peer, 1));
    end.enqueue(batch);
    const std::pair<Errc, std::string> full = refusal_of([&] { end.enqueue(batch); });
    EXPECT_EQ(full.first, Errc::kInvalidArgument) << full.second;
    ASSERT_TRUE(end.stream().wait());
    end.run(end.signal(peer, 0));
    end.run(end.wait(peer, 0, 2));
    comm.barrier();
    if (GetParam().net.empty()) {
      EXPECT_EQ(comm.arrived(end.window(), peer, 0), 2U);
    }
    end.free();
  });
}

// The tables of a batch that kernels launch, read back from the GPU.
TEST_P(DeviceWindows, ABatchForKernelsSaysWhereEverythingGoes) {
  if (GetParam().in_host) GTEST_SKIP() << "such batches are for threads of the host";
  ranks(2, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), 1000, 2);
    const int peer = 1 - comm.rank();
    const Buffer source(end.gpu(), Bytes(400));
    const auto* const from = static_cast<const std::byte*>(source.data());
    end.run(end.signal(peer, 1, 5));
    end.run(end.wait(peer, 1, 5));
    Batch batch;
    for (std::size_t k = 0; k < 4; ++k) comm.add(batch, end.put(peer, 100 * k, from + 100 * k, 90));
    comm.add(batch, end.signal(peer, 1, 2));
    comm.add(batch, end.signal(peer, 1));
    comm.add(batch, end.wait(peer, 1));
    const rwDeviceBatch device = comm.device_batch(batch);
    EXPECT_EQ(comm.device_batch(batch).puts, device.puts);  // made once
    ASSERT_EQ(device.num_puts, 4U);
    ASSERT_EQ(device.num_signals, 1U);
    ASSERT_EQ(device.num_waits, 1U);
    EXPECT_NE(device.may_fail, 0U);
    // 90 bytes are six times sixteen; what a link carries one thread asks for.
    EXPECT_EQ(device.lanes, GetParam().net.empty() ? 8U : 1U);
    std::array<rwDeviceBatchPut, 4> puts{};
    std::array<rwDeviceBatchCount, 2> counts{};
    const auto fetch = [&](void* to, const void* here, std::size_t bytes) {
      end.gpu().fetch(to, reinterpret_cast<gpus::CuPointer>(here), bytes);
    };
    fetch(puts.data(), device.puts, sizeof puts);
    fetch(&counts[0], device.signals, sizeof counts[0]);
    fetch(&counts[1], device.waits, sizeof counts[1]);
    const message::Part& part = end.window().part(peer);
    EXPECT_EQ(part.mapped, GetParam().net.empty());
    for (std::size_t k = 0; k < 4; ++k) {
      EXPECT_EQ(puts[k].to,
                part.mapped ? reinterpret_cast<unsigned char*>(part.data) + 100 * k : nullptr);
      EXPECT_EQ(puts[k].from, reinterpret_cast<const unsigned char*>(from) + 100 * k);
      EXPECT_EQ(puts[k].bytes, 90U);
      EXPECT_EQ(puts[k].offset, 100 * k);
      EXPECT_EQ(puts[k].peer, peer);
    }
    const auto address = [](const std::uint64_t* word) {
      return reinterpret_cast<std::uint64_t>(word);
    };
    EXPECT_EQ(counts[0].count, 3U);
    EXPECT_EQ(counts[1].count, 1U);
    EXPECT_EQ(address(counts[1].word), end.window().arrivals_on_gpu(peer, 1));
    if (part.mapped) {
      EXPECT_EQ(address(counts[0].word), end.window().counter_on_gpu(peer, comm.rank(), 1));
      EXPECT_EQ(address(counts[0].host_word), end.window().counter_in_host(peer, comm.rank(), 1));
    } else {
      EXPECT_EQ(counts[0].word, nullptr);
    }
    for (const rwDeviceBatchCount& each : counts) {
      std::uint64_t counted = 0;
      fetch(&counted, each.counted, sizeof counted);
      EXPECT_EQ(counted, 5U);  // kernels go on from there
      rwDeviceWindow window{};
      fetch(&window, each.window, sizeof window);
      EXPECT_EQ(window.number, end.window().number());
    }
    // What a kernel cannot read.
    const Bytes pageable(8);
    Batch other;
    comm.add(other, end.put(peer, 0, pageable.data(), 8));
    EXPECT_EQ(refusal_of([&] { (void)comm.device_batch(other); }).first, Errc::kInvalidArgument);
    comm.barrier();
    end.free();
  });
}

// A kernel of the stand-in (tests/stand_ins/cuda.cc), of one thread: launch() of device.cuh.
struct HostKernel {
  using Find = void* (*)(const void* context, gpus::CuPointer address, std::size_t bytes);
  std::size_t argument_bytes;
  void (*run)(void* argument, Find find, const void* context);
};
void launch_by_trigger(void* argument, HostKernel::Find find, const void* context) {
  auto& trigger = *static_cast<rwDeviceTrigger*>(argument);
  trigger.word = static_cast<std::uint64_t*>(
      find(context, reinterpret_cast<gpus::CuPointer>(trigger.word), sizeof *trigger.word));
  device::launch(device::Thread{}, trigger);
}

// A stream's write, or a kernel on it, stores the trigger.
void store(const message::StreamCalls::Trigger& trigger, const gpus::Gpu& gpu,
           const TestStream& stream, bool by_kernel) {
  const gpus::CudaApi& cuda = gpu.cuda();
  const gpus::CurrentContext current(cuda, gpu.context());
  if (!by_kernel) {
    cuda.check(cuda.stream_write64(stream.get(), trigger.word, trigger.value, 0), "a trigger");
    return;
  }
  static constexpr HostKernel kKernel{sizeof(rwDeviceTrigger), launch_by_trigger};
  struct {
    std::array<unsigned, 7> sizes{1, 1, 1, 1, 1, 1, 0};
    gpus::CuStream stream = nullptr;
  } config;
  config.stream = stream.get();
  // NOLINTNEXTLINE(performance-no-int-to-ptr)
  rwDeviceTrigger given{reinterpret_cast<std::uint64_t*>(trigger.word), trigger.value};
  std::array<void*, 1> arguments{&given};
  cuda.check(cuda.launch(&config, const_cast<HostKernel*>(&kKernel), arguments.data(), nullptr),
             "cuLaunchKernelEx");
}

TEST_P(DeviceWindows, AnArmedBatchBeginsWithItsTrigger) {
  ranks(2, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), 100);
    const TestStream other(end.gpu());
    const int peer = 1 - comm.rank();
    const Buffer source(end.gpu(), pattern(100, comm.rank(), 3));
    Batch batch;
    EXPECT_EQ(refusal_of([&] { (void)comm.arm(batch, end.stream().get()); }).first,
              Errc::kInvalidUsage);
    comm.add(batch, end.put(peer, 0, source.data(), 100));
    comm.add(batch, end.signal(peer));
    for (int turn = 0; turn < 3; ++turn) {
      const message::StreamCalls::Trigger trigger = comm.arm(batch, end.stream().get());
      end.enqueue(end.wait(peer));
      comm.barrier();
      EXPECT_FALSE(end.stream().idle());
      EXPECT_EQ(comm.arrived(end.window(), peer, 0), static_cast<std::uint64_t>(turn));
      comm.barrier();
      store(trigger, end.gpu(), other, turn != 1);
      ASSERT_TRUE(end.stream().wait());
      EXPECT_EQ(end.read(0, 100), pattern(100, peer, 3));
      comm.barrier();
    }
    end.free();
  });
}

// Streams and host threads signal and wait across.
TEST_P(DeviceWindows, StreamsAndTheHostMeet) {
  ranks(2, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), 64);
    const int peer = 1 - comm.rank();
    const Buffer source(end.gpu(), pattern(64, comm.rank(), 0));
    for (int turn = 0; turn < 10; ++turn) {
      if ((turn + comm.rank()) % 2 == 0) {
        end.enqueue(end.put(peer, 0, source.data(), 64));
        end.enqueue(end.signal(peer));
        end.run(end.wait(peer));
        ASSERT_TRUE(end.stream().wait());
      } else {
        end.enqueue(end.wait(peer));
        ASSERT_TRUE(end.stream().wait());
        ASSERT_EQ(end.read(0, 64), pattern(64, peer, 0));
        end.run(end.signal(peer));
      }
      comm.barrier();
    }
    end.free();
  });
}

TEST_P(DeviceWindows, WhatCannotBeRightIsRefused) {
  ranks(2, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), 100, 2);
    const int peer = 1 - comm.rank();
    const Buffer source(end.gpu(), Bytes(60));
    const Bytes pageable(60);
    const auto code = [&](const OperationSpec& spec) {
      return refusal_of([&] { end.enqueue(spec); });
    };
    EXPECT_EQ(code(end.put(peer, 41, source.data(), 60)).first, Errc::kInvalidArgument);
    const std::pair<Errc, std::string> wrong = code(end.put(peer, 0, pageable.data(), 60));
    EXPECT_EQ(wrong.first, Errc::kInvalidArgument);
    EXPECT_NE(wrong.second.find("neither memory of a GPU nor pinned"), std::string::npos)
        << wrong.second;
    EXPECT_EQ(code(end.signal(peer, 2)).first, Errc::kInvalidArgument);
    EXPECT_EQ(code(end.put(7, 0, source.data(), 60)).first, Errc::kInvalidArgument);
    // In the host's memory that nobody pinned: signals go, data does not.
    WindowSpec host;
    Bytes unpinned(100);
    host.registers = true;
    host.memory = unpinned.data();
    host.bytes = unpinned.size();
    Window& other = comm.create_window(host);
    OperationSpec spec = end.put(comm.rank(), 0, source.data(), 60);
    spec.window = &other;
    const std::pair<Errc, std::string> there = code(spec);
    EXPECT_EQ(there.first, Errc::kInvalidUsage);
    EXPECT_NE(there.second.find("memory that is not pinned"), std::string::npos) << there.second;
    spec = end.signal(comm.rank());
    spec.window = &other;
    end.enqueue(spec);
    EXPECT_TRUE(end.stream().wait());
    EXPECT_EQ(comm.arrived(other, comm.rank(), 0), 1U);
    // Streams of one GPU use it.
    const TestStream foreign(comm.runtime().gpus().at(1 - end.gpu().ordinal()));
    const std::pair<Errc, std::string> elsewhere = refusal_of([&] {
      comm.enqueue({&spec, 1}, foreign.get());
    });
    EXPECT_EQ(elsewhere.first, Errc::kInvalidUsage);
    EXPECT_NE(elsewhere.second.find("whose streams use the window"), std::string::npos)
        << elsewhere.second;
    comm.free_window(other);
    host = {};
    host.bytes = 8;
    // Kinds that differ.
    const std::pair<Errc, std::string> mixed = refusal_of(
        [&] { (void)comm.create_window(host, comm.rank() == 0 ? 0 : Communicator::kHostMemory); });
    EXPECT_EQ(mixed.first, Errc::kInvalidUsage) << mixed.second;
    const std::pair<Errc, std::string> unknown =
        refusal_of([&] { (void)comm.create_window(host, comm.rank() == 1 ? 9 : 0); });
    EXPECT_EQ(unknown, std::pair(Errc::kInvalidArgument,
                                 std::string("rank 1: device: 9 is not one of the 2 GPUs")));
    // While a stream holds something of it. (The memory of the refused windows is gone everywhere:
    // freeing memory waits for streams.)
    comm.barrier();
    end.enqueue(end.wait(peer));
    const std::pair<Errc, std::string> held = refusal_of([&] { end.free(); });
    EXPECT_EQ(held.first, Errc::kInvalidUsage) << held.second;
    comm.barrier();
    end.run(end.signal(peer));
    ASSERT_TRUE(end.stream().wait());
    end.free();
    EXPECT_EQ(code(end.signal(peer)).first, Errc::kInvalidUsage);
  });
}

// The window stays as it was: the host uses it, and the next stream tries again.
TEST_P(DeviceWindows, OneThatCudaDoesNotRegisterServesTheHost) {
  if (!GetParam().in_host) GTEST_SKIP() << "windows in GPU memory have their counters registered";
  const gpus::testing::StandIn driver;
  ranks(2, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), 64);  // whose streams use a window of their own
    WindowSpec spec;
    spec.bytes = 8;
    Window& window = comm.create_window(spec);
    OperationSpec signal = end.signal(1 - comm.rank());
    signal.window = &window;
    comm.barrier();
    driver.configure("refuse=cuMemHostRegister_v2:2");
    const std::pair<Errc, std::string> told = refusal_of([&] { end.enqueue(signal); });
    EXPECT_EQ(told.first, Errc::kCuda);
    EXPECT_NE(told.second.find("cuMemHostRegister"), std::string::npos) << told.second;
    comm.barrier();
    driver.configure("");
    comm.barrier();
    end.run(signal);
    end.enqueue(signal);
    OperationSpec wait = end.wait(1 - comm.rank(), 0, 2);
    wait.window = &window;
    end.run(wait);
    EXPECT_TRUE(end.stream().wait());
    comm.free_window(window);
    end.free();
  });
}

// Every wait of a stream ends, and soon.
TEST_P(DeviceWindows, AStreamsWaitEndsByItsDeadline) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime_);
      DeviceEnd end(*comm, GetParam(), 8);
      comm->barrier();
      if (r == 0) comm->set_timeout(std::chrono::milliseconds(200));
      end.enqueue(end.wait(1 - r));
      end.enqueue(end.wait(1 - r));
      EXPECT_TRUE(end.stream().wait(std::chrono::seconds(5)));
      try {
        end.run(end.signal(1 - r));
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), r == 0 ? Errc::kTimeout : Errc::kPeerLost) << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Of two waits of a batch the second one's signal does not come.
TEST_P(DeviceWindows, ABatchsWaitEndsByItsDeadlineAndSaysWhich) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime_);
      DeviceEnd end(*comm, GetParam(), 8, 3);
      const Buffer source(end.gpu(), Bytes(8));
      comm->barrier();
      Batch batch;
      comm->add(batch, end.put(1 - r, 0, source.data(), 8));
      comm->add(batch, end.signal(1 - r, 0));
      comm->add(batch, end.wait(1 - r, 0));
      comm->add(batch, end.wait(1 - r, 2));
      comm->add(batch, end.wait(1 - r, 1));
      if (r == 0) {
        // What the other rank signals has come, however late, before the time counts.
        while (comm->arrived(end.window(), 1, 0) == 0) std::this_thread::yield();
        comm->set_timeout(std::chrono::milliseconds(200));
      }
      end.enqueue(batch);
      EXPECT_TRUE(end.stream().wait(std::chrono::seconds(5)));
      try {
        end.enqueue(batch);
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), r == 0 ? Errc::kTimeout : Errc::kPeerLost) << error.what();
        if (r == 0) {
          EXPECT_THAT(error.what(), ::testing::HasSubstr("slot 2"));
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DeviceWindows, AnAbortEndsAStreamsWait) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::latch ready(2);  // an abort also ends a call whose other rank is done
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime_);
      DeviceEnd end(*comm, GetParam(), 1 << 20);
      comm->barrier();
      if (r == 1) {
        ready.arrive_and_wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
        comm->abort("enough");
        return;
      }
      end.enqueue(end.wait(1));
      Batch batch;
      comm->add(batch, end.signal(0));
      comm->add(batch, end.signal(1));
      comm->add(batch, end.wait(1));
      end.enqueue(batch);
      ready.arrive_and_wait();
      EXPECT_TRUE(end.stream().wait(std::chrono::seconds(5)));
      EXPECT_THROW(end.enqueue(end.wait(1)), Error);
      EXPECT_THROW(end.enqueue(batch), Error);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// A trigger may come as late as the program pleases: no deadline ends the wait for it, but what
// breaks the communicator does.
TEST_P(DeviceWindows, AnAbortEndsTheWaitForATrigger) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::latch ready(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime_);
      DeviceEnd end(*comm, GetParam(), 8);
      comm->barrier();
      if (r == 1) {
        ready.arrive_and_wait();
        comm->abort("enough");
        return;
      }
      comm->set_timeout(std::chrono::milliseconds(50));
      Batch batch;
      comm->add(batch, end.signal(1));
      (void)comm->arm(batch, end.stream().get());
      EXPECT_FALSE(end.stream().wait(std::chrono::milliseconds(500)));
      ready.arrive_and_wait();
      EXPECT_TRUE(end.stream().wait(std::chrono::seconds(5)));
      try {
        (void)comm->arm(batch, end.stream().get());
        ADD_FAILURE() << "no error";
      } catch (const Error& error) {
        EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 1 aborted")) << error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Who leaves in order waits for what streams hold, until the deadline.
TEST_P(DeviceWindows, LeavingWaitsForATriggerUntilTheDeadline) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::latch ended(2);
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime_);
      DeviceEnd end(*comm, GetParam(), 8);
      comm->barrier();
      if (r == 0) {
        comm->set_timeout(std::chrono::milliseconds(200));
        Batch batch;
        comm->add(batch, end.signal(1));
        (void)comm->arm(batch, end.stream().get());
        try {
          comm->finalize();
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Errc::kTimeout) << error.what();
        }
        EXPECT_TRUE(end.stream().wait(std::chrono::seconds(5)));
      }
      ended.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// What is asked of a stream for a rank that left is refused without effect, also what was prepared
// before; a wait for its signals ends.
TEST_P(DeviceWindows, ARankThatLeftIsNamedAndStreamsGoOn) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::latch exchanged(2);
  std::latch ended(3);
  std::vector<std::thread> threads;
  for (int r = 0; r < 3; ++r) {
    threads.emplace_back([&, r] {
      const std::unique_ptr<Communicator> comm = Communicator::join(id, r, 3, runtime_);
      DeviceEnd end(*comm, GetParam(), 200);
      const Buffer source(end.gpu(), pattern(100, r, 1));
      Batch batch;
      if (r != 2) {
        comm->add(batch,
                  end.put(2, std::size_t{100} * static_cast<std::size_t>(r), source.data(), 100));
        comm->add(batch, end.signal(2));
        end.enqueue(batch);
        EXPECT_TRUE(end.stream().wait());
        end.run(end.flush(2));
      }
      comm->barrier();
      if (r == 2) {
        comm->finalize();
        ended.arrive_and_wait();
        return;
      }
      const int peer = 1 - r;
      EXPECT_EQ(refusal_of([&] { end.run(end.wait(2)); }).first, Errc::kPeerLost);
      const auto expect_left = [&](const std::function<void()>& call) {
        const std::pair<Errc, std::string> refusal = refusal_of(call);
        EXPECT_EQ(refusal.first, Errc::kPeerLost) << refusal.second;
        EXPECT_THAT(refusal.second, ::testing::HasSubstr("rank 2 left"));
      };
      for (const OperationSpec& spec :
           {end.put(2, 0, source.data(), 100), end.get(2, 0, source.data(), 100), end.signal(2),
            end.flush(2)}) {
        expect_left([&] { end.enqueue(spec); });
      }
      expect_left([&] { end.enqueue(batch); });
      expect_left([&] { (void)comm->arm(batch, end.stream().get()); });
      // The others go on.
      end.enqueue(end.put(peer, 0, source.data(), 100));
      end.enqueue(end.signal(peer));
      end.enqueue(end.wait(peer));
      EXPECT_TRUE(end.stream().wait());
      EXPECT_EQ(end.read(0, 100), pattern(100, peer, 1));
      exchanged.arrive_and_wait();
      if (r == 0) {
        end.enqueue(end.wait(2));
        EXPECT_TRUE(end.stream().wait(std::chrono::seconds(5)));
        try {
          end.run(end.signal(peer));
          ADD_FAILURE() << "no error";
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Errc::kPeerLost) << error.what();
          EXPECT_THAT(error.what(), ::testing::HasSubstr("rank 2 left"));
        }
      }
      ended.arrive_and_wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_P(DeviceWindows, ACommunicatorThatEndsEndsItsStreamsWaits) {
  const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
  std::latch enqueued(2);  // a communicator that ends ends its peers' calls
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      std::unique_ptr<Communicator> comm = Communicator::join(id, r, 2, runtime_);
      DeviceEnd end(*comm, GetParam(), 8);
      comm->barrier();
      Batch batch;
      comm->add(batch, end.signal(1 - r));
      (void)comm->arm(batch, end.stream().get());
      end.enqueue(end.wait(1 - r));
      end.enqueue(end.signal(r));
      Batch another;
      comm->add(another, end.signal(r));
      comm->add(another, end.signal(1 - r));
      comm->add(another, end.wait(1 - r));
      end.enqueue(another);
      enqueued.arrive_and_wait();
      comm.reset();
      EXPECT_TRUE(end.stream().wait(std::chrono::seconds(5)));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Device memory, handles, pinned memory, streams and events: of windows that were freed, and of
// communicators that ended.
TEST_P(DeviceWindows, NothingIsLeftOfWindowsThatWereFreed) {
  const gpus::testing::StandIn driver;
  std::string of_first;
  for (int turn = 0; turn < 2; ++turn) {
    ranks(2, [&](Communicator& comm) {
      const int peer = 1 - comm.rank();
      const auto use_one = [&](std::size_t number) {
        const std::size_t bytes = 10'000 + 5'000 * number;
        DeviceEnd end(comm, GetParam(), bytes, 3);
        const Buffer source(end.gpu(), pattern(bytes, comm.rank(), 1));
        WindowSpec spec;
        spec.queue_bytes = 1000;
        Window& queues = comm.create_window(spec, end.gpu().ordinal());
        Batch batch;
        comm.add(batch, end.put(peer, 0, source.data(), bytes));
        comm.add(batch, end.signal(peer));
        comm.add(batch, end.wait(peer));
        end.enqueue(batch);
        end.enqueue(end.put(peer, 0, source.data(), bytes));
        end.enqueue(end.signal(peer, 1));
        end.enqueue(end.wait(peer, 1));
        (void)comm.device_window(end.window());
        Batch for_kernels;
        comm.add(for_kernels, end.put(peer, 0, source.data(), 8));
        (void)comm.device_batch(for_kernels);
        EXPECT_TRUE(end.stream().wait());
        end.run(end.signal(peer, 2));
        end.run(end.wait(peer, 2));
        comm.free_window(queues);
        end.free();
      };
      const auto held = [&] {
        comm.barrier();
        const std::string now = driver.held();
        comm.barrier();
        return now;
      };
      for (std::size_t k = 0; k < 2; ++k) use_one(k);
      const std::string then = held();
      for (std::size_t k = 0; k < 100; ++k) use_one(k % 10);
      EXPECT_EQ(held(), then);
    });
    if (turn == 0) of_first = driver.held();
  }
  EXPECT_EQ(driver.held(), of_first);
}

// As RandomProgram of windows_test.cc: each rank owns a region of every window, which it alone
// writes. One stream of each rank, and its host, take turns; the host waits for the stream before.
TEST_P(DeviceWindows, RandomProgramsDoWhatAModelDoes) {
  constexpr std::size_t kRegion = 3000;
  constexpr unsigned kPrograms = 25;
  const ropewalk::testing::Seeds seeds =
      ropewalk::testing::chosen_seeds().value_or(ropewalk::testing::Seeds{0, kPrograms});
  for (const int size : {2, 3}) {
    ranks(size, [&](Communicator& comm) {
      const auto n = static_cast<std::size_t>(size);
      DeviceEnd end(comm, GetParam(), kRegion * n, 3);
      const auto self = static_cast<std::size_t>(comm.rank());
      // To the end of a program: freeing GPU memory waits for the streams of all ranks.
      std::vector<std::unique_ptr<Buffer>> buffers;
      for (unsigned seed = seeds.first; seed < seeds.end; ++seed) {
        std::mt19937 random(seed);
        const auto any = [&](std::size_t most) { return random() % most; };
        comm.barrier();
        buffers.clear();
        end.fill(Bytes(kRegion * n));
        comm.barrier();
        std::vector<std::vector<Bytes>> model(n, std::vector<Bytes>(n, Bytes(kRegion)));
        for (int round = 0; round < 2; ++round) {
          std::vector<std::vector<std::uint64_t>> signals(n, std::vector<std::uint64_t>(n, 0));
          std::vector<std::pair<const Buffer*, Bytes>> gets;
          for (std::size_t source = 0; source < n; ++source) {
            const bool mine = source == self;
            Batch batch;
            // Host, stream, a batch on a stream; a batch of puts and signals that is one kernel,
            // launched twice.
            const std::size_t form = any(4);
            const std::uint64_t launches = form == 3 ? 2 : 1;
            const auto give = [&](const OperationSpec& spec) {
              if (form == 0) {
                end.run(spec);
              } else if (form == 1) {
                end.enqueue(spec);
              } else {
                comm.add(batch, spec);
              }
            };
            const std::size_t operations = 1 + any(8);
            for (std::size_t k = 0; k < operations; ++k) {
              const std::size_t target = any(n);
              const int peer = static_cast<int>(target);
              std::size_t bytes = std::array{any(9), any(200), any(kRegion)}[any(3)];
              std::size_t offset = any(kRegion - bytes + 1);
              if (form == 3) {
                // Puts that do not overlap, as there are at most eight of them.
                constexpr std::size_t kSlice = kRegion / 8;
                bytes %= kSlice;
                offset = k % 8 * kSlice + offset % (kSlice - bytes);
              }
              Bytes& there = model[source][target];
              switch (any(form == 3 ? 3 : 5)) {
                case 0:
                case 1: {
                  const Bytes data =
                      pattern(bytes, static_cast<int>(source), static_cast<int>(any(1000)));
                  std::ranges::copy(data, there.begin() + static_cast<std::ptrdiff_t>(offset));
                  if (!mine) break;
                  buffers.push_back(std::make_unique<Buffer>(end.gpu(), data));
                  give(end.put(peer, source * kRegion + offset, buffers.back()->data(), bytes));
                  break;
                }
                case 2: {
                  const std::uint64_t count = 1 + any(3);
                  signals[source][target] += count * launches;
                  if (mine) give(end.signal(peer, 0, count));
                  break;
                }
                case 3: {
                  if (!mine) break;
                  buffers.push_back(std::make_unique<Buffer>(end.gpu(), Bytes(bytes)));
                  const auto from = there.begin() + static_cast<std::ptrdiff_t>(offset);
                  gets.emplace_back(buffers.back().get(),
                                    Bytes(from, from + static_cast<std::ptrdiff_t>(bytes)));
                  give(end.get(peer, source * kRegion + offset, buffers.back()->data(), bytes));
                  // Until it has ended no put may change what it reads.
                  give(end.flush(peer));
                  break;
                }
                default:
                  if (mine) give(end.flush(peer));
                  break;
              }
            }
            for (std::size_t target = 0; target < n; ++target) {
              signals[source][target] += launches;
              if (mine) give(end.signal(static_cast<int>(target), 0));
            }
            for (std::uint64_t k = 0; mine && form > 1 && k < launches; ++k) end.enqueue(batch);
          }
          // By the host, by the stream, or at the end of a batch.
          const std::size_t waits_by = any(3);
          Batch waits;
          for (int peer = 0; peer < size; ++peer) {
            if (waits_by == 2) comm.add(waits, end.signal(peer, 1));
          }
          for (std::size_t source = 0; source < n; ++source) {
            const OperationSpec wait = end.wait(static_cast<int>(source), 0, signals[source][self]);
            if (waits_by == 2) {
              comm.add(waits, wait);
            } else if (waits_by == 1) {
              end.enqueue(wait);
            } else {
              end.run(wait);
            }
          }
          if (waits_by == 2) {
            // As all ranks do.
            for (int peer = 0; peer < size; ++peer) comm.add(waits, end.wait(peer, 1));
            end.enqueue(waits);
          }
          ASSERT_TRUE(end.stream().wait());
          for (const auto& [seen, expected] : gets) ASSERT_EQ(seen->read(), expected) << seed;
          for (std::size_t source = 0; source < n; ++source) {
            ASSERT_EQ(end.read(source * kRegion, kRegion), model[source][self])
                << "seed " << seed << " from rank " << source;
          }
          for (int peer = 0; peer < size; ++peer) end.run(end.signal(peer, 2));
          for (int peer = 0; peer < size; ++peer) end.run(end.wait(peer, 2));
        }
      }
      end.free();
    });
  }
}

TEST_P(DeviceWindows, QueuesLieWhereBothSidesReachThem) {
  ranks(3, [&](Communicator& comm) {
    gpus::Gpu& gpu = comm.runtime().gpus().at(GetParam().one_gpu ? 0 : comm.rank() % 2);
    WindowSpec spec;
    spec.slots = 2;
    spec.queue_bytes = 1000;
    Window& window = comm.create_window(spec, gpu.ordinal());
    const message::KernelQueues& queues = *window.queues();
    EXPECT_EQ(queues.lines(), 256U);
    ASSERT_EQ(queues.queues().size(), 6U);
    EXPECT_EQ(queues.carried(), !GetParam().net.empty());
    // No two rings or words of them share memory.
    constexpr std::uint64_t kRing = std::uint64_t{256} * 16;
    std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;
    for (const rwDeviceQueue& queue : queues.queues()) {
      for (const auto& [memory, bytes] : {std::pair<const void*, std::uint64_t>{queue.out, kRing},
                                          {queue.in, kRing},
                                          {queue.out_taken, 64},
                                          {queue.in_taken, 64}}) {
        ASSERT_NE(memory, nullptr);
        ranges.emplace_back(reinterpret_cast<std::uint64_t>(memory), bytes);
      }
    }
    std::ranges::sort(ranges);
    for (std::size_t k = 1; k < ranges.size(); ++k) {
      // A rank's queue to itself has both its ends in one ring.
      if (ranges[k] == ranges[k - 1]) continue;
      ASSERT_LE(ranges[k - 1].first + ranges[k - 1].second, ranges[k].first);
    }
    const rwDeviceWindow device = comm.device_window(window);
    EXPECT_EQ(device.log2_lines, 8U);
    EXPECT_EQ(device.num_entries > 0, !GetParam().net.empty());
    EXPECT_NE(device.queues, nullptr);
    // There is nothing to put to.
    const std::uint64_t word = 0;
    OperationSpec put;
    put.kind = OperationKind::kPut;
    put.window = &window;
    put.source = reinterpret_cast<const std::byte*>(&word);
    put.bytes = sizeof word;
    EXPECT_NE(refusal_of([&] { comm.run(put); }).second, "");
    comm.free_window(window);
  });
}

TEST_P(DeviceWindows, MessagesOfStreamsThatCannotBeRight) {
  ranks(2, [&](Communicator& comm) {
    DeviceEnd end(comm, GetParam(), 64);
    WindowSpec spec;
    spec.queue_bytes = 512;
    Window& queues = comm.create_window(spec, end.gpu().ordinal());
    Window& of_host = comm.create_window(spec);
    const Buffer data(end.gpu(), Bytes(8));
    const auto told = [&](Window& window, int peer, int slot) {
      return refusal_of([&] {
               comm.enqueue({&window, true, peer, slot, data.data(), 8}, end.stream().get());
             })
          .second;
    };
    EXPECT_THAT(told(end.window(), 1 - comm.rank(), 0), ::testing::HasSubstr("has no queues"));
    EXPECT_THAT(told(queues, 2, 0), ::testing::HasSubstr("peer: 2"));
    EXPECT_THAT(told(queues, 1 - comm.rank(), 1), ::testing::HasSubstr("slot: 1"));
    EXPECT_THAT(told(of_host, 1 - comm.rank(), 0),
                ::testing::HasSubstr("queues are in the host's memory"));
    // The stand-in's GPUs run no kernels.
    EXPECT_THAT(told(queues, 1 - comm.rank(), 0), ::testing::HasSubstr("it needs kernels"));
    comm.free_window(of_host);
    comm.free_window(queues);
    EXPECT_THAT(told(queues, 1 - comm.rank(), 0), ::testing::HasSubstr("was freed"));
    end.free();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, DeviceWindows, ::testing::ValuesIn(testing::device_kinds()),
                         [](const ::testing::TestParamInfo<DeviceKind>& each) {
                           return each.param.name;
                         });

}  // namespace
}  // namespace ropewalk::comm
