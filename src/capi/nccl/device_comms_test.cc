// Device communicators of ranks that are threads, with software that stands in for CUDA's driver.
// Kernels are played by the host: it reads and writes the memory that they would, by the words of
// ncclDevComm alone. What ncclDevCommCreate asks of the GPUs before is left out: it needs the CUDA
// runtime.
#include "capi/nccl/device_comms.h"

#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bootstrap/unique_id.h"
#include "capi/nccl/device_layout.h"
#include "capi/nccl/handle.h"
#include "comm/testing/ranks.h"
#include "comm/testing/windows.h"

namespace ropewalk::nccl {
namespace {

namespace gpus = transport::window;
using comm::testing::pattern;
using comm::testing::refusal_of;

// One rank with device communicators.
class DeviceRank {
 public:
  DeviceRank(const bootstrap::UniqueId& id, int rank, int size, comm::Runtime& runtime)
      : gpu_(runtime.gpus().at(rank % 2)) {
    core_ = std::make_shared<Core>(gpu_.ordinal(), CommConfig{});
    auto made = comm::Communicator::join(id, rank, size, runtime);
    auto one_sided = std::make_unique<OneSided>(*made, gpu_.ordinal(), SignalCounts{});
    core_->end(std::move(made), std::move(one_sided));
    core_->device_comms = std::make_unique<DeviceComms>(*core_->comm, gpu_.ordinal(), *core_);
    comm_ = std::make_unique<ncclComm>(core_);
  }

  [[nodiscard]] int rank() const { return core_->comm->rank(); }
  [[nodiscard]] int size() const { return core_->comm->size(); }
  [[nodiscard]] ncclComm_t comm() const { return comm_.get(); }
  [[nodiscard]] Core& core() const { return *core_; }
  [[nodiscard]] DeviceComms& device_comms() const { return *core_->device_comms; }
  [[nodiscard]] gpus::Gpu& gpu() const { return gpu_; }
  void barrier() const { core_->comm->barrier(); }

  template <typename T>
  [[nodiscard]] T read(std::uint64_t address) const {
    T value{};
    gpu_.fetch(&value, address, sizeof value);
    return value;
  }
  template <typename T>
  void write(std::uint64_t address, const T& value) const {
    gpu_.fill(address, &value, sizeof value);
  }

  // As ncclCommWindowRegister does.
  ncclWindow_t register_window(void* memory, std::size_t bytes) const {
    Window window;
    window.core = core_.get();
    window.number = 1;
    window.buffer = memory;
    add_flat(*core_->comm, core_->device, window, bytes);
    add_puts(*core_->one_sided, window, bytes);
    const ncclWindow_t handle = add_window(std::move(window));
    device_comms().window_added(handle, *window_of(handle));
    return handle;
  }
  void deregister_window(ncclWindow_t handle) const {
    core_->one_sided->remove(*window_of(handle)->puts);
    device_comms().window_removed(handle);
    remove_window(handle);
  }

 private:
  gpus::Gpu& gpu_;
  std::shared_ptr<Core> core_;
  std::unique_ptr<ncclComm> comm_;
};

class DeviceCommsTest : public ::testing::Test {
 protected:
  // @param finalize not where the body ends the communicator otherwise
  void ranks(int size, const std::function<void(DeviceRank&)>& body, bool finalize = true) {
    comm::testing::quiet(runtime_);
    runtime_.set("CUDA_LIBRARY", RW_STAND_IN_CUDA, "test");
    const bootstrap::UniqueId id = bootstrap::make_unique_id(runtime_.config(), runtime_.context());
    std::vector<std::thread> threads;
    for (int r = 0; r < size; ++r) {
      threads.emplace_back([&, r] {
        try {
          DeviceRank rank(id, r, size, runtime_);
          body(rank);
          if (finalize) rank.core().comm->finalize();
        } catch (const std::exception& error) {
          ADD_FAILURE() << "rank " << r << ": " << error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  comm::Runtime runtime_;
};

DevCommRequest request_of(int barriers, std::vector<Resource> resources = {},
                          DevCommLayout layout = DevCommLayout::k23100, unsigned version = 23203) {
  DevCommRequest request;
  request.version = version;
  request.layout = layout;
  request.lsa_barriers = barriers;
  request.resources = std::move(resources);
  return request;
}

using Bytes = std::vector<std::byte>;

// Where a version's header has a field: offsets that its compiler printed, not ours.
struct Offsets {
  unsigned version;  // 0: it does not say
  DevCommLayout layout;
  std::size_t size;
  std::size_t rank;  // then nRanks, its reciprocal, lsaRank, lsaSize, its reciprocal
  std::size_t window_table;
  std::size_t resource_window;
  std::size_t flat_base;
  std::size_t stride;
  std::size_t lsa_barrier;  // bufHandle, nBarriers
  std::size_t abort_flag;   // 0: none
  std::size_t team_ranks;   // lsaRank and worldRank in the window; 0: none
};

const std::vector<Offsets> kOffsets = {
    {0, DevCommLayout::k22807, 200, 0, 24, 32, 48, 64, 120, 0, 56},
    {22907, DevCommLayout::k22907, 224, 0, 24, 32, 48, 64, 120, 216, 56},
    {23007, DevCommLayout::k23000, 240, 8, 32, 40, 56, 72, 128, 208, 0},
    {23203, DevCommLayout::k23100, 248, 8, 32, 40, 48, 56, 80, 168, 0},
};

template <typename T>
T field(const Bytes& bytes, std::size_t offset) {
  T value{};
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <typename T>
void set_field(Bytes& bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

// What kernels know: the words of one version.
struct Seen {
  int rank = 0;
  int ranks = 0;
  std::uint64_t table = 0;
  std::uint64_t window = 0;
  std::uint64_t base = 0;
  std::uint64_t stride = 0;
  std::uint32_t barrier_handle = 0;
  int barriers = 0;
  std::uint64_t abort_flag = 0;

  [[nodiscard]] std::uint64_t resource(int peer, std::uint32_t handle) const {
    return base + static_cast<std::uint64_t>(peer) * stride + handle * std::uint64_t{128};
  }
};

Seen see(const Bytes& bytes, const Offsets& at) {
  Seen seen;
  seen.rank = field<int>(bytes, at.rank + 12);
  seen.ranks = field<int>(bytes, at.rank + 16);
  seen.table = field<std::uint64_t>(bytes, at.window_table);
  seen.window = field<std::uint64_t>(bytes, at.resource_window);
  seen.base = field<std::uint64_t>(bytes, at.flat_base);
  seen.stride = std::uint64_t{field<std::uint32_t>(bytes, at.stride)} << 32U;
  seen.barrier_handle = field<std::uint32_t>(bytes, at.lsa_barrier);
  seen.barriers = field<int>(bytes, at.lsa_barrier + 4);
  if (at.abort_flag != 0) seen.abort_flag = field<std::uint64_t>(bytes, at.abort_flag);
  return seen;
}

Bytes create_bytes(const DeviceRank& rank, const Offsets& at, int barriers,
                   std::vector<Resource> resources = {}) {
  Bytes out(300, std::byte{0xee});
  rank.device_comms().create(request_of(barriers, std::move(resources), at.layout, at.version),
                             out.data());
  return out;
}

const Offsets kNewest = kOffsets.back();

Seen create_newest(const DeviceRank& rank, int barriers, std::vector<Resource> resources = {}) {
  return see(create_bytes(rank, kNewest, barriers, std::move(resources)), kNewest);
}

// What a barrier session of NVIDIA's header does, with one thread: the epoch is kept at the end.
class PlayedBarrier {
 public:
  PlayedBarrier(const DeviceRank& rank, const Seen& seen, int index)
      : rank_(rank), seen_(seen), index_(static_cast<std::uint64_t>(index)) {
    epoch_ = rank_.read<std::uint32_t>(epoch_address());
  }
  ~PlayedBarrier() { rank_.write(epoch_address(), epoch_); }
  PlayedBarrier(const PlayedBarrier&) = delete;
  PlayedBarrier& operator=(const PlayedBarrier&) = delete;

  void arrive() const {
    for (int peer = 0; peer < seen_.ranks; ++peer) {
      if (peer != seen_.rank) rank_.write(inbox(peer, seen_.rank), epoch_ + 1);
    }
  }
  // @return false where the abort flag ended the wait
  bool wait() {
    for (int peer = 0; peer < seen_.ranks; ++peer) {
      if (peer == seen_.rank) continue;
      while (rank_.read<std::uint32_t>(inbox(seen_.rank, peer)) - (epoch_ + 1) > 0x7fffffffU) {
        std::uint32_t flag = 0;
        if (seen_.abort_flag != 0) {
          std::memcpy(&flag, reinterpret_cast<const void*>(seen_.abort_flag), sizeof flag);
        }
        if (flag != 0) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    }
    ++epoch_;
    return true;
  }
  void sync() {
    arrive();
    ASSERT_TRUE(wait());
  }

 private:
  [[nodiscard]] std::uint64_t word(int owner, std::uint64_t index) const {
    return seen_.resource(owner, seen_.barrier_handle) + index * 4;
  }
  [[nodiscard]] std::uint64_t epoch_address() const {
    return word(seen_.rank, static_cast<std::uint64_t>(seen_.barriers) + index_);
  }
  [[nodiscard]] std::uint64_t inbox(int owner, int peer) const {
    return word(owner, 3 * static_cast<std::uint64_t>(seen_.barriers) +
                           index_ * static_cast<std::uint64_t>(seen_.ranks) +
                           static_cast<std::uint64_t>(peer));
  }

  const DeviceRank& rank_;
  const Seen seen_;
  const std::uint64_t index_;
  std::uint32_t epoch_ = 0;
};

// As ncclFindWindow, but 0 where that would fault behind the last block.
std::uint64_t find_window(const DeviceRank& rank, std::uint64_t table, std::uint64_t address) {
  struct Entry {
    std::uint64_t base, size, window;
  };
  struct Block {
    std::array<Entry, 32> entries;
    std::uint64_t next;
  };
  while (table != 0) {
    const auto block = rank.read<Block>(table);
    for (const Entry& entry : block.entries) {
      if (entry.window != 0 && address - entry.base < entry.size) return entry.window;
    }
    table = block.next;
  }
  return 0;
}

std::uint64_t number_of_window(ncclWindow_t window) {
  return reinterpret_cast<std::uint64_t>(window);
}

// Every byte of every version, and none behind it.
TEST_F(DeviceCommsTest, EachVersionsStructureIsFilledByteByByte) {
  ranks(3, [](DeviceRank& rank) {
    for (const Offsets& at : kOffsets) {
      ResourceHandle handle = 99;
      const Bytes out = create_bytes(rank, at, 6, {{1000, 1, &handle}});
      const Seen seen = see(out, at);
      Bytes expected(300, std::byte{0xee});
      std::fill_n(expected.begin(), at.size, std::byte{0});
      if (at.rank == 8) {
        set_field(expected, 0, std::uint32_t{0xcafebeef});
        set_field(expected, 4, std::uint32_t{at.version});
      }
      for (const std::size_t team : {at.rank, at.rank + 12}) {
        set_field(expected, team, rank.rank());
        set_field(expected, team + 4, 3);
        set_field(expected, team + 8, std::uint32_t{0x55555555});
      }
      set_field(expected, at.window_table, seen.table);
      set_field(expected, at.resource_window, seen.window);
      set_field(expected, at.flat_base, seen.base);
      set_field(expected, at.stride, std::uint32_t{1});
      if (at.team_ranks != 0) {
        set_field(expected, at.team_ranks, rank.rank());
        set_field(expected, at.team_ranks + 4, rank.rank());
      }
      set_field(expected, at.lsa_barrier + 4, 6);
      if (at.abort_flag != 0) set_field(expected, at.abort_flag, seen.abort_flag);
      EXPECT_EQ(out, expected) << at.version;
      EXPECT_NE(seen.table, 0U);
      EXPECT_EQ(seen.abort_flag != 0, at.abort_flag != 0);
      // The window, as kernels read it, is the one that is inlined.
      const auto window = rank.read<ncclWindow_vidmem>(seen.window);
      EXPECT_EQ(reinterpret_cast<std::uint64_t>(window.lsaFlatBase), seen.base);
      EXPECT_EQ(window.stride4G, 1U);
      EXPECT_EQ(window.lsaRank, rank.rank());
      // 6 barriers of 3 ranks are 144 bytes.
      EXPECT_EQ(handle, 2U);
      rank.device_comms().destroy(out.data());
    }
  });
}

TEST_F(DeviceCommsTest, AReciprocalOfOneAndOfPowersOfTwoIsAsTheHeaderDividesByIt) {
  for (const auto& [size, reciprocal] : std::vector<std::pair<int, std::uint32_t>>{
           {1, 0U}, {2, 0x80000000U}, {4, 0x40000000U}, {5, 0x33333333U}}) {
    ranks(size, [&, expected = reciprocal](DeviceRank& rank) {
      const Bytes out = create_bytes(rank, kNewest, 0);
      EXPECT_EQ(field<std::uint32_t>(out, 16), expected);
      EXPECT_EQ(field<std::uint32_t>(out, 28), expected);
    });
  }
}

// Data that was written before a barrier is there after it, for barriers that go at once too.
TEST_F(DeviceCommsTest, BarriersHoldRanksBack) {
  ranks(3, [](DeviceRank& rank) {
    for (const Offsets& at : kOffsets) {
      ResourceHandle handle = 0;
      const Bytes out = create_bytes(rank, at, 4, {{12, 4, &handle}});
      const Seen seen = see(out, at);
      for (const int index : {3, 0}) {
        PlayedBarrier barrier(rank, seen, index);
        for (std::uint32_t turn = 1; turn <= 6; ++turn) {
          for (int peer = 0; peer < 3; ++peer) {
            rank.write(seen.resource(peer, handle) + static_cast<std::uint64_t>(rank.rank()) * 4,
                       turn * 10 + static_cast<std::uint32_t>(rank.rank()));
          }
          barrier.sync();
          const auto got =
              rank.read<std::array<std::uint32_t, 3>>(seen.resource(rank.rank(), handle));
          EXPECT_EQ(got, (std::array<std::uint32_t, 3>{turn * 10, turn * 10 + 1, turn * 10 + 2}));
          barrier.sync();
        }
      }
      // A later session goes on where the last one ended.
      const auto epoch = [&] {
        return rank.read<std::uint32_t>(seen.resource(rank.rank(), 0) + 28);
      };
      EXPECT_EQ(epoch(), 12U);
      PlayedBarrier(rank, seen, 3).sync();
      EXPECT_EQ(epoch(), 13U);
      rank.barrier();
      rank.device_comms().destroy(out.data());
    }
  });
}

TEST_F(DeviceCommsTest, ResourcesLieApartAlignedAndZeroed) {
  ranks(2, [](DeviceRank& rank) {
    std::array<ResourceHandle, 4> handles{};
    const Seen seen = create_newest(rank, 1,
                                    {{1, 1, &handles[0]},
                                     {129, 4096, &handles[1]},
                                     {300'000, 16, &handles[2]},
                                     {0, 1, nullptr},
                                     {16, 1, &handles[3]}});
    // 20 bytes of a barrier; 1 byte; 129 behind the next 4096; 300,000 behind 129.
    EXPECT_EQ(handles, (std::array<ResourceHandle, 4>{1, 32, 34, 34 + 2344}));
    const std::uint64_t total = std::uint64_t{34 + 2344 + 1} * 128;
    for (int peer = 0; peer < 2; ++peer) {
      Bytes all(total);
      rank.gpu().fetch(all.data(), seen.resource(peer, 0), total);
      EXPECT_EQ(all, Bytes(total)) << peer;
    }
    EXPECT_GE(rank.device_comms().memory_bytes(), total);
    rank.barrier();
    // Each rank writes into the other's, at the offsets that it knows.
    rank.write(seen.resource(1 - rank.rank(), handles[3]), 40 + rank.rank());
    rank.barrier();
    EXPECT_EQ(rank.read<int>(seen.resource(rank.rank(), handles[3])), 41 - rank.rank());
    // The host finds the same addresses.
    void* given = nullptr;
    const auto window = reinterpret_cast<ncclWindow_t>(seen.window);
    ASSERT_EQ(ncclGetLsaDevicePointer(window, 128, 1, &given), ncclSuccess);
    EXPECT_EQ(reinterpret_cast<std::uint64_t>(given), seen.resource(1, 1));
    EXPECT_EQ(find_window(rank, seen.table, seen.resource(rank.rank(), 0) + total - 1),
              seen.window);
    EXPECT_EQ(ncclCommWindowDeregister(rank.comm(), window), ncclInvalidArgument);
    EXPECT_NE(std::string(ncclGetLastError(nullptr)).find("ncclDevCommDestroy"), std::string::npos);
  });
}

// All of the communicator, also those that come later, in every device communicator's table.
TEST_F(DeviceCommsTest, WindowsAreFoundByAddressWhileTheyAreRegistered) {
  ranks(2, [](DeviceRank& rank) {
    constexpr std::size_t kBytes = 5000;
    constexpr std::size_t kWindows = 70;  // more than two blocks have
    std::vector<std::unique_ptr<gpus::DeviceBuffer>> buffers;
    std::vector<ncclWindow_t> windows;
    const auto add = [&] {
      buffers.push_back(std::make_unique<gpus::DeviceBuffer>(
          rank.gpu(), kBytes, gpus::DeviceBuffer::From::kVirtualMemory));
      windows.push_back(rank.register_window(buffers.back()->pointer(), kBytes));
    };
    for (int n = 0; n < 3; ++n) add();
    const std::uint64_t table = create_newest(rank, 1).table;
    while (windows.size() < kWindows) add();
    const auto found = [&](std::size_t n, std::size_t offset) {
      return find_window(rank, table, buffers[n]->data() + offset);
    };
    for (std::size_t n = 0; n < kWindows; ++n) {
      ASSERT_EQ(found(n, 0), number_of_window(windows[n])) << n;
      ASSERT_EQ(found(n, kBytes - 1), number_of_window(windows[n])) << n;
      ASSERT_EQ(found(n, kBytes), 0U) << n;
    }
    // One that goes leaves its slot to the next.
    for (const std::size_t gone : {0UL, 31UL, 69UL}) {
      rank.deregister_window(windows[gone]);
      EXPECT_EQ(found(gone, 0), 0U);
    }
    add();
    EXPECT_EQ(found(kWindows, 100), number_of_window(windows[kWindows]));
    EXPECT_EQ(found(1, 100), number_of_window(windows[1]));
    // A second device communicator has the same windows.
    EXPECT_EQ(create_newest(rank, 1).table, table);
    rank.barrier();
  });
}

// Memory that kernels cannot read is left out: what they found would be no address.
TEST_F(DeviceCommsTest, WindowsThatKernelsCannotReadAreNotFound) {
  ranks(2, [](DeviceRank& rank) {
    const gpus::DeviceBuffer memory(rank.gpu(), 1000, gpus::DeviceBuffer::From::kAllocator);
    const ncclWindow_t window = rank.register_window(memory.pointer(), 1000);
    EXPECT_EQ(window_of(window)->flat, nullptr);
    EXPECT_EQ(find_window(rank, create_newest(rank, 1).table, memory.data()), 0U);
    rank.barrier();
  });
}

TEST_F(DeviceCommsTest, WithoutResourcesThereIsNoWindow) {
  ranks(2, [](DeviceRank& rank) {
    for (const Offsets& at : kOffsets) {
      const Bytes out = create_bytes(rank, at, 0);
      const Seen seen = see(out, at);
      EXPECT_EQ(seen.window, 0U);
      EXPECT_EQ(seen.base, 0U);
      EXPECT_NE(seen.table, 0U);
      EXPECT_EQ(ncclDevCommDestroy(rank.comm(), out.data()), ncclSuccess);
    }
  });
}

TEST_F(DeviceCommsTest, RanksThatAskForOtherResourcesAreAllRefused) {
  ranks(3, [](DeviceRank& rank) {
    const auto refused = [&](const DevCommRequest& request) {
      Bytes out(300, std::byte{0xee});
      const auto [code, words] =
          refusal_of([&] { rank.device_comms().create(request, out.data()); });
      EXPECT_EQ(out, Bytes(300, std::byte{0xee}));
      return words;
    };
    // refusal_of() names errors that are not of windows "broke: "; the communicator is whole.
    EXPECT_EQ(refused(request_of(rank.rank() == 2 ? 4 : 8)),
              "broke: reqs: ranks ask for different device communicators: rank 2 for 4 LSA "
              "barriers and 0 resources, 128 bytes in all, rank 0 for 8 LSA barriers and 0 "
              "resources, 256 bytes in all");
    ResourceHandle untouched = 99;
    std::vector<Resource> resources = {{128, 1, &untouched}, {256, 1, &untouched}};
    if (rank.rank() == 1) std::swap(resources[0], resources[1]);
    EXPECT_NE(refused(request_of(0, resources))
                  .find("rank 1 for 0 LSA barriers and 2 resources, 384 "
                        "bytes in all, rank 0 for"),
              std::string::npos);
    EXPECT_NE(refused(request_of(0, resources)).find(", of other sizes or in another order"),
              std::string::npos);
    EXPECT_EQ(untouched, 99U);
    EXPECT_EQ(rank.device_comms().memory_bytes(), 0U);
    // Programs of two versions may meet.
    const Offsets& at = kOffsets[rank.rank() == 0 ? 0 : 3];
    const Seen seen = see(create_bytes(rank, at, 2), at);
    PlayedBarrier(rank, seen, 1).sync();
    rank.barrier();
  });
}

TEST_F(DeviceCommsTest, ARanksRefusalIsToldToAll) {
  ranks(3, [](DeviceRank& rank) {
    const auto [code, words] = refusal_of([&] {
      if (rank.rank() == 1) {
        DeviceComms::refuse(*rank.core().comm,
                            Error(Errc::kInvalidUsage, "reqs: {} is what it cannot", "this"));
      } else {
        Bytes out(300);
        rank.device_comms().create(request_of(2), out.data());
      }
    });
    EXPECT_EQ(words, rank.rank() == 1 ? "broke: reqs: this is what it cannot"
                                      : "broke: rank 1: reqs: this is what it cannot");
    // More than handles reach.
    const auto [code2, words2] = refusal_of([&] {
      Bytes out(300);
      rank.device_comms().create(request_of(1, {{std::uint64_t{1} << 39U, 1, nullptr}}),
                                 out.data());
    });
    EXPECT_NE(words2.find("and 549755813888 are the most"), std::string::npos) << words2;
    PlayedBarrier(rank, create_newest(rank, 1), 0).sync();
    rank.barrier();
  });
}

TEST_F(DeviceCommsTest, EachIsDestroyedOnceAndByItsCommunicator) {
  ranks(2, [](DeviceRank& rank) {
    const Bytes first = create_bytes(rank, kNewest, 2);
    const Bytes second = create_bytes(rank, kOffsets[0], 2);
    const Seen seen = see(second, kOffsets[0]);
    EXPECT_EQ(ncclDevCommDestroy(rank.comm(), first.data()), ncclSuccess);
    EXPECT_EQ(ncclDevCommDestroy(rank.comm(), first.data()), ncclInvalidArgument);
    const auto gone = reinterpret_cast<ncclWindow_t>(see(first, kNewest).window);
    void* given = nullptr;
    EXPECT_EQ(ncclGetLsaDevicePointer(gone, 0, 0, &given), ncclInvalidArgument);
    EXPECT_EQ(find_window(rank, seen.table, see(first, kNewest).resource(rank.rank(), 0)), 0U);
    // The other one, and what this rank's neighbour has mapped of it, stay.
    PlayedBarrier(rank, seen, 1).sync();
    rank.barrier();
    // A window of the program's is none.
    const gpus::DeviceBuffer memory(rank.gpu(), 100, gpus::DeviceBuffer::From::kVirtualMemory);
    Bytes forged = first;
    set_field(forged, kNewest.resource_window,
              number_of_window(rank.register_window(memory.pointer(), 100)));
    EXPECT_EQ(ncclDevCommDestroy(rank.comm(), forged.data()), ncclInvalidArgument);
    rank.barrier();
    // The rest ends with the communicator.
  });
}

TEST_F(DeviceCommsTest, KernelsThatWaitEndWhenTheCommunicatorIsAborted) {
  ranks(
      2,
      [](DeviceRank& rank) {
        const Seen seen = create_newest(rank, 1);
        rank.barrier();
        if (rank.rank() == 1) {
          rank.core().comm->abort("the test");
          return;
        }
        // Rank 1 never comes.
        PlayedBarrier barrier(rank, seen, 0);
        barrier.arrive();
        EXPECT_FALSE(barrier.wait());
        EXPECT_TRUE(rank.core().comm->failure().broken());
      },
      false);
}

TEST_F(DeviceCommsTest, CallsThatCannotBeRightAreRefused) {
  ranks(2, [](DeviceRank& rank) {
    Bytes out(300);
    const Bytes request(120);
    ncclComm_t comm = rank.comm();
    EXPECT_EQ(ncclDevCommCreate(nullptr, request.data(), out.data()), ncclInvalidArgument);
    EXPECT_EQ(ncclDevCommCreate(comm, nullptr, out.data()), ncclInvalidArgument);
    EXPECT_EQ(ncclDevCommCreate(comm, request.data(), nullptr), ncclInvalidArgument);
    EXPECT_EQ(ncclDevCommDestroy(nullptr, out.data()), ncclInvalidArgument);
    EXPECT_EQ(ncclDevCommDestroy(comm, nullptr), ncclInvalidArgument);
    rank.barrier();
    // The communicator was given no GPU.
    EXPECT_EQ(ncclDevCommCreate(comm, request.data(), out.data()), ncclInvalidUsage);
    EXPECT_NE(std::string(ncclGetLastError(nullptr))
                  .find("there are no device communicators: the communicator has no GPU"),
              std::string::npos);
    EXPECT_EQ(out, Bytes(300));
    rank.barrier();
  });
}

}  // namespace
}  // namespace ropewalk::nccl
