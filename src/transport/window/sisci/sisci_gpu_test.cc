// GPU memory over PCIe bridges: the driver on the software libsisci and a stand-in for CUDA's
// library. Which paths messages take, and what is done about each thing that goes wrong.
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/testing/share.h"
#include "transport/window/device/gpu.h"
#include "transport/window/device/testing/on_device.h"
#include "transport/window/device/testing/stand_in.h"
#include "transport/window/sisci/memory.h"
#include "transport/window/sisci/testing/ends.h"
#include "transport/window/sisci/testing/fabric.h"

namespace ropewalk::transport::window::sisci {
namespace {

using testing::Ends;
using testing::Settings;
using testing::words_of;
using Where = window::testing::Memory;
using window::testing::GuardedBuffer;
using window::testing::numbered;
using window::testing::StandIn;
using window::testing::TestGpus;

const std::string kCuda = std::string("cuda_library ") + RW_STAND_IN_CUDA + "\n";
constexpr std::size_t kMost = 3'000'001;
// Ranges of GPU memory that the software bridges keep: scratch on each GPU.
constexpr int kOfTheBridges = 2;

/// Without what tests before it left in the stand-in, where they ran in this process.
void alone_with_gpus(const std::string& fabric_settings,
                     const std::function<void(const SoftwareFabric&)>& body) {
  testing::alone(fabric_settings, [&](const SoftwareFabric& fabric) {
    StandIn().restart();
    body(fabric);
  });
}

const char* name_of(Where memory) { return memory == Where::kHost ? "host memory" : "GPU memory"; }

/// Registered memory of one end, of any kind.
class Buffer {
 public:
  template <typename Connection>
  Buffer(Where memory, Gpu& gpu, std::size_t room, Connection& connection) {
    if (memory == Where::kHost) {
      host_.resize(room);
      registration_ = connection.register_memory(host_.data(), room, MemoryKind::kHost);
    } else {
      device_ = std::make_unique<GuardedBuffer>(gpu, room, memory, connection);
    }
  }
  [[nodiscard]] void* data() {
    return device_ ? static_cast<void*>(device_->data()) : host_.data();
  }
  [[nodiscard]] Registration* registration() const {
    return device_ ? device_->registration() : registration_.get();
  }
  void fill(const std::vector<char>& from) {
    if (device_) {
      device_->fill(from.data(), from.size());
    } else {
      std::copy(from.begin(), from.end(), host_.begin());
    }
  }
  void fetch(std::vector<char>& to) {
    if (device_) {
      device_->fetch(to.data(), to.size());
    } else {
      std::copy_n(host_.begin(), to.size(), to.begin());
    }
  }

 private:
  std::vector<char> host_;
  std::unique_ptr<Registration> registration_;
  std::unique_ptr<GuardedBuffer> device_;
};

Settings with_cuda(Settings settings) {
  settings.insert(settings.begin(), {"CUDA_LIBRARY", RW_STAND_IN_CUDA});
  return settings;
}

/// Both ends with GPUs: the sender's memory on the first, the receiver's on the second.
class GpuEnds : public Ends {
 public:
  explicit GpuEnds(const SoftwareFabric& fabric, const Settings& settings = {})
      : Ends(fabric, with_cuda(settings)) {}
  Buffer source(Where memory, std::size_t room = kMost) {
    return {memory, gpus.gpus.at(0), room, *sender};
  }
  Buffer destination(Where memory, std::size_t room = kMost) {
    return {memory, gpus.gpus.at(1), room, *receiver};
  }
  // @return whether what came is what was sent
  bool move(Buffer& from, Buffer& to, std::size_t bytes) {
    const std::vector<char> out = numbered(bytes, ++turn_);
    std::vector<char> in(bytes, 'x');
    from.fill(out);
    to.fill(in);
    const ReceiveBuffer buffer{to.data(), bytes, 0, to.registration()};
    const auto receive = receiver->receive({&buffer, 1});
    finish(from.data(), bytes, from.registration(), *receive);
    to.fetch(in);
    return in == out;
  }
  void finish(const void* data, std::size_t bytes, Registration* registration, Request& receive) {
    std::unique_ptr<Request> send;
    bool sent = false;
    bool received = false;
    until([&] {
      if (!send) send = sender->send(data, bytes, 0, registration);
      received = received || receive.test();
      sent = sent || (send && send->test());
      return sent && received;
    });
  }
  // Several sizes, twice.
  bool move_all(Where from, Where to) {
    Buffer source_buffer = source(from);
    Buffer destination_buffer = destination(to);
    for (int round = 0; round < 2; ++round) {
      for (const std::size_t bytes :
           {0UL, 1UL, 8UL, 100UL, 4096UL, 65'536UL, 65'537UL, 1'048'577UL, kMost}) {
        if (!move(source_buffer, destination_buffer, bytes)) return false;
      }
    }
    return true;
  }
  [[nodiscard]] bool uses(Where from, Where to) const {
    return logged(std::string("DMA from ") + name_of(from) + " into " + name_of(to) + " is used");
  }

  StandIn stand_in;
  TestGpus gpus{RW_STAND_IN_CUDA};

 private:
  std::size_t turn_ = 0;
};

constexpr std::pair<Where, Where> kPairs[] = {
    {Where::kAllocator, Where::kAllocator}, {Where::kVirtual, Where::kVirtual},
    {Where::kAllocator, Where::kVirtual},   {Where::kVirtual, Where::kHost},
    {Where::kAllocator, Where::kHost},      {Where::kHost, Where::kAllocator},
    {Where::kHost, Where::kVirtual},        {Where::kHost, Where::kHost}};

// ---- paths ---------------------------------------------------------------------------------

TEST(SisciGpu, StatesGpuMemory) {
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    GpuEnds ends(fabric);
    CHECK_THAT(ends.transport().properties(0).memory_kinds == 3);
  });
}

TEST(SisciGpu, EveryPairOfMemoriesGoesByDma) {
  for (const char* verify : {"connect", "all", "off"}) {
    if (ropewalk::testing::share() > 1 && std::string(verify) != "connect") continue;
    for (const auto& [from, to] : kPairs) {
      alone_with_gpus(kCuda, [&, pair = std::pair(from, to)](const SoftwareFabric& fabric) {
        GpuEnds ends(fabric, {{"VERIFY", verify}});
        ends.connect();
        CHECK_THAT(ends.move_all(pair.first, pair.second));
        if (std::string(verify) == "off" || pair == std::pair(Where::kHost, Where::kHost)) return;
        CHECK_THAT(ends.uses(pair.first, pair.second));
      });
    }
  }
}

TEST(SisciGpu, OneConnectionTakesAllPairs) {
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    GpuEnds ends(fabric);
    ends.connect();
    for (const auto& [from, to] : kPairs) CHECK_THAT(ends.move_all(from, to));
    for (const auto& [from, to] : kPairs) {
      CHECK_THAT((from == Where::kHost && to == Where::kHost) || ends.uses(from, to));
    }
  });
}

TEST(SisciGpu, MessagesOverlap) {
  for (const char* iommu : {"", "iommu broken\n"}) {
    alone_with_gpus(kCuda + iommu, [](const SoftwareFabric& fabric) {
      GpuEnds ends(fabric);
      ends.connect();
      Buffer from = ends.source(Where::kAllocator);
      Buffer to = ends.destination(Where::kVirtual);
      constexpr std::size_t kMessages = 30;
      constexpr std::size_t kEach = kMost / kMessages;
      const std::vector<char> out = numbered(kMost, 5);
      std::vector<char> in(kMost, 'x');
      for (int round = 0; round < 3; ++round) {
        from.fill(out);
        to.fill(in);
        std::vector<std::unique_ptr<Request>> receives;
        std::vector<std::unique_ptr<Request>> sends(kMessages);
        for (std::size_t i = 0; i < kMessages; ++i) {
          const ReceiveBuffer buffer{static_cast<std::byte*>(to.data()) + i * kEach, kEach,
                                     static_cast<std::uint32_t>(i % 3), to.registration()};
          receives.push_back(ends.receiver->receive({&buffer, 1}));
          CHECK_THAT(receives.back() != nullptr);
        }
        Ends::until([&] {
          bool all = true;
          for (std::size_t i = 0; i < kMessages; ++i) {
            if (!sends[i] && (i == 0 || sends[i - 1])) {
              // Sizes differ, and some are shorter than their receives.
              sends[i] = ends.sender->send(static_cast<std::byte*>(from.data()) + i * kEach,
                                           kEach - i * 1000, static_cast<std::uint32_t>(i % 3),
                                           from.registration());
            }
            all = (receives[i]->test().has_value()) && all;
            all = sends[i] && sends[i]->test() && all;
          }
          return all;
        });
        to.fetch(in);
        for (std::size_t i = 0; i < kMessages; ++i) {
          CHECK_THAT(std::memcmp(in.data() + i * kEach, out.data() + i * kEach, kEach - i * 1000) ==
                     0);
        }
      }
    });
  }
}

// What a registration holds of its allocation, anywhere in it.
TEST(SisciGpu, RegistrationsOfOneAllocationShareASegment) {
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    GpuEnds ends(fabric);
    ends.connect();
    constexpr std::size_t kBytes = std::size_t{8} << 20;
    DeviceBuffer from(ends.gpus.gpus.at(0), kBytes, DeviceBuffer::From::kAllocator);
    DeviceBuffer to(ends.gpus.gpus.at(1), kBytes, DeviceBuffer::From::kAllocator);
    const std::vector<char> out = numbered(kBytes, 3);
    ends.gpus.gpus.at(0).fill(from.data(), out.data(), kBytes);
    std::vector<std::unique_ptr<Registration>> kept;
    const Region* first = nullptr;
    for (const std::size_t offset : {500UL, 100'000UL, 4'000'003UL, kBytes - 700'000}) {
      auto* source = static_cast<std::byte*>(from.pointer()) + offset;
      auto* target = static_cast<std::byte*>(to.pointer()) + offset + 7;
      constexpr std::size_t kPart = 600'000;
      kept.push_back(ends.sender->register_memory(source, kPart, MemoryKind::kCuda));
      const Region* region = static_cast<SisciRegistration&>(*kept.back()).region().get();
      CHECK_THAT(region != nullptr && (first == nullptr || region == first));
      first = region;
      kept.push_back(ends.receiver->register_memory(target, kPart, MemoryKind::kCuda));
      const ReceiveBuffer buffer{target, kPart, 0, kept.back().get()};
      const auto receive = ends.receiver->receive({&buffer, 1});
      ends.finish(source, kPart, kept[kept.size() - 2].get(), *receive);
      std::vector<char> in(kPart);
      ends.gpus.gpus.at(1).fetch(in.data(), to.data() + offset + 7, kPart);
      CHECK_THAT(std::memcmp(in.data(), out.data() + offset, kPart) == 0);
    }
    CHECK_THAT(ends.uses(Where::kAllocator, Where::kAllocator));
  });
}

TEST(SisciGpu, AnAllocationAtTheSameAddressIsAnother) {
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    GpuEnds ends(fabric);
    ends.connect();
    Gpu& gpu = ends.gpus.gpus.at(0);
    constexpr std::size_t kBytes = std::size_t{2} << 20;
    auto first = std::make_unique<DeviceBuffer>(gpu, kBytes, DeviceBuffer::From::kAllocator);
    const CuPointer location = first->data();
    const auto stale = ends.sender->register_memory(first->pointer(), kBytes, MemoryKind::kCuda);
    first.reset();  // freed, while it is registered
    std::vector<std::unique_ptr<DeviceBuffer>> made;
    do {
      made.push_back(std::make_unique<DeviceBuffer>(gpu, kBytes, DeviceBuffer::From::kAllocator));
    } while (made.back()->data() != location && made.size() < 16);
    if (made.back()->data() != location) return;  // it is given out again on most systems
    const auto fresh =
        ends.sender->register_memory(made.back()->pointer(), kBytes, MemoryKind::kCuda);
    CHECK_THAT(static_cast<SisciRegistration&>(*stale).region() !=
               static_cast<SisciRegistration&>(*fresh).region());
  });
}

// ---- what is staged ------------------------------------------------------------------------

struct Fault {
  const char* name;
  const char* fabric;
  const char* words;
  bool gpu_to_gpu;  // by DMA all the same
  bool gpu_to_host;
  bool host_to_gpu;
};

class SisciGpuReplaced : public ::testing::TestWithParam<Fault> {};

TEST_P(SisciGpuReplaced, ByStaging) {
  const Fault& fault = GetParam();
  for (const char* verify : {"connect", "all"}) {
    alone_with_gpus(kCuda + fault.fabric, [&](const SoftwareFabric& fabric) {
      GpuEnds ends(fabric, {{"VERIFY", verify}});
      ends.connect();
      for (const auto& [from, to] : kPairs) CHECK_THAT(ends.move_all(from, to));
      EXPECT_WORDS(ends.text(), fault.words);
      CHECK_THAT(ends.uses(Where::kAllocator, Where::kAllocator) == fault.gpu_to_gpu);
      CHECK_THAT(ends.uses(Where::kAllocator, Where::kHost) == fault.gpu_to_host);
      CHECK_THAT(ends.uses(Where::kHost, Where::kAllocator) == fault.host_to_gpu);
    });
  }
}

INSTANTIATE_TEST_SUITE_P(
    Faults, SisciGpuReplaced,
    ::testing::Values(
        Fault{"NoPeerMemoryInterface", "gpu_memory no\n",
              "GPU memory cannot be attached: SCIAttachPhysicalMemory: Out of hardware resources "
              "(0x40000906): the IOMMU is off, or NVIDIA's peer-memory interface (nvidia-peermem) "
              "is not loaded; messages from and to it are staged",
              false, false, false},
        Fault{"NoIommu", "iommu absent\n",
              "GPU memory cannot be attached: SCIAttachPhysicalMemory: Not supported", false, false,
              false},
        Fault{"BrokenIommu", "iommu broken\n",
              "DMA from GPU memory into GPU memory: transfers report success, but a pattern cannot "
              "be read back: the IOMMU is off or broken, PCIe access control services",
              false, false, false},
        Fault{"ErrorsAtStart", "attach_error yes\n",
              "DMA from GPU memory into GPU memory: it cannot start: Transfer failed", false, false,
              false},
        Fault{"FromGpuOnly", "lose_gpu_reads yes\n",
              "DMA from GPU memory into host memory: a copy reported success, but the pattern did "
              "not arrive: the IOMMU is off or broken",
              true, false, true},
        Fault{"IntoGpuOnly", "lose_gpu_writes yes\n",
              "DMA from host memory into GPU memory: transfers report success, but a pattern", true,
              true, false},
        Fault{"BetweenGpusOnly", "lose_gpu_to_gpu yes\n",
              "DMA from GPU memory into GPU memory: transfers report success, but a pattern", false,
              true, true}),
    [](const auto& of) { return of.param.name; });

TEST(SisciGpu, StagedWithoutQueuesAndByTheCpu) {
  for (const char* broken :
       {"max_dma_queues 1\niommu absent\n", "lose_transfer 1\nlose_all_transfers yes\n"}) {
    alone_with_gpus(kCuda + broken, [](const SoftwareFabric& fabric) {
      GpuEnds ends(fabric, {{"SISCI_QUEUES", "2"}});
      ends.connect();
      for (const auto& [from, to] : kPairs) CHECK_THAT(ends.move_all(from, to));
    });
  }
}

TEST(SisciGpu, MemoryInSeveralAllocationsIsStaged) {
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    GpuEnds ends(fabric);
    ends.connect();
    // Two allocations side by side, as expandable segments have them.
    Gpu& gpu = ends.gpus.gpus.at(0);
    const CudaApi& cuda = ends.gpus.cuda;
    CuAllocationProperties properties;
    properties.type = kCuAllocationPinned;
    properties.handle_types = kCuHandleFileDescriptor;
    properties.location = {kCuLocationDevice, 0};
    constexpr std::size_t kEach = std::size_t{2} << 20;
    CuPointer base = 0;
    {
      const CurrentContext current(cuda, gpu.context());
      CHECK_THAT(cuda.reserve_addresses(&base, 2 * kEach, 0, 0, 0) == kCuSuccess);
      for (std::size_t i = 0; i < 2; ++i) {
        CuAllocation allocation = 0;
        CHECK_THAT(cuda.create_allocation(&allocation, kEach, &properties, 0) == kCuSuccess);
        CHECK_THAT(cuda.map(base + i * kEach, kEach, 0, allocation, 0) == kCuSuccess);
        CHECK_THAT(cuda.release_allocation(allocation) == kCuSuccess);
      }
      const CuAccess access{properties.location, kCuAccessReadWrite};
      CHECK_THAT(cuda.set_access(base, 2 * kEach, &access, 1) == kCuSuccess);
    }
    const std::vector<char> out = numbered(2 * kEach, 9);
    gpu.fill(base, out.data(), out.size());
    void* data = reinterpret_cast<void*>(base);
    const auto registration = ends.sender->register_memory(data, 2 * kEach, MemoryKind::kCuda);
    Buffer to = ends.destination(Where::kAllocator, 2 * kEach);
    const ReceiveBuffer buffer{to.data(), 2 * kEach, 0, to.registration()};
    const auto receive = ends.receiver->receive({&buffer, 1});
    ends.finish(data, 2 * kEach, registration.get(), *receive);
    std::vector<char> in(2 * kEach);
    to.fetch(in);
    CHECK_THAT(in == out);
    EXPECT_WORDS(ends.text(), "are staged: they span several allocations");
  });
}

TEST(SisciGpu, MemoryThatSharesItsPagesIsStaged) {
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    GpuEnds ends(fabric);
    ends.connect();
    Gpu& gpu = ends.gpus.gpus.at(0);
    DeviceBuffer small(gpu, 10'000, DeviceBuffer::From::kAllocator);
    const std::vector<char> out = numbered(10'000, 9);
    gpu.fill(small.data(), out.data(), out.size());
    const auto registration =
        ends.sender->register_memory(small.pointer(), 10'000, MemoryKind::kCuda);
    CHECK_THAT(static_cast<SisciRegistration&>(*registration).region() == nullptr);
    Buffer to = ends.destination(Where::kAllocator);
    const ReceiveBuffer buffer{to.data(), 10'000, 0, to.registration()};
    const auto receive = ends.receiver->receive({&buffer, 1});
    ends.finish(small.pointer(), 10'000, registration.get(), *receive);
    std::vector<char> in(10'000);
    to.fetch(in);
    CHECK_THAT(in == out);
    EXPECT_WORDS(ends.text(), "are staged: their allocation has no page of 64 KiB to itself");
    // Of a large one, what lies in its last, shared page.
    constexpr std::size_t kOdd = 1'500'000;
    DeviceBuffer odd(gpu, kOdd, DeviceBuffer::From::kAllocator);
    const auto large = ends.sender->register_memory(odd.pointer(), kOdd, MemoryKind::kCuda);
    const Region& region = *static_cast<SisciRegistration&>(*large).region();
    CHECK_THAT(region.holds(odd.pointer(), 22 * 65'536));
    CHECK_THAT(!region.holds(odd.pointer(), kOdd));
    Buffer target = ends.destination(Where::kHost);
    for (const std::size_t bytes : {std::size_t{22} * 65'536, kOdd}) {
      gpu.fill(odd.data(), numbered(kOdd, bytes).data(), kOdd);
      const ReceiveBuffer into{target.data(), bytes, 0, target.registration()};
      const auto received = ends.receiver->receive({&into, 1});
      ends.finish(odd.pointer(), bytes, large.get(), *received);
      CHECK_THAT(std::memcmp(target.data(), numbered(kOdd, bytes).data(), bytes) == 0);
    }
  });
}

TEST(SisciGpu, ASenderWithoutCudaReachesGpuMemory) {
  for (const char* iommu : {"", "iommu absent\n"}) {
    alone_with_gpus(kCuda + iommu, [](const SoftwareFabric& fabric) {
      GpuEnds ends(fabric);
      const auto listener = ends.transport().listen(0);
      Config config;
      config.set("SISCI_LIBRARY", RW_SOFTWARE_SISCI, "test");
      config.set("CUDA_LIBRARY", "libnone.so", "test");
      const auto without = transport::make_transport("sisci", config);
      CHECK_THAT(without->properties(0).memory_kinds == 1);
      ends.sender = without->connect(0, listener->handle())->poll();
      Ends::until([&] { return (ends.receiver = listener->accept()) != nullptr; });
      CHECK_THAT(ends.move_all(Where::kHost, Where::kAllocator));
      ends.sender.reset();
      ends.receiver.reset();
    });
  }
}

// ---- what is refused -----------------------------------------------------------------------

TEST(SisciGpu, RefusedWithoutCudaAndWhereKernelsAreLoadedLazily) {
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    Ends ends(fabric);
    ends.connect();
    int nothing = 0;
    EXPECT_WORDS(
        words_of([&] { (void)ends.sender->register_memory(&nothing, 4, MemoryKind::kCuda); },
                 Errc::kInvalidArgument),
        "sisci: no CUDA: ");
    EXPECT_WORDS(ends.text(), "sisci: host memory only: no CUDA: ");
  });
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    setenv("RW_STAND_IN_CUDA", "lazy", 1);
    GpuEnds ends(fabric);
    CHECK_THAT(ends.transport().properties(0).memory_kinds == 1);
    ends.connect();
    int nothing = 0;
    EXPECT_WORDS(
        words_of([&] { (void)ends.sender->register_memory(&nothing, 4, MemoryKind::kCuda); },
                 Errc::kInvalidArgument),
        "start the program with CUDA_MODULE_LOADING=EAGER");
  });
}

TEST(SisciGpu, RefusedWithoutPinnedMemory) {
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    GpuEnds ends(fabric);
    ends.connect();
    DeviceBuffer memory(ends.gpus.gpus.at(0), 4096, DeviceBuffer::From::kAllocator);
    ends.stand_in.configure("refuse=cuMemHostAlloc:2");
    EXPECT_WORDS(
        words_of(
            [&] { (void)ends.sender->register_memory(memory.pointer(), 4096, MemoryKind::kCuda); },
            Errc::kInvalidArgument),
        "memory of GPU 0 (Stand-in 0) is not taken, since nothing is copied between it and "
        "the host: cuMemHostAlloc: CUDA_ERROR_OUT_OF_MEMORY");
    ends.stand_in.configure("");
    (void)ends.sender->register_memory(memory.pointer(), 4096, MemoryKind::kCuda);
  });
}

TEST(SisciGpu, RefusesOtherThanGpuMemoryAndMessagesOutside) {
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    GpuEnds ends(fabric);
    ends.connect();
    std::vector<char> host(100);
    for (void* data : {static_cast<void*>(host.data()), static_cast<void*>(nullptr)}) {
      (void)words_of([&] { (void)ends.sender->register_memory(data, 100, MemoryKind::kCuda); },
                     Errc::kInvalidArgument);
    }
    Buffer from = ends.source(Where::kAllocator, 4096);
    EXPECT_WORDS(words_of(
                     [&] {
                       (void)ends.sender->send(from.data(), std::size_t{1} << 30, 0,
                                               from.registration());
                     },
                     Errc::kInvalidArgument),
                 "are not within the registration");
    Buffer to = ends.destination(Where::kAllocator, 4096);
    CHECK_THAT(ends.move(from, to, 4096));  // bad arguments end nothing
  });
}

// ---- what goes wrong later -----------------------------------------------------------------

TEST(SisciGpu, ChecksumsFindALostTransfer) {
  for (const char* iommu : {"", "gpu_memory no\n"}) {
    alone_with_gpus(kCuda + iommu, [&](const SoftwareFabric& fabric) {
      GpuEnds ends(fabric, {{"VERIFY", "all"}});
      ends.connect();
      Buffer from = ends.source(Where::kAllocator);
      Buffer to = ends.destination(Where::kAllocator);
      CHECK_THAT(ends.move(from, to, kMost) && ends.move(from, to, kMost));
      fabric.write(kCuda + iommu + "lose_transfer 1\nlose_all_transfers yes\n");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_WORDS(words_of([&] { (void)ends.move(from, to, kMost); }, Errc::kPeerLost),
                   "wrong checksum");
    });
  }
}

TEST(SisciGpu, ATransferThatFailsEndsTheConnection) {
  alone_with_gpus(kCuda + "fail_transfer 60\n", [](const SoftwareFabric& fabric) {
    GpuEnds ends(fabric);
    ends.connect();
    Buffer from = ends.source(Where::kAllocator);
    Buffer to = ends.destination(Where::kAllocator);
    EXPECT_WORDS(words_of(
                     [&] {
                       for (int i = 0; i < 60; ++i) CHECK_THAT(ends.move(from, to, kMost));
                     },
                     Errc::kPeerLost),
                 "the transfer ended in an error");
  });
}

TEST(SisciGpu, ACopyThatStandsStillEndsTheConnection) {
  alone_with_gpus(kCuda + "gpu_memory no\n", [](const SoftwareFabric& fabric) {
    GpuEnds ends(fabric, {{"TIMEOUT", "200ms"}});
    ends.connect();
    Buffer from = ends.source(Where::kAllocator);
    Buffer to = ends.destination(Where::kAllocator);
    CHECK_THAT(ends.move(from, to, kMost));
    from.fill(numbered(kMost, 1));
    ends.stand_in.configure("delay_us=1500000");
    const ReceiveBuffer buffer{to.data(), 1000, 0, to.registration()};
    const auto receive = ends.receiver->receive({&buffer, 1});
    EXPECT_WORDS(words_of([&] { ends.finish(from.data(), 1000, from.registration(), *receive); },
                          Errc::kTimeout),
                 "has not ended for 0.2 s");
    ends.stand_in.configure("");
  });
}

TEST(SisciGpu, AGpuThatFailsEndsTheConnection) {
  const auto fails = [](const std::string& settings, Errc code, const char* words) {
    alone_with_gpus(kCuda + settings, [&](const SoftwareFabric& fabric) {
      GpuEnds ends(fabric);
      ends.connect();
      Buffer from = ends.source(Where::kAllocator);
      Buffer to = ends.destination(Where::kAllocator);
      CHECK_THAT(ends.move(from, to, kMost));
      ends.stand_in.configure("fail=1");
      const ReceiveBuffer buffer{to.data(), kMost, 0, to.registration()};
      const auto receive = ends.receiver->receive({&buffer, 1});
      EXPECT_WORDS(
          words_of([&] { ends.finish(from.data(), kMost, from.registration(), *receive); }, code),
          words);
    });
  };
  fails("", Errc::kPeerLost, "the transfer ended in an error");
  fails("gpu_memory no\n", Errc::kCuda, "CUDA_ERROR_ILLEGAL_ADDRESS");
}

// Messages are given up while they are under way, then their registrations, then their memory.
TEST(SisciGpu, MemoryMayGoWhenItsRegistrationHasEnded) {
  for (const char* settings : {"", "gpu_memory no\n"}) {
    for (const bool sender_first : {false, true}) {
      alone_with_gpus(kCuda + settings + "megabytes_per_second 30\n",
                      [&](const SoftwareFabric& fabric) {
                        std::optional<GpuEnds> ends(fabric);
                        ends->connect();
                        std::optional<Buffer> from(ends->source(Where::kAllocator));
                        std::optional<Buffer> to(ends->destination(Where::kVirtual));
                        CHECK_THAT(ends->move(*from, *to, 100'000));
                        const ReceiveBuffer buffer{to->data(), kMost, 0, to->registration()};
                        auto receive = ends->receiver->receive({&buffer, 1});
                        std::unique_ptr<Request> send;
                        Ends::until([&] {
                          (void)receive->test();
                          send = ends->sender->send(from->data(), kMost, 0, from->registration());
                          return send != nullptr;
                        });
                        for (int i = 0; i < 3; ++i) {
                          CHECK_THAT(!receive->test());
                          CHECK_THAT(!send->test());
                        }
                        if (sender_first) {
                          send.reset();
                          from.reset();
                          receive.reset();
                          to.reset();
                        } else {
                          receive.reset();
                          to.reset();
                          send.reset();
                          from.reset();
                        }
                        CHECK_THAT(!ends->logged("they are not to be freed yet"));
                        const StandIn stand_in = ends->stand_in;
                        ends.reset();
                        CHECK_THAT(stand_in.ranges() <= kOfTheBridges);
                      });
    }
  }
}

// What the adapter still has when a registration ends is said: its memory is not to be freed.
TEST(SisciGpu, ASegmentThatStaysIsNamed) {
  alone_with_gpus(kCuda, [](const SoftwareFabric& fabric) {
    const Ends log(fabric);
    Context context;
    context.library = Library::open(RW_SOFTWARE_SISCI).library;
    DriverCuda cuda(RW_STAND_IN_CUDA, std::chrono::nanoseconds(0));
    Regions regions(context, 0, &cuda);
    constexpr std::size_t kBytes = std::size_t{2} << 20;
    const DeviceBuffer memory(cuda.gpus.at(0), kBytes, DeviceBuffer::From::kAllocator);
    auto registration = regions.add(memory.pointer(), kBytes, MemoryKind::kCuda);
    Map map = nullptr;
    Status status = Status::kUnset;
    LocalSegment segment = static_cast<SisciRegistration&>(*registration).region()->segment();
    (*context.library)->MapLocalSegment(segment, &map, 0, 4096, nullptr, 0, &status);
    CHECK_THAT(status == Status::kOk);
    registration.reset();
    EXPECT_WORDS(log.text(),
                 "SCIRemoveSegment: Resource busy (0x40000900); they are not to be freed yet");
    (*context.library)->UnmapSegment(map, 0, &status);
    context.clean_up.sweep();
  });
}

// ---- two hosts -----------------------------------------------------------------------------

struct HostsCase {
  const char* name;
  Where from;
  Where to;
  const char* fabric;
};

class SisciGpuHosts : public ::testing::TestWithParam<HostsCase> {
 protected:
  // A sender in a process on another host, whose first GPU is the second one here. Its messages are
  // all letters 'm'; it ends with the socket.
  static void send_for_ever(const SoftwareFabric& fabric, int socket) {
    StandIn().restart();
    setenv("SOFTWARE_SISCI_HOST", "3", 1);
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    GpuEnds ends(fabric);
    Handle handle{};
    CHECK_THAT(read(socket, handle.data(), handle.size()) == kHandleBytes);
    ends.sender = ends.transport().connect(0, handle)->poll();
    Buffer from = ends.source(GetParam().from);
    from.fill(std::vector<char>(kMost, 'm'));
    for (;;) {
      std::unique_ptr<Request> send;
      Ends::until([&] {
        if (!send) send = ends.sender->send(from.data(), kMost, 0, from.registration());
        return send && send->test();
      });
    }
  }
  static bool receive_one(GpuEnds& ends, Buffer& to) {
    std::vector<char> in(kMost, 'x');
    to.fill(in);
    const ReceiveBuffer buffer{to.data(), kMost, 0, to.registration()};
    const auto receive = ends.receiver->receive({&buffer, 1});
    Ends::until([&] { return receive->test().has_value(); });
    to.fetch(in);
    return in == std::vector<char>(kMost, 'm');
  }
};

TEST_P(SisciGpuHosts, AndTheEndOfOne) {
  alone_with_gpus(kCuda + GetParam().fabric, [&](const SoftwareFabric& fabric) {
    int sockets[2];
    CHECK_THAT(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    const pid_t child = fork();
    if (child == 0) {
      try {
        send_for_ever(fabric, sockets[1]);
      } catch (const std::exception& error) {
        fprintf(stderr, "child: %s\n", error.what());
      }
      _exit(0);
    }
    {
      GpuEnds ends(fabric);
      const auto listener = ends.transport().listen(0);
      CHECK_THAT(write(sockets[0], listener->handle().data(), kHandleBytes) == kHandleBytes);
      Ends::until([&] { return (ends.receiver = listener->accept()) != nullptr; });
      Buffer to = ends.destination(GetParam().to);
      for (int i = 0; i < 5; ++i) CHECK_THAT(receive_one(ends, to));
      kill(child, SIGKILL);
      waitpid(child, nullptr, 0);
      (void)words_of(
          [&] {
            for (;;) CHECK_THAT(receive_one(ends, to));
          },
          Errc::kPeerLost);
    }
    // What was opened of the dead process is closed.
    const StandIn stand_in;
    Ends::until([&] { return stand_in.ranges() <= kOfTheBridges; });
  });
}

INSTANTIATE_TEST_SUITE_P(
    Pairs, SisciGpuHosts,
    ::testing::Values(HostsCase{"GpuToGpu", Where::kAllocator, Where::kAllocator, ""},
                      HostsCase{"VirtualToVirtual", Where::kVirtual, Where::kVirtual, ""},
                      HostsCase{"GpuToHost", Where::kVirtual, Where::kHost, ""},
                      HostsCase{"HostToGpu", Where::kHost, Where::kVirtual, ""},
                      HostsCase{"Staged", Where::kAllocator, Where::kVirtual, "iommu absent\n"}),
    [](const auto& of) { return of.param.name; });

}  // namespace
}  // namespace ropewalk::transport::window::sisci
