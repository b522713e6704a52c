// Buffers mapped side by side, with software that stands in for CUDA's driver.
#include "comm/flat_memory.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "comm/testing/ranks.h"
#include "comm/testing/windows.h"
#include "transport/window/device/gpu.h"
#include "transport/window/device/testing/stand_in.h"

namespace ropewalk::comm {
namespace {

namespace gpus = transport::window;
using gpus::DeviceBuffer;
using testing::pattern;
using Bytes = std::vector<std::byte>;

constexpr std::size_t kBytes = 9'001;

class FlatMemoryTest : public ::testing::Test {
 protected:
  void SetUp() override {
    testing::quiet(runtime_);
    runtime_.set("CUDA_LIBRARY", RW_STAND_IN_CUDA, "test");
  }
  // The ranks take turns on two GPUs.
  void ranks(int size, const std::function<void(Communicator&, gpus::Gpu&)>& body) {
    testing::with_ranks(size, runtime_, [&](Communicator& comm) {
      body(comm, runtime_.gpus().at(comm.rank() % 2));
      comm.barrier();
    });
  }
  Runtime runtime_;
};

TEST_F(FlatMemoryTest, EachRankReachesAllByArithmetic) {
  ranks(3, [](Communicator& comm, gpus::Gpu& gpu) {
    const DeviceBuffer buffer(gpu, 2 * kBytes, DeviceBuffer::From::kVirtualMemory);
    // Not at the beginning of the allocation, and of different sizes.
    auto* const begin = static_cast<std::byte*>(buffer.pointer()) + 4096;
    const std::size_t bytes = kBytes - static_cast<std::size_t>(comm.rank());
    FlatMemory::Made made = FlatMemory::map(comm, gpu, begin, bytes);
    ASSERT_NE(made.memory, nullptr) << made.why_not;
    EXPECT_EQ(made.why_not, "");
    EXPECT_EQ(made.memory->stride() % FlatMemory::kStep, 0U);
    for (int peer = 0; peer < 3; ++peer) {
      EXPECT_EQ(made.memory->bytes()[static_cast<std::size_t>(peer)],
                kBytes - static_cast<std::size_t>(peer));
      const std::uint64_t there =
          made.memory->base() + static_cast<std::uint64_t>(peer) * made.memory->stride();
      EXPECT_EQ(reinterpret_cast<std::uint64_t>(made.memory->at(peer)), there);
      const Bytes piece = pattern(1000, comm.rank(), peer);
      gpu.fill(there + static_cast<std::uint64_t>(comm.rank()) * 1000, piece.data(), piece.size());
    }
    comm.barrier();
    Bytes seen(1000);
    for (int writer = 0; writer < 3; ++writer) {
      gpu.fetch(seen.data(),
                reinterpret_cast<std::uint64_t>(begin) + static_cast<std::uint64_t>(writer) * 1000,
                seen.size());
      EXPECT_EQ(seen, pattern(1000, writer, comm.rank())) << writer;
    }
    comm.barrier();
    // What a rank has mapped stays until it lets go by itself.
    if (comm.rank() == 0) made.memory.reset();
    comm.barrier();
    if (comm.rank() != 0) {
      gpu.fetch(seen.data(), reinterpret_cast<std::uint64_t>(made.memory->at(0)), seen.size());
      EXPECT_EQ(seen, pattern(1000, 0, 0));
    }
  });
}

TEST_F(FlatMemoryTest, AllRanksMapOrNone) {
  const auto reason =
      [this](const std::function<FlatMemory::Made(Communicator&, gpus::Gpu&, std::byte*)>& map) {
        std::string all;
        std::mutex mutex;
        ranks(2, [&](Communicator& comm, gpus::Gpu& gpu) {
          const DeviceBuffer buffer(gpu, kBytes, DeviceBuffer::From::kVirtualMemory);
          const FlatMemory::Made made = map(comm, gpu, static_cast<std::byte*>(buffer.pointer()));
          EXPECT_EQ(made.memory, nullptr);
          const std::lock_guard lock(mutex);
          EXPECT_TRUE(all.empty() || all == made.why_not) << all << " and " << made.why_not;
          all = made.why_not;
        });
        return all;
      };
  EXPECT_EQ(reason([](Communicator& comm, gpus::Gpu& gpu, std::byte* memory) {
              return FlatMemory::map(comm, gpu, memory + comm.rank() * 4096, 100);
            }),
            "rank 1: its buffer is 4096 bytes behind the start of its allocation, that of rank 0 "
            "0");
  const std::string kind = reason([](Communicator& comm, gpus::Gpu& gpu, std::byte* memory) {
    std::optional<DeviceBuffer> other;
    if (comm.rank() == 1) other.emplace(gpu, kBytes, DeviceBuffer::From::kAllocator);
    return FlatMemory::map(comm, gpu, comm.rank() == 1 ? other->pointer() : memory, kBytes);
  });
  EXPECT_TRUE(kind.starts_with("rank 1: ")) << kind;
  EXPECT_NE(kind.find("is not of CUDA's virtual memory functions"), std::string::npos) << kind;
  const std::string host = reason([](Communicator& comm, gpus::Gpu& gpu, std::byte* memory) {
    Bytes own(kBytes);
    return FlatMemory::map(comm, gpu, comm.rank() == 0 ? own.data() : memory, kBytes);
  });
  EXPECT_NE(host.find("rank 0: "), std::string::npos) << host;
  EXPECT_NE(host.find("this is not GPU memory"), std::string::npos) << host;
}

TEST_F(FlatMemoryTest, AFailedMappingIsTakenBack) {
  const gpus::testing::StandIn stand_in;
  ranks(2, [&](Communicator& comm, gpus::Gpu& gpu) {
    const DeviceBuffer buffer(gpu, kBytes, DeviceBuffer::From::kVirtualMemory);
    comm.barrier();
    const int before = stand_in.ranges();
    comm.barrier();
    if (comm.rank() == 0) stand_in.configure("refuse=cuMemSetAccess:2");
    comm.barrier();
    const FlatMemory::Made made = FlatMemory::map(comm, gpu, buffer.pointer(), kBytes);
    comm.barrier();
    if (comm.rank() == 0) stand_in.configure("");
    EXPECT_EQ(made.memory, nullptr);
    EXPECT_NE(made.why_not.find("rank 0: cuMemSetAccess"), std::string::npos) << made.why_not;
    EXPECT_EQ(stand_in.ranges(), before);
    comm.barrier();
  });
}

}  // namespace
}  // namespace ropewalk::comm
