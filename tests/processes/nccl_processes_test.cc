// ncclPutSignal and ncclWaitSignal between processes, with software that stands in for CUDA's
// driver: memory of cudaMalloc over CUDA IPC; memory of virtual memory functions mapped side by
// side, or over links, whose signals go by IPC all the same and must not come before the data. And
// device communicators.
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "capi/nccl/device_comms.h"
#include "capi/nccl/handle.h"
#include "capi/nccl/windows.h"
#include "processes/expect_done.h"
#include "processes/rank_processes.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::testing {
namespace {

namespace gpus = transport::window;

struct Case {
  std::string name;
  gpus::DeviceBuffer::From from = gpus::DeviceBuffer::From::kAllocator;
  bool flat = false;    // mapped side by side
  bool mapped = false;  // reached without a link
};

class NcclProcesses : public ::testing::TestWithParam<Case> {};

TEST_P(NcclProcesses, DataIsThereWhenItsSignalWasWaitedFor) {
  const Case& each = GetParam();
  RankOptions options;
  options.settings = {
      {"TIMEOUT", "20"}, {"CUDA_LIBRARY", RW_STAND_IN_CUDA}, {"SOCKET_IFNAME", "lo"}};
  RankProcesses ranks(3, options, [&](comm::Communicator& comm) -> std::string {
    constexpr std::size_t kBytes = 300'007;
    const int rank = comm.rank();
    gpus::Gpu& gpu = comm.runtime().gpus().at(rank % 2);
    nccl::OneSided one_sided(comm, gpu.ordinal(), {});
    const gpus::DeviceBuffer source(gpu, kBytes, each.from);
    const gpus::DeviceBuffer memory(gpu, kBytes, each.from);
    nccl::Window registered;
    registered.buffer = memory.pointer();
    if (each.flat) nccl::add_flat(comm, gpu.ordinal(), registered, kBytes);
    if ((registered.flat != nullptr) != each.flat) return "side by side";
    nccl::add_puts(one_sided, registered, kBytes);
    message::Window& window = *registered.puts;
    const int next = (rank + 1) % 3;
    const int previous = (rank + 2) % 3;
    if (window.part(next).mapped != each.mapped) return "mapped";
    const gpus::CurrentContext current(gpu.cuda(), gpu.context());
    gpus::CuStream stream = nullptr;
    gpu.cuda().check(gpu.cuda().stream_create(&stream, gpus::kCuStreamNonBlocking, 0), "stream");
    std::vector<std::byte> seen(kBytes);
    for (int turn = 0; turn < 20; ++turn) {
      const std::vector<std::byte> values(kBytes, static_cast<std::byte>(turn * 3 + rank));
      gpu.fill(source.data(), values.data(), kBytes);
      std::vector<message::OperationSpec> specs;
      one_sided.put(specs, window, next, 0, source.pointer(), kBytes, 0, 0);
      one_sided.wait(specs, previous, 0, 0, 1);
      nccl::OneSidedCalls::run(one_sided, specs, stream);
      while (gpu.cuda().stream_query(stream) == gpus::kCuNotReady) {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
      gpu.fetch(seen.data(), memory.data(), kBytes);
      const std::vector<std::byte> expected(kBytes, static_cast<std::byte>(turn * 3 + previous));
      if (seen != expected) return fmt::format("turn {}", turn);
      comm.barrier();
    }
    one_sided.remove(window);
    gpu.cuda().check(gpu.cuda().stream_destroy(stream), "stream");
    return "done";
  });
  expect_done(ranks, 3);
}

// What kernels would store through the words of ncclDevComm of 2.32, each into every rank's part of
// the resource window, and the flag that ends their waits when a rank is lost.
TEST(NcclDeviceComms, ResourcesOfProcessesAreReachedAndALostRankEndsWaits) {
  RankOptions options;
  options.settings = {
      {"TIMEOUT", "20"}, {"CUDA_LIBRARY", RW_STAND_IN_CUDA}, {"SOCKET_IFNAME", "lo"}};
  RankProcesses ranks(3, options, [&](comm::Communicator& comm) -> std::string {
    const int rank = comm.rank();
    gpus::Gpu& gpu = comm.runtime().gpus().at(rank % 2);
    const nccl::Core core(gpu.ordinal(), {});
    nccl::DeviceComms device_comms(comm, gpu.ordinal(), core);
    nccl::ResourceHandle handle = 0;
    nccl::DevCommRequest request;
    request.version = 23203;
    request.layout = nccl::DevCommLayout::k23100;
    request.lsa_barriers = 2;
    request.resources = {{4096, 256, &handle}};
    nccl::DevComm23100 made{};
    device_comms.create(request, &made);
    const auto at = [&](int peer, int index) {
      return reinterpret_cast<std::uint64_t>(made.resourceWindow_inlined.lsaFlatBase) +
             (std::uint64_t{made.resourceWindow_inlined.stride4G} * static_cast<unsigned>(peer)
              << 32U) +
             handle * std::uint64_t{128} + static_cast<unsigned>(index) * std::uint64_t{4};
    };
    for (int peer = 0; peer < 3; ++peer) {
      const int value = 10 * rank + peer;
      gpu.fill(at(peer, rank), &value, sizeof value);
    }
    comm.barrier();
    for (int peer = 0; peer < 3; ++peer) {
      int value = -1;
      gpu.fetch(&value, at(rank, peer), sizeof value);
      if (value != 10 * peer + rank) return fmt::format("from rank {}: {}", peer, value);
    }
    comm.barrier();
    if (rank == 1) raise(SIGKILL);
    const auto* flag = reinterpret_cast<const volatile std::uint32_t*>(  // NOLINT
        made.abortFlag);
    for (int tenths = 0; *flag == 0 && tenths < 100; ++tenths) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    if (*flag == 0) return "the flag was not raised";
    device_comms.destroy(&made);
    return "done";
  });
  for (const int rank : {0, 2}) {
    const std::optional<Report> report = ranks.wait(rank, std::chrono::seconds(30));
    ASSERT_TRUE(report.has_value()) << rank;
    EXPECT_EQ(report->text, "done") << rank;
  }
}

constexpr auto kAllocator = gpus::DeviceBuffer::From::kAllocator;
constexpr auto kPages = gpus::DeviceBuffer::From::kVirtualMemory;

INSTANTIATE_TEST_SUITE_P(Memory, NcclProcesses,
                         ::testing::Values(Case{"cudaMalloc", kAllocator, false, true},
                                           Case{"pages", kPages, false, false},
                                           Case{"pages_side_by_side", kPages, true, true}),
                         [](const auto& each) { return each.param.name; });

}  // namespace
}  // namespace ropewalk::testing
