// The software libsisci: its life cycles, error codes and faults.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

#include "fixture.h"
#include "sisci_api.h"
#include "transport/window/sisci/testing/fabric.h"

// Objects that a test leaves to SCITerminate are freed with the process.
extern "C" const char* __lsan_default_suppressions() { return "leak:libsisci.so"; }

namespace {

using namespace std::chrono_literals;
using ropewalk::transport::SoftwareFabric;
using software_sisci::testing::kBytes;
using software_sisci::testing::kPage;
using software_sisci::testing::SoftwareSisci;

TEST_F(SoftwareSisci, ExportsBothKindsOfNames) {
  void* self = dlopen(RW_SOFTWARE_SISCI, RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(self, nullptr);
  void* st = dlsym(self, "_SISCI_PUBLIC_FUNC_ST_SCIOpen");
  EXPECT_NE(st, nullptr);
  EXPECT_EQ(st, dlsym(self, "_SISCI_PUBLIC_FUNC_MT_SCIOpen"));
  EXPECT_NE(dlsym(self, "_SISCI_PUBLIC_CONST_SCI_Q_ADAPTER_BDF"), nullptr);
  EXPECT_EQ(dlsym(self, "SCIOpen"), nullptr);
  dlclose(self);
}

TEST_F(SoftwareSisci, AnswersQueries) {
  set("adapters 2\nbus 21\nlink_width 16\nlink_generation 4\nlink_down 0 1\n");
  const auto ask = [&](unsigned adapter, unsigned what) {
    unsigned answer = 0xdead;
    sci_query_adapter_t query{adapter, 0, what, &answer};
    SCIQuery(SCI_Q_ADAPTER, &query, 0, &error_);
    return error_ == SCI_ERR_OK ? answer : 0xbad;
  };
  EXPECT_EQ(ask(0, SCI_Q_ADAPTER_NODEID), 4U);
  EXPECT_EQ(ask(1, SCI_Q_ADAPTER_NODEID), 260U);
  EXPECT_EQ(ask(1, SCI_Q_ADAPTER_BDF), 0x2208U);
  EXPECT_NE(ask(0, SCI_Q_ADAPTER_SERIAL_NUMBER), ask(1, SCI_Q_ADAPTER_SERIAL_NUMBER));
  EXPECT_EQ(ask(0, SCI_Q_ADAPTER_LINK_OPERATIONAL), 1U);
  EXPECT_EQ(ask(1, SCI_Q_ADAPTER_LINK_OPERATIONAL), 0U);
  EXPECT_EQ(ask(0, SCI_Q_ADAPTER_LINK_WIDTH), 16U);
  EXPECT_EQ(ask(0, SCI_Q_ADAPTER_LINK_SPEED), 4U);
  EXPECT_EQ(ask(0, 1), 0xbadU);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_QUERY);
  EXPECT_EQ(ask(2, SCI_Q_ADAPTER_NODEID), 0xbadU);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_ADAPTERNO);
  EXPECT_EQ(ask(99, SCI_Q_ADAPTER_NODEID), 0xbadU);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_ADAPTERNO);
  sci_dma_capabilities_t capabilities{};
  sci_query_dma_t query{0, SCI_Q_DMA_CAPABILITIES, &capabilities};
  SCIQuery(SCI_Q_DMA, &query, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(capabilities.min_align_bytes, 1U);
  char text[32];
  sci_query_string_t version{text, sizeof text};
  SCIQuery(SCI_Q_API, &version, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(std::string(text).substr(0, 2), "2.");
  EXPECT_EQ(SCIProbeNode(sd_, 0, 8, 0, &error_), 1);
  SCIProbeNode(sd_, 0, 5, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_NODEID);
  dis_nodeId_list_t nodes{};
  dis_virt_adapter_t type = 0;
  char name[] = "host2";
  SCIGetNodeIdByAdapterName(name, &nodes, &type, 0, &error_);
  EXPECT_EQ(nodes[0], 12U);
  EXPECT_EQ(nodes[1], 268U);
  EXPECT_EQ(nodes[2], 0U);
  EXPECT_STREQ(SCIGetErrorString(SCI_ERR_BUSY), "Resource busy");
}

TEST_F(SoftwareSisci, SegmentsFollowTheirLife) {
  sci_local_segment_t segment = create(1);
  ASSERT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(SCIGetLocalSegmentId(segment), 1U);
  EXPECT_EQ(create(1), nullptr);
  EXPECT_EQ(error_, SCI_ERR_SEGMENTID_USED);
  (void)connect(1);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_SEGMENT);
  SCISetSegmentAvailable(segment, 0, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_SEGMENT_NOT_PREPARED);
  SCIPrepareSegment(segment, 0, 0, &error_);
  (void)connect(1);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_SEGMENT);
  SCISetSegmentAvailable(segment, 0, 0, &error_);
  sci_remote_segment_t remote = connect(1);
  ASSERT_EQ(error_, SCI_ERR_OK);
  SCIClose(sd_, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_BUSY);
  SCIDisconnectSegment(remote, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  SCISetSegmentUnavailable(segment, 0, 0, &error_);
  (void)connect(1);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_SEGMENT);
  SCIRemoveSegment(segment, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  SCIClose(sd_, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
}

TEST_F(SoftwareSisci, PrivateSegmentsAreNotAvailable) {
  sci_local_segment_t segment = create(1, kBytes, SCI_FLAG_PRIVATE);
  SCIPrepareSegment(segment, 0, 0, &error_);
  SCISetSegmentAvailable(segment, 0, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
}

TEST_F(SoftwareSisci, MapsAreChecked) {
  sci_local_segment_t segment = available(1);
  sci_remote_segment_t remote = connect(1);
  std::byte* mine = local_memory(segment);
  sci_map_t map = nullptr;
  (void)SCIMapRemoteSegment(remote, &map, 100, kPage, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OFFSET_ALIGNMENT);
  (void)SCIMapRemoteSegment(remote, &map, kPage, kBytes, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OUT_OF_RANGE);
  volatile void* theirs = SCIMapRemoteSegment(remote, &map, kPage, kPage, nullptr, 0, &error_);
  ASSERT_EQ(error_, SCI_ERR_OK);
  *static_cast<volatile int*>(theirs) = 7;
  int seen = 0;
  std::memcpy(&seen, mine + kPage, sizeof seen);
  EXPECT_EQ(seen, 7);
  EXPECT_EQ(SCIGetMapPointer(map), theirs);
  sci_sequence_t sequence = nullptr;
  SCICreateMapSequence(map, &sequence, 0, &error_);
  SCIDisconnectSegment(remote, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_BUSY);
  char block[64] = "block";
  SCIMemCpy(sequence, block, map, 128, sizeof block, SCI_FLAG_ERROR_CHECK, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_STREQ(reinterpret_cast<char*>(mine + kPage + 128), "block");
  char back[64] = "";
  SCIMemCpy(sequence, back, map, 128, sizeof back, SCI_FLAG_BLOCK_READ, &error_);
  EXPECT_STREQ(back, "block");
  SCIMemCpy(sequence, block, map, kPage - 1, 2, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OUT_OF_RANGE);
  SCIRemoveSequence(sequence, 0, &error_);
  SCIUnmapSegment(map, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
}

TEST_F(SoftwareSisci, QueuesFollowTheirStates) {
  sci_local_segment_t from = available(1);
  sci_local_segment_t to = available(2);
  sci_remote_segment_t remote = connect(2);
  std::byte* source = local_memory(from);
  std::byte* target = local_memory(to);
  std::memset(source, 0x5a, kBytes);
  sci_dma_queue_t dma = queue();
  EXPECT_EQ(SCIDMAQueueState(dma), SCI_DMAQUEUE_IDLE);
  (void)SCIWaitForDMAQueue(dma, 0, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
  SCIStartDmaTransfer(dma, from, remote, 0, kBytes + 1, 0, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OUT_OF_RANGE);
  SCIStartDmaTransfer(dma, from, remote, 0, 100, kBytes - 99, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OUT_OF_RANGE);
  SCIStartDmaTransfer(dma, create(3), remote, 0, 100, 0, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_SEGMENT_NOT_PREPARED);
  set("latency_us 200000\n");
  SCIStartDmaTransfer(dma, from, remote, 1, 1000, 3, nullptr, nullptr, 0, &error_);
  ASSERT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(SCIDMAQueueState(dma), SCI_DMAQUEUE_POSTED);
  SCIStartDmaTransfer(dma, from, remote, 0, 1000, 0, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
  SCIRemoveDMAQueue(dma, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
  SCIDisconnectSegment(remote, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_BUSY);
  (void)SCIWaitForDMAQueue(dma, 1, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_TIMEOUT);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
  EXPECT_EQ(target[3], std::byte{0x5a});
  EXPECT_EQ(target[2], std::byte{0});
  SCIStartDmaTransfer(dma, from, remote, 0, 1000, 0, nullptr, nullptr, 0, &error_);
  SCIAbortDMAQueue(dma, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(SCIDMAQueueState(dma), SCI_DMAQUEUE_ABORTED);
  SCIRemoveDMAQueue(dma, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
}

// Without a query of its state.
TEST_F(SoftwareSisci, TransfersGoOnByThemselves) {
  sci_local_segment_t to = available(2, 8 << 20);
  std::byte* target = local_memory(to);
  sci_remote_segment_t remote = connect(2);
  std::vector<std::byte> source(8 << 20, std::byte{3});
  sci_dma_queue_t dma = queue();
  SCIStartDmaTransferMem(dma, source.data(), remote, source.size(), 0, nullptr, nullptr, 0,
                         &error_);
  ASSERT_EQ(error_, SCI_ERR_OK);
  volatile std::byte* last = target + source.size() - 1;
  for (int i = 0; i < 10'000 && *last != std::byte{3}; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(std::to_integer<int>(*last), 3);
}

TEST_F(SoftwareSisci, RegistersWholePagesAlone) {
  sci_local_segment_t segment = create(1, 4 * kPage, SCI_FLAG_EMPTY);
  std::byte* memory = pages(8 * kPage);
  SCIPrepareSegment(segment, 0, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
  SCIRegisterSegmentMemory(memory + 8, kPage, segment, SCI_FLAG_LOCK_USER_MEM, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_ADDRESS);
  SCIRegisterSegmentMemory(memory, kPage + 8, segment, SCI_FLAG_LOCK_USER_MEM, &error_);
  EXPECT_EQ(error_, SCI_ERR_SIZE_ALIGNMENT);
  SCIRegisterSegmentMemory(memory, 5 * kPage, segment, SCI_FLAG_LOCK_USER_MEM, &error_);
  EXPECT_EQ(error_, SCI_ERR_OUT_OF_RANGE);
  SCIRegisterSegmentMemory(nullptr, kPage, segment, SCI_FLAG_LOCK_USER_MEM, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_ADDRESS);
  SCIRegisterSegmentMemory(memory, 4 * kPage, segment, SCI_FLAG_LOCK_USER_MEM, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  SCIRegisterSegmentMemory(memory, 4 * kPage, segment, SCI_FLAG_LOCK_USER_MEM, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
}

TEST_F(SoftwareSisci, IommusMayBeAbsentOrBroken) {
  sci_local_segment_t segment = create(1, kPage, SCI_FLAG_EMPTY);
  std::byte* memory = pages(kPage);
  set("iommu absent\n");
  SCIRegisterSegmentMemory(memory, kPage, segment, SCI_FLAG_LOCK_USER_MEM, &error_);
  EXPECT_EQ(error_, SCI_ERR_NOT_SUPPORTED);
  set("iommu broken\n");
  SCIRegisterSegmentMemory(memory, kPage, segment, SCI_FLAG_LOCK_USER_MEM, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  SCIPrepareSegment(segment, 0, 0, &error_);
  SCISetSegmentAvailable(segment, 0, 0, &error_);
  sci_remote_segment_t remote = connect(1);
  std::vector<std::byte> source(kPage, std::byte{9});
  sci_dma_queue_t dma = queue();
  SCIStartDmaTransferMem(dma, source.data(), remote, kPage, 0, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
  EXPECT_EQ(memory[0], std::byte{0});  // a success that moved nothing
  set("\n");
  SCIStartDmaTransferMem(dma, source.data(), remote, kPage, 0, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
  EXPECT_EQ(memory[0], std::byte{9});
}

// Memory of a stand-in for CUDA, as a program takes it.
class GpuPages {
 public:
  explicit GpuPages(std::size_t bytes) : library_(dlopen(RW_STAND_IN_CUDA, RTLD_NOW)) {
    void* context = nullptr;
    EXPECT_EQ(call<int(unsigned)>("cuInit", 0U), 0);
    EXPECT_EQ((call<int(void**, int)>("cuDevicePrimaryCtxRetain", &context, 0)), 0);
    EXPECT_EQ(call<int(void*)>("cuCtxPushCurrent_v2", context), 0);
    EXPECT_EQ((call<int(std::uint64_t*, std::size_t)>("cuMemAlloc_v2", &address_, bytes)), 0);
  }
  ~GpuPages() { call<int(std::uint64_t)>("cuMemFree_v2", address_); }
  GpuPages(const GpuPages&) = delete;
  GpuPages& operator=(const GpuPages&) = delete;
  [[nodiscard]] std::byte* data() const {
    return reinterpret_cast<std::byte*>(address_);  // NOLINT(performance-no-int-to-ptr)
  }

 private:
  template <typename Function, typename... Arguments>
  int call(const char* name, Arguments... arguments) {
    return reinterpret_cast<Function*>(dlsym(library_, name))(arguments...);
  }
  void* library_;
  std::uint64_t address_ = 0;
};

class SoftwareSisciGpu : public SoftwareSisci {
 protected:
  static constexpr std::size_t kGpuBytes = std::size_t{2} << 20;
  void with(const std::string& settings = "") {
    set(std::string("cuda_library ") + RW_STAND_IN_CUDA + "\n" + settings);
  }
  sci_local_segment_t attached(unsigned id, std::byte* memory) {
    sci_local_segment_t segment = create(id, kGpuBytes, SCI_FLAG_EMPTY);
    SCIAttachPhysicalMemory(0, memory, 0, kGpuBytes, segment, SCI_FLAG_CUDA_BUFFER, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
    SCIPrepareSegment(segment, 0, 0, &error_);
    SCISetSegmentAvailable(segment, 0, 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
    return segment;
  }
};

TEST_F(SoftwareSisciGpu, MemoryIsAttachedByItsPages) {
  with("gpu_memory no\n");
  const GpuPages gpu(kGpuBytes);
  std::byte* memory = gpu.data();
  sci_local_segment_t segment = create(1, 64 << 10, SCI_FLAG_EMPTY);
  const auto attach = [&](std::byte* at) {
    SCIAttachPhysicalMemory(0, at, 0, 64 << 10, segment, SCI_FLAG_CUDA_BUFFER, &error_);
    return error_;
  };
  EXPECT_EQ(attach(memory), SCI_ERR_HW_NOSPC);
  with("iommu absent\n");
  EXPECT_EQ(attach(memory), SCI_ERR_NOT_SUPPORTED);
  set("cuda_library libnone.so\n");
  EXPECT_EQ(attach(memory), SCI_ERR_HW_NOSPC);
  with();
  EXPECT_EQ(attach(memory + kPage), SCI_ERR_ILLEGAL_ADDRESS);
  std::byte* host = pages(128 << 10);
  host += (64 << 10) - reinterpret_cast<std::uintptr_t>(host) % (64 << 10);
  EXPECT_EQ(attach(host), SCI_ERR_ILLEGAL_ADDRESS);
  EXPECT_EQ(attach(memory), SCI_ERR_OK);
}

TEST_F(SoftwareSisciGpu, TransfersReachItAndReadItBack) {
  with();
  const GpuPages gpu(kGpuBytes);
  sci_local_segment_t on_gpu = attached(1, gpu.data());
  sci_local_segment_t on_host = available(2);
  std::byte* memory = local_memory(on_host);
  sci_remote_segment_t to_gpu = connect(1);
  sci_remote_segment_t to_host = connect(2);
  ASSERT_EQ(error_, SCI_ERR_OK);
  sci_map_t map = nullptr;
  (void)SCIMapRemoteSegment(to_gpu, &map, 0, kPage, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_NOT_SUPPORTED);
  sci_dma_queue_t dma = queue();
  std::vector<std::byte> source(10'000);
  for (std::size_t i = 0; i < source.size(); ++i) source[i] = static_cast<std::byte>(i * 7);
  SCIStartDmaTransferMem(dma, source.data(), to_gpu, source.size(), 777, nullptr, nullptr, 0,
                         &error_);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
  // By the same engine in the other direction.
  SCIStartDmaTransfer(dma, on_host, to_gpu, 100, source.size(), 777, nullptr, nullptr,
                      SCI_FLAG_DMA_READ, &error_);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
  EXPECT_EQ(std::memcmp(memory + 100, source.data(), source.size()), 0);
  std::memset(memory, 0, kBytes);
  SCIStartDmaTransfer(dma, on_gpu, to_host, 777, source.size(), 3, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
  EXPECT_EQ(std::memcmp(memory + 3, source.data(), source.size()), 0);
}

TEST_F(SoftwareSisciGpu, ABrokenMethodMovesNothing) {
  with();
  const GpuPages gpu(kGpuBytes);
  sci_local_segment_t on_gpu = attached(1, gpu.data());
  sci_local_segment_t on_host = available(2);
  std::byte* memory = local_memory(on_host);
  sci_remote_segment_t to_gpu = connect(1);
  sci_remote_segment_t to_host = connect(2);
  sci_dma_queue_t dma = queue();
  const auto write = [&](std::byte value) {
    memory[0] = value;
    SCIStartDmaTransfer(dma, on_host, to_gpu, 0, 1, 0, nullptr, nullptr, 0, &error_);
    return error_ == SCI_ERR_OK && moved(dma) == SCI_DMAQUEUE_DONE;
  };
  const auto read = [&] {
    memory[9] = std::byte{0};
    SCIStartDmaTransfer(dma, on_gpu, to_host, 0, 1, 9, nullptr, nullptr, 0, &error_);
    return error_ == SCI_ERR_OK && moved(dma) == SCI_DMAQUEUE_DONE ? memory[9] : std::byte{0xff};
  };
  EXPECT_TRUE(write(std::byte{1}));
  EXPECT_EQ(read(), std::byte{1});
  with("iommu broken\n");
  EXPECT_TRUE(write(std::byte{2}));
  EXPECT_EQ(read(), std::byte{0});
  with("lose_gpu_writes yes\n");
  EXPECT_TRUE(write(std::byte{3}));
  EXPECT_EQ(read(), std::byte{1});
  with("lose_gpu_reads yes\n");
  EXPECT_TRUE(write(std::byte{4}));
  EXPECT_EQ(read(), std::byte{0});
  with("attach_error yes\n");
  EXPECT_FALSE(write(std::byte{5}));
  EXPECT_EQ(read(), std::byte{0xff});
  with("lose_gpu_to_gpu yes\n");
  EXPECT_TRUE(write(std::byte{6}));
  EXPECT_EQ(read(), std::byte{6});
}

TEST_F(SoftwareSisci, TransfersMayFailOrBeLost) {
  sci_local_segment_t to = available(2);
  std::byte* target = local_memory(to);
  sci_remote_segment_t remote = connect(2);
  std::vector<std::byte> source(100, std::byte{3});
  sci_dma_queue_t dma = queue();
  set("lose_transfer 1\nfail_transfer 2\n");
  SCIStartDmaTransferMem(dma, source.data(), remote, 100, 0, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
  EXPECT_EQ(target[0], std::byte{0});
  SCIStartDmaTransferMem(dma, source.data(), remote, 100, 0, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_ERROR);
  // The end is final for this queue.
  SCIStartDmaTransferMem(dma, source.data(), remote, 100, 0, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
}

TEST_F(SoftwareSisci, LinksGoDownAndComeBack) {
  sci_local_segment_t segment = available(1);
  std::byte* mine = local_memory(segment);
  sci_remote_segment_t remote = connect(1);
  sci_map_t map = nullptr;
  auto* theirs = static_cast<volatile unsigned*>(
      SCIMapRemoteSegment(remote, &map, 0, kBytes, nullptr, 0, &error_));
  sci_sequence_t sequence = nullptr;
  SCICreateMapSequence(map, &sequence, 0, &error_);
  EXPECT_EQ(SCIStartSequence(sequence, 0, &error_), SCI_SEQ_OK);
  set("link_down 0 0\n");
  sci_error_t status = SCI_ERR_OK;
  EXPECT_EQ(SCIWaitForRemoteSegmentEvent(remote, &status, 1000, 0, &error_),
            SCI_CB_NOT_OPERATIONAL);
  EXPECT_EQ(theirs[5], 0xffffffffU);
  theirs[5] = 1;
  EXPECT_EQ(SCICheckSequence(sequence, 0, &error_), SCI_SEQ_NOT_RETRIABLE);
  sci_dma_queue_t dma = queue();
  SCIStartDmaTransfer(dma, segment, remote, 0, 100, 0, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_NO_LINK_ACCESS);
  (void)connect(1);
  EXPECT_EQ(error_, SCI_ERR_NO_LINK_ACCESS);
  set("\n");
  EXPECT_EQ(SCIWaitForRemoteSegmentEvent(remote, &status, 1000, 0, &error_), SCI_CB_OPERATIONAL);
  EXPECT_EQ(SCICheckSequence(sequence, 0, &error_), SCI_SEQ_RETRIABLE);
  unsigned word = 9;
  std::memcpy(&word, mine + 20, sizeof word);
  EXPECT_EQ(word, 0U);  // what was stored meanwhile has vanished
  theirs[5] = 2;
  EXPECT_EQ(SCICheckSequence(sequence, 0, &error_), SCI_SEQ_OK);
  std::memcpy(&word, mine + 20, sizeof word);
  EXPECT_EQ(word, 2U);
}

TEST_F(SoftwareSisci, DelayedStoresArriveAtAFlush) {
  set("delayed_stores yes\n");
  sci_local_segment_t segment = available(1);
  auto* mine = reinterpret_cast<volatile std::uint64_t*>(local_memory(segment));
  sci_remote_segment_t remote = connect(1);
  sci_map_t map = nullptr;
  auto* theirs = static_cast<volatile std::uint64_t*>(
      SCIMapRemoteSegment(remote, &map, 0, kBytes, nullptr, 0, &error_));
  sci_sequence_t sequence = nullptr;
  SCICreateMapSequence(map, &sequence, 0, &error_);
  theirs[1] = 5;
  SCIFlush(sequence, 0);
  EXPECT_EQ(mine[1], 5U);
  theirs[2] = 6;
  for (int i = 0; i < 1000 && mine[2] != 6; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(mine[2], 6U);
  // Here no thread carries a store to the other side before the flush that loses it does.
  set("delayed_stores yes\nstore_delay_ms 100000\nlost_flush 1\n");
  theirs[3] = 7;
  theirs[4] = 8;
  SCIFlush(sequence, 0);
  EXPECT_EQ(mine[3], 0U);
  EXPECT_EQ(mine[4], 8U);
  EXPECT_EQ(SCICheckSequence(sequence, 0, &error_), SCI_SEQ_RETRIABLE);
  set("delayed_stores yes\n");
  EXPECT_EQ(SCICheckSequence(sequence, 0, &error_), SCI_SEQ_OK);
  EXPECT_EQ(mine[3], 7U);
}

TEST_F(SoftwareSisci, DelayedStoresMayWaitForAFlush) {
  set("delayed_stores yes\nstore_delay_ms 100000\n");
  sci_local_segment_t segment = available(1);
  auto* mine = reinterpret_cast<volatile std::uint64_t*>(local_memory(segment));
  sci_map_t map = nullptr;
  auto* theirs = static_cast<volatile std::uint64_t*>(
      SCIMapRemoteSegment(connect(1), &map, 0, kBytes, nullptr, 0, &error_));
  sci_sequence_t sequence = nullptr;
  SCICreateMapSequence(map, &sequence, 0, &error_);
  theirs[1] = 5;
  std::this_thread::sleep_for(100ms);
  EXPECT_EQ(mine[1], 0U);
  SCIFlush(sequence, 0);
  EXPECT_EQ(mine[1], 5U);
  theirs[2] = 6;
  SCIUnmapSegment(map, 0, &error_);
  EXPECT_EQ(mine[2], 6U);
}

// Their last bytes, too, though they are no whole word.
TEST_F(SoftwareSisci, DelayedStoresArriveAtTheEndOfASegment) {
  set("delayed_stores yes\n");
  sci_local_segment_t segment = available(1, 100);
  std::byte* mine = local_memory(segment);
  sci_map_t map = nullptr;
  auto* theirs = static_cast<volatile char*>(
      SCIMapRemoteSegment(connect(1), &map, 0, 100, nullptr, 0, &error_));
  ASSERT_EQ(error_, SCI_ERR_OK);
  sci_sequence_t sequence = nullptr;
  SCICreateMapSequence(map, &sequence, 0, &error_);
  theirs[98] = 7;
  SCIFlush(sequence, 0);
  EXPECT_EQ(mine[98], std::byte{7});
}

TEST_F(SoftwareSisci, ResourcesMayBeFew) {
  set("max_segments 2\nmax_dma_queues 1\nmax_contiguous 100000\nmax_mapped 70000\n");
  EXPECT_EQ(create(1, 200'000), nullptr);
  EXPECT_EQ(error_, SCI_ERR_NOSPC);
  (void)available(1);
  (void)create(2, 300'000, SCI_FLAG_EMPTY);
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(create(3), nullptr);
  EXPECT_EQ(error_, SCI_ERR_NOSPC);
  (void)queue();
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(queue(), nullptr);
  EXPECT_EQ(error_, SCI_ERR_HW_NOSPC);
  sci_remote_segment_t remote = connect(1);
  sci_map_t map = nullptr;
  (void)SCIMapRemoteSegment(remote, &map, 0, kBytes, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  (void)SCIMapRemoteSegment(remote, &map, 0, kBytes, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_HW_NOSPC);
}

TEST_F(SoftwareSisci, InterruptsAreCounted) {
  unsigned number = 0;
  sci_local_interrupt_t local = nullptr;
  SCICreateInterrupt(sd_, &local, 0, &number, nullptr, nullptr, 0, &error_);
  sci_remote_interrupt_t remote = nullptr;
  SCIConnectInterrupt(sd_, &remote, 4, 0, number + 1, SCI_INFINITE_TIMEOUT, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_INTNO);
  SCIConnectInterrupt(sd_, &remote, 4, 0, number, SCI_INFINITE_TIMEOUT, 0, &error_);
  ASSERT_EQ(error_, SCI_ERR_OK);
  SCIWaitForInterrupt(local, 1, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_TIMEOUT);
  SCITriggerInterrupt(remote, 0, &error_);
  SCITriggerInterrupt(remote, 0, &error_);
  for (int i = 0; i < 2; ++i) {
    SCIWaitForInterrupt(local, 1000, 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
  }
  SCIRemoveInterrupt(local, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  SCITriggerInterrupt(remote, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_NOT_CONNECTED);
}

TEST_F(SoftwareSisci, DataInterruptsHaveARoom) {
  set("data_interrupt_slots 2\ndata_interrupt_bytes 16\n");
  unsigned number = 0;
  sci_local_data_interrupt_t local = nullptr;
  SCICreateDataInterrupt(sd_, &local, 0, &number, nullptr, nullptr, 0, &error_);
  sci_remote_data_interrupt_t remote = nullptr;
  SCIConnectDataInterrupt(sd_, &remote, 4, 0, number, SCI_INFINITE_TIMEOUT, 0, &error_);
  char message[17] = "0123456789";
  SCITriggerDataInterrupt(remote, message, 17, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OUT_OF_RANGE);
  for (char first : {'a', 'b'}) {
    message[0] = first;
    SCITriggerDataInterrupt(remote, message, 11, 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
  }
  SCITriggerDataInterrupt(remote, message, 11, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_NOSPC);
  char got[32];
  unsigned length = sizeof got;
  SCIWaitForDataInterrupt(local, got, &length, 0, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(length, 11U);
  EXPECT_STREQ(got, "a123456789");
}

sci_callback_action_t on_local(void* arg, sci_local_segment_t, sci_segment_cb_reason_t reason,
                               unsigned, unsigned, sci_error_t) {
  static_cast<std::atomic<int>*>(arg)->fetch_add(reason == SCI_CB_CONNECT ? 1 : 100);
  return SCI_CALLBACK_CONTINUE;
}

TEST_F(SoftwareSisci, CallbacksNeedTheirFlag) {
  std::atomic<int> seen{0};
  sci_local_segment_t segment = nullptr;
  SCICreateSegment(sd_, &segment, 1, kBytes, nullptr, nullptr, SCI_FLAG_USE_CALLBACK, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_PARAMETER);
  SCICreateSegment(sd_, &segment, 1, kBytes, on_local, &seen, SCI_FLAG_USE_CALLBACK, &error_);
  SCIPrepareSegment(segment, 0, 0, &error_);
  SCISetSegmentAvailable(segment, 0, 0, &error_);
  (void)SCIWaitForLocalSegmentEvent(segment, nullptr, nullptr, 0, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
  SCIDisconnectSegment(connect(1), 0, &error_);
  for (int i = 0; i < 1000 && seen != 101; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(seen, 101);
}

TEST_F(SoftwareSisci, SegmentsAreSharedWithinAHost) {
  sci_local_segment_t segment = create(9);
  std::memset(local_memory(segment), 7, kBytes);
  sci_local_segment_t attached = nullptr;
  std::size_t bytes = 0;
  SCIAttachLocalSegment(sd_, &attached, 9, &bytes, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_ACCESS);
  SCIShareSegment(segment, 0, &error_);
  SCIAttachLocalSegment(sd_, &attached, 10, &bytes, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_SEGMENT);
  SCIAttachLocalSegment(sd_, &attached, 9, &bytes, nullptr, nullptr, 0, &error_);
  ASSERT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(bytes, kBytes);
  EXPECT_EQ(local_memory(attached)[kBytes - 1], std::byte{7});
}

TEST_F(SoftwareSisci, ChannelsAreReserved) {
  sci_dma_channel_t channel = nullptr;
  SCIRequestDMAChannel(sd_, &channel, 0, SCI_DMA_TYPE_DONTCARE, SCI_DMA_CHANNEL_ID_DONTCARE, 0,
                       &error_);
  ASSERT_EQ(error_, SCI_ERR_OK);
  sci_local_segment_t segment = create(1);
  SCIPrepareLocalSegmentForDMA(channel, segment, 0, &error_);
  SCIAssignDMAChannel(channel, queue(), 0, &error_);
  SCIReturnDMAChannel(channel, &error_);
  EXPECT_EQ(error_, SCI_ERR_BUSY);
  SCIUnprepareLocalSegmentForDMA(channel, segment, 0, &error_);
  SCIReturnDMAChannel(channel, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
}

// A process that is killed takes its segments with it, and those who were connected hear of it.
TEST_F(SoftwareSisci, KilledProcessesAreReclaimed) {
  const pid_t child = fork();
  if (child == 0) {
    sci_error_t error = SCI_ERR_OK;
    sci_desc_t sd = nullptr;
    sci_local_segment_t segment = nullptr;
    setenv("SOFTWARE_SISCI_HOST", "1", 1);
    SCIInitialize(0, &error);
    SCIOpen(&sd, 0, &error);
    SCICreateSegment(sd, &segment, 5, kBytes, nullptr, nullptr, 0, &error);
    SCIPrepareSegment(segment, 0, 0, &error);
    SCISetSegmentAvailable(segment, 0, 0, &error);
    for (;;) pause();
  }
  sci_remote_segment_t remote = nullptr;
  for (int i = 0; i < 10'000 && remote == nullptr; ++i) {
    remote = connect(5, 8);
    if (remote == nullptr) std::this_thread::sleep_for(1ms);
  }
  ASSERT_NE(remote, nullptr);
  kill(child, SIGKILL);
  sci_error_t status = SCI_ERR_OK;
  EXPECT_EQ(SCIWaitForRemoteSegmentEvent(remote, &status, 5000, 0, &error_), SCI_CB_LOST);
  waitpid(child, nullptr, 0);
  sci_dma_queue_t dma = queue();
  std::byte data[8] = {};
  SCIStartDmaTransferMem(dma, data, remote, 8, 0, nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_SEGMENT_NOT_CONNECTED);
  EXPECT_EQ(connect(5, 8), nullptr);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_SEGMENT);
}

TEST(SoftwareSisciSettings, NonsenseIsAnError) {
  const SoftwareFabric fabric("iommu perhaps\n");
  sci_error_t error = SCI_ERR_OK;
  SCIInitialize(0, &error);
  EXPECT_EQ(error, SCI_ERR_SYSTEM);
  sci_desc_t sd = nullptr;
  SCIOpen(&sd, 0, &error);
  EXPECT_EQ(error, SCI_ERR_NOT_INITIALIZED);
}

TEST(SoftwareSisciSettings, ALineMayCountForOneHostAlone) {
  const auto opened = [](const char* settings) {
    const SoftwareFabric fabric(settings);  // this process is on host 0
    sci_error_t error = SCI_ERR_OK;
    SCIInitialize(0, &error);
    if (error != SCI_ERR_OK) return error;
    sci_desc_t sd = nullptr;
    SCIOpen(&sd, 0, &error);
    if (error == SCI_ERR_OK) {
      sci_error_t closed = SCI_ERR_OK;
      SCIClose(sd, 0, &closed);
    }
    SCITerminate();
    return error;
  };
  EXPECT_EQ(opened("at_host 0 driver no\n"), SCI_ERR_NOT_AVAILABLE);
  EXPECT_EQ(opened("at_host 1 driver no\n"), SCI_ERR_OK);
  EXPECT_EQ(opened("at_host 1 driver perhaps\n"), SCI_ERR_SYSTEM);
  EXPECT_EQ(opened("at_host 1\n"), SCI_ERR_SYSTEM);
}

TEST(SoftwareSisciSettings, ADriverMayBeAbsent) {
  const SoftwareFabric fabric("driver no\n");
  sci_error_t error = SCI_ERR_OK;
  SCIInitialize(0, &error);
  EXPECT_EQ(error, SCI_ERR_OK);
  sci_desc_t sd = nullptr;
  SCIOpen(&sd, 0, &error);
  EXPECT_EQ(error, SCI_ERR_NOT_AVAILABLE);
  SCITerminate();
}

// The library's resources while a descriptor is open: threads, a descriptor, a file.
struct Held {
  explicit Held(const SoftwareFabric& fabric)
      : threads(entries("/proc/self/task")),
        descriptors(entries("/proc/self/fd")),
        file(access((fabric.file() + ".state").c_str(), F_OK) == 0) {}
  static std::size_t entries(const char* folder) {
    const std::filesystem::directory_iterator all(folder);
    return static_cast<std::size_t>(std::distance(begin(all), end(all)));
  }
  friend bool operator==(const Held&, const Held&) = default;
  std::size_t threads;
  std::size_t descriptors;
  bool file;
};

// It goes with the last descriptor, or with SCITerminate, whichever comes first.
TEST(SoftwareSisciSettings, NothingIsLeft) {
  const SoftwareFabric fabric;
  const Held before(fabric);
  sci_error_t error = SCI_ERR_OK;
  SCIInitialize(0, &error);
  EXPECT_EQ(Held(fabric), before);
  for (int round = 0; round < 3; ++round) {
    sci_desc_t first = nullptr;
    sci_desc_t second = nullptr;
    SCIOpen(&first, 0, &error);
    SCIOpen(&second, 0, &error);
    EXPECT_EQ(Held(fabric).threads, before.threads + 2);
    EXPECT_TRUE(Held(fabric).file);
    SCIClose(first, 0, &error);
    EXPECT_TRUE(Held(fabric).file);
    SCIClose(second, 0, &error);
    EXPECT_EQ(error, SCI_ERR_OK);
    EXPECT_EQ(Held(fabric), before);
  }
  // Without any descriptor new settings are seen as well.
  fabric.write("node 0 0 100\n");
  unsigned node = 0;
  SCIGetLocalNodeId(0, &node, 0, &error);
  EXPECT_EQ(node, 100U);
  sci_desc_t open = nullptr;
  SCIOpen(&open, 0, &error);
  SCITerminate();
  EXPECT_EQ(Held(fabric), before);
  // It counts for no later library.
  SCIInitialize(0, &error);
  sci_desc_t later = nullptr;
  SCIOpen(&later, 0, &error);
  SCIClose(open, 0, &error);
  EXPECT_TRUE(Held(fabric).file);
  SCIClose(later, 0, &error);
  SCITerminate();
  EXPECT_EQ(Held(fabric), before);
}

// A process starts while another ends: both use one file, or the later one creates a new file.
TEST(SoftwareSisciSettings, ProcessesComeAndGoAtOnce) {
  const SoftwareFabric fabric;
  sci_error_t error = SCI_ERR_OK;
  std::array<pid_t, 2> others{};
  for (pid_t& other : others) {
    other = fork();
    if (other != 0) continue;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    SCIInitialize(0, &error);
    for (;;) {
      sci_desc_t sd = nullptr;
      SCIOpen(&sd, 0, &error);
      SCIClose(sd, 0, &error);
    }
  }
  SCIInitialize(0, &error);
  int without_file = 0;
  for (int i = 0; i < 1000; ++i) {
    sci_desc_t sd = nullptr;
    SCIOpen(&sd, 0, &error);
    if (!Held(fabric).file) ++without_file;
    SCIClose(sd, 0, &error);
  }
  EXPECT_EQ(without_file, 0);
  for (const pid_t other : others) {
    kill(other, SIGKILL);
    waitpid(other, nullptr, 0);
  }
  SCITerminate();
}

sci_callback_action_t close_all(void* arg, sci_local_interrupt_t interrupt, sci_error_t) {
  sci_error_t error = SCI_ERR_OK;
  SCIRemoveInterrupt(interrupt, 0, &error);
  auto& descriptor = *static_cast<std::atomic<sci_desc_t>*>(arg);
  do {
    SCIClose(descriptor, 0, &error);
  } while (error == SCI_ERR_BUSY);  // until the test has disconnected
  descriptor = nullptr;
  return SCI_CALLBACK_CANCEL;
}

// The thread that calls back cannot wait for its own end.
TEST(SoftwareSisciSettings, ACallbackMayCloseTheLastDescriptor) {
  const SoftwareFabric fabric;
  const Held before(fabric);
  sci_error_t error = SCI_ERR_OK;
  SCIInitialize(0, &error);
  sci_desc_t made = nullptr;
  SCIOpen(&made, 0, &error);
  std::atomic<sci_desc_t> descriptor{made};
  unsigned number = 0;
  sci_local_interrupt_t local = nullptr;
  SCICreateInterrupt(made, &local, 0, &number, close_all, &descriptor, SCI_FLAG_USE_CALLBACK,
                     &error);
  sci_remote_interrupt_t remote = nullptr;
  SCIConnectInterrupt(made, &remote, 4, 0, number, SCI_INFINITE_TIMEOUT, 0, &error);
  ASSERT_EQ(error, SCI_ERR_OK);
  SCITriggerInterrupt(remote, 0, &error);
  SCIDisconnectInterrupt(remote, 0, &error);
  for (int i = 0; i < 5000 && descriptor != nullptr; ++i) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(descriptor, nullptr);
  sci_desc_t next = nullptr;
  SCIOpen(&next, 0, &error);
  SCIClose(next, 0, &error);
  EXPECT_EQ(error, SCI_ERR_OK);
  EXPECT_EQ(Held(fabric), before);
  SCITerminate();
}

}  // namespace
