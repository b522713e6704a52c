// What adapters do where the API's description would permit something else: orders of calls that
// programs for adapters make. The setting `strict` permits none of them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <climits>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "dis_types.h"  // before the API's own, as programs include it
#include "fixture.h"
#include "sisci_api.h"

namespace {

using namespace std::chrono_literals;
using software_sisci::testing::kBytes;
using software_sisci::testing::kPage;
using software_sisci::testing::SoftwareSisci;

class AsAdapters : public SoftwareSisci {
 protected:
  volatile unsigned* map(sci_remote_segment_t remote, sci_map_t& made) {
    return static_cast<volatile unsigned*>(
        SCIMapRemoteSegment(remote, &made, 0, kBytes, nullptr, 0, &error_));
  }
};

TEST_F(AsAdapters, SegmentsAreRemovedWhilePeersAreConnected) {
  sci_local_segment_t segment = available(1);
  sci_remote_segment_t unmapped = connect(1);
  sci_remote_segment_t mapped = connect(1);
  sci_map_t first = nullptr;
  sci_map_t second = nullptr;
  (void)map(unmapped, first);
  volatile unsigned* theirs = map(mapped, second);
  SCIUnmapSegment(first, 0, &error_);
  ASSERT_EQ(error_, SCI_ERR_OK);
  SCIRemoveSegment(segment, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  // A connected peer gets an event; its further stores are lost.
  sci_error_t status = SCI_ERR_OK;
  for (sci_remote_segment_t remote : {unmapped, mapped}) {
    EXPECT_EQ(SCIWaitForRemoteSegmentEvent(remote, &status, 5000, 0, &error_), SCI_CB_LOST);
  }
  theirs[3] = 5;
  EXPECT_EQ(theirs[9], 0xffffffffU);
  SCIUnmapSegment(second, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  for (sci_remote_segment_t remote : {unmapped, mapped}) {
    SCIDisconnectSegment(remote, 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
  }
  // The id is free.
  EXPECT_NE(create(1), nullptr);
}

TEST_F(AsAdapters, ASegmentThatIsMappedHereIsInUse) {
  sci_local_segment_t segment = available(1);
  sci_map_t made = nullptr;
  (void)SCIMapLocalSegment(segment, &made, 0, kBytes, nullptr, 0, &error_);
  SCIRemoveSegment(segment, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_BUSY);
  SCIUnmapSegment(made, 0, &error_);
  SCIRemoveSegment(segment, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
}

TEST_F(AsAdapters, MapsAreUnmappedBeforeTheirSequences) {
  for (const char* settings : {"\n", "delayed_stores yes\n"}) {
    set(settings);
    sci_local_segment_t segment = available(1);
    std::byte* mine = local_memory(segment);
    sci_remote_segment_t remote = connect(1);
    sci_map_t made = nullptr;
    volatile unsigned* theirs = map(remote, made);
    std::array<sci_sequence_t, 2> sequences{};
    for (sci_sequence_t& sequence : sequences) {
      SCICreateMapSequence(made, &sequence, 0, &error_);
      EXPECT_EQ(SCIStartSequence(sequence, 0, &error_), SCI_SEQ_OK);
    }
    theirs[2] = 77;
    SCIUnmapSegment(made, 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
    EXPECT_EQ(mine[8], std::byte{77});
    SCIDisconnectSegment(remote, 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
    // They are good for nothing but removal.
    SCIFlush(sequences[0], 0);
    (void)SCICheckSequence(sequences[0], 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
    (void)SCIStartSequence(sequences[0], 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
    for (sci_sequence_t sequence : sequences) {
      SCIRemoveSequence(sequence, 0, &error_);
      EXPECT_EQ(error_, SCI_ERR_OK);
    }
    SCISetSegmentUnavailable(segment, 0, 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
    SCITerminate();
    SetUp();
  }
}

TEST_F(AsAdapters, VectorsAreAsLongAsTheEngineTakes) {
  sci_local_segment_t from = available(1);
  std::byte* source = local_memory(from);
  sci_local_segment_t to = available(2);
  std::byte* target = local_memory(to);
  sci_remote_segment_t remote = connect(2);
  for (std::size_t i = 0; i < kBytes; ++i) source[i] = static_cast<std::byte>(i * 7 + i / 251);
  std::vector<dis_dma_vec_t> vector(DIS_DMA_MAX_VECLEN + 1);
  const unsigned part = kBytes / DIS_DMA_MAX_VECLEN;
  for (unsigned i = 0; i < vector.size(); ++i) vector[i] = {part, i * part, i * part, 0};
  const auto start = [&](sci_dma_queue_t dma, std::size_t count) {
    SCIStartDmaTransferVec(dma, from, remote, count, vector.data(), nullptr, nullptr, 0, &error_);
    return error_;
  };
  for (const unsigned entries : {0U, 1U, 4U}) {
    std::memset(target, 0, kBytes);
    sci_dma_queue_t dma = queue(entries);
    ASSERT_EQ(error_, SCI_ERR_OK);
    EXPECT_EQ(start(dma, DIS_DMA_MAX_VECLEN), SCI_ERR_OK);
    EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
    EXPECT_EQ(std::memcmp(source, target, kBytes), 0);
    vector.back() = {1, 0, 0, 0};
    EXPECT_EQ(start(dma, DIS_DMA_MAX_VECLEN + 1), SCI_ERR_MAX_ENTRIES);
  }
}

// The start answers when all is there, and the queue can be removed at once.
TEST_F(AsAdapters, AStartMayWaitForItsEnd) {
  set("latency_us 30000\n");
  sci_local_segment_t from = available(1);
  std::memset(local_memory(from), 9, kBytes);
  sci_local_segment_t to = available(2);
  std::byte* target = local_memory(to);
  sci_remote_segment_t remote = connect(2);
  sci_dma_queue_t dma = queue(1);
  SCIStartDmaTransfer(dma, from, remote, 0, kBytes, 0, nullptr, nullptr, SCI_FLAG_DMA_WAIT,
                      &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(target[kBytes - 1], std::byte{9});
  EXPECT_EQ(SCIDMAQueueState(dma), SCI_DMAQUEUE_DONE);
  SCIRemoveDMAQueue(dma, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  set("fail_transfer 2\n");
  dma = queue(1);
  SCIStartDmaTransfer(dma, from, remote, 0, kBytes, 0, nullptr, nullptr, SCI_FLAG_DMA_WAIT,
                      &error_);
  EXPECT_EQ(error_, SCI_ERR_TRANSFER_FAILED);
}

TEST_F(AsAdapters, ButForTheSettingStrict) {
  set("strict yes\n");
  sci_local_segment_t segment = available(1);
  sci_remote_segment_t remote = connect(1);
  sci_map_t made = nullptr;
  (void)map(remote, made);
  sci_sequence_t sequence = nullptr;
  SCICreateMapSequence(made, &sequence, 0, &error_);
  SCIUnmapSegment(made, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_BUSY);
  SCIRemoveSequence(sequence, 0, &error_);
  SCIUnmapSegment(made, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  SCIRemoveSegment(segment, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_BUSY);
  EXPECT_EQ(queue(0), nullptr);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_PARAMETER);
  sci_local_segment_t from = available(2);
  std::vector<dis_dma_vec_t> vector(3, {8, 0, 0, 0});
  sci_dma_queue_t dma = queue(2);
  SCIStartDmaTransferVec(dma, from, remote, 3, vector.data(), nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_MAX_ENTRIES);
  SCIStartDmaTransferVec(dma, from, remote, 2, vector.data(), nullptr, nullptr, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
  SCIDisconnectSegment(remote, 0, &error_);
  SCIRemoveSegment(segment, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
}

TEST_F(AsAdapters, HostsHaveNames) {
  set("name 3 alpha\nname 5 beta.example\nname 99 nowhere\n");
  const auto node_of = [&](std::string name) {
    dis_nodeId_list_t nodes;
    std::memset(nodes, 0xff, sizeof nodes);
    dis_virt_adapter_t type = 7;
    SCIGetNodeIdByAdapterName(name.data(), &nodes, &type, 0, &error_);
    EXPECT_EQ(nodes[1], 0U);  // the end of the list
    return nodes[0];
  };
  EXPECT_EQ(node_of("alpha"), 16U);
  EXPECT_EQ(node_of("beta.example"), 24U);
  EXPECT_EQ(node_of("host3"), 16U);
  EXPECT_EQ(error_, SCI_ERR_OK);
  std::array<char, HOST_NAME_MAX + 1> machine{};
  ASSERT_EQ(gethostname(machine.data(), HOST_NAME_MAX), 0);
  EXPECT_EQ(node_of(machine.data()), 4U);
  EXPECT_EQ(error_, SCI_ERR_OK);
  for (const char* unknown : {"gamma", "nowhere", "host8", ""}) {
    EXPECT_EQ(node_of(unknown), 0U);
    EXPECT_EQ(error_, SCI_ERR_NO_SUCH_NODEID) << unknown;
  }
}

TEST_F(AsAdapters, CopyFunctionsAreChosen) {
  sci_local_segment_t segment = available(1);
  std::byte* mine = local_memory(segment);
  sci_map_t made = nullptr;
  (void)map(connect(1), made);
  const unsigned before = GetSciMemCopyFunction();
  for (const unsigned function : {1U, 5U, before}) {
    SetSciMemCopyFunction(function);
    EXPECT_EQ(GetSciMemCopyFunction(), function);
    std::vector<char> data(1000, static_cast<char>(function + 1));
    SCIMemCpy(nullptr, data.data(), made, 24, data.size(), 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
    EXPECT_EQ(std::memcmp(mine + 24, data.data(), data.size()), 0);
  }
}

}  // namespace
