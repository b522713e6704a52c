// Broadcast segments of the software libsisci: one store, all nodes.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "fixture.h"
#include "sisci_api.h"

namespace {

using namespace std::chrono_literals;
using software_sisci::testing::kBytes;
using software_sisci::testing::kPage;
using software_sisci::testing::SoftwareSisci;

constexpr unsigned kAll = DIS_BROADCAST_NODEID_GROUP_ALL;
constexpr unsigned kGroup = 1;

template <typename Condition>
bool soon(Condition condition) {
  for (int i = 0; i < 10'000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(1ms);
  }
  return false;
}

// Until all other threads of this process sleep, for a second at most. The address sanitizer of
// Clang 14 does not take its allocator's lock for a fork: a child of a process one of whose threads
// is allocating, as a thread does that begins, waits for ever when it allocates.
void wait_for_sleep() {
  for (int i = 0; i < 1'000; ++i) {
    bool asleep = true;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      if (thread.path().filename() == std::to_string(gettid())) continue;
      std::string line;
      std::getline(std::ifstream(thread.path() / "stat"), line);
      const std::size_t name_end = line.rfind(')');
      asleep = asleep && name_end != std::string::npos && line.substr(name_end + 2, 1) == "S";
    }
    if (asleep) return;
    std::this_thread::sleep_for(1ms);
  }
}

// Another host: a process with a broadcast segment, whose words this one sees and may ask it to
// store, in its own memory or to all nodes.
class Node {
 public:
  explicit Node(unsigned host, std::size_t bytes = kBytes) {
    void* shared =
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    shared_ = new (shared) Shared;
    wait_for_sleep();
    pid_ = fork();
    if (pid_ == 0) run(host, bytes);
    EXPECT_TRUE(soon([&] { return shared_->ready.load(); }));
  }
  ~Node() { end(SIGKILL); }
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;

  [[nodiscard]] std::uint32_t word(std::size_t index) const { return shared_->words[index]; }
  void store_here(std::uint32_t index, std::uint32_t value) { order({index, value, false}); }
  void store_to_all(std::uint32_t index, std::uint32_t value) { order({index, value, true}); }
  void end(int signal) {
    if (pid_ <= 0) return;
    kill(pid_, signal);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  struct Order {
    std::uint32_t index;
    std::uint32_t value;
    bool to_all;
  };
  struct Shared {
    std::atomic<bool> ready{false};
    std::atomic<bool> ordered{false};
    Order order{};
    std::atomic<std::uint32_t> words[kBytes / 4];
  };
  void order(Order wanted) {
    shared_->order = wanted;
    shared_->ordered = true;
    EXPECT_TRUE(soon([&] { return !shared_->ordered; }));
  }
  [[noreturn]] void run(unsigned host, std::size_t bytes) {
    sci_error_t error = SCI_ERR_OK;
    sci_desc_t sd = nullptr;
    sci_local_segment_t segment = nullptr;
    sci_remote_segment_t all = nullptr;
    sci_map_t own_map = nullptr;
    sci_map_t all_map = nullptr;
    setenv("SOFTWARE_SISCI_HOST", std::to_string(host).c_str(), 1);
    SCIInitialize(0, &error);
    SCIOpen(&sd, 0, &error);
    SCICreateSegment(sd, &segment, kGroup, bytes, nullptr, nullptr, SCI_FLAG_BROADCAST, &error);
    SCIPrepareSegment(segment, 0, SCI_FLAG_BROADCAST, &error);
    SCISetSegmentAvailable(segment, 0, 0, &error);
    auto* own = static_cast<volatile std::uint32_t*>(
        SCIMapLocalSegment(segment, &own_map, 0, bytes, nullptr, 0, &error));
    SCIConnectSegment(sd, &all, kAll, kGroup, 0, nullptr, nullptr, SCI_INFINITE_TIMEOUT,
                      SCI_FLAG_BROADCAST, &error);
    auto* to_all = static_cast<volatile std::uint32_t*>(
        SCIMapRemoteSegment(all, &all_map, 0, kPage, nullptr, SCI_FLAG_BROADCAST, &error));
    if (error != SCI_ERR_OK) _exit(1);
    for (;;) {
      for (std::size_t i = 0; i < bytes / 4; ++i) shared_->words[i] = own[i];
      if (shared_->ordered) {
        const Order wanted = shared_->order;
        (wanted.to_all ? to_all : own)[wanted.index] = wanted.value;
        shared_->ordered = false;
      }
      shared_->ready = true;
      usleep(100);
    }
  }

  Shared* shared_ = nullptr;
  pid_t pid_ = 0;
};

class Broadcast : public SoftwareSisci {
 protected:
  sci_local_segment_t member(unsigned id = kGroup, unsigned flags = SCI_FLAG_BROADCAST) {
    sci_local_segment_t segment = create(id, kBytes, flags);
    SCIPrepareSegment(segment, 0, 0, &error_);
    SCISetSegmentAvailable(segment, 0, 0, &error_);
    return segment;
  }
  sci_remote_segment_t join(unsigned id = kGroup, unsigned node = kAll,
                            unsigned flags = SCI_FLAG_BROADCAST) {
    sci_remote_segment_t segment = nullptr;
    SCIConnectSegment(sd_, &segment, node, id, 0, nullptr, nullptr, SCI_INFINITE_TIMEOUT, flags,
                      &error_);
    return segment;
  }
  volatile std::uint32_t* map(sci_remote_segment_t segment, std::size_t offset = 0) {
    void* memory = const_cast<void*>(SCIMapRemoteSegment(segment, &map_, offset,
                                                         SCIGetRemoteSegmentSize(segment) - offset,
                                                         nullptr, SCI_FLAG_BROADCAST, &error_));
    EXPECT_EQ(error_, SCI_ERR_OK);
    SCICreateMapSequence(map_, &sequence_, 0, &error_);
    return static_cast<volatile std::uint32_t*>(memory);
  }

  sci_map_t map_ = nullptr;
  sci_sequence_t sequence_ = nullptr;
};

TEST_F(Broadcast, AStoreReachesAllNodesAndTheOwn) {
  Node one(1);
  Node two(2);
  auto* mine = reinterpret_cast<volatile std::uint32_t*>(local_memory(member()));
  sci_remote_segment_t all = join();
  ASSERT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(SCIGetRemoteSegmentNodeId(all), kAll);
  EXPECT_EQ(SCIGetRemoteSegmentSize(all), kBytes);
  volatile std::uint32_t* to_all = map(all);
  EXPECT_EQ(SCIStartSequence(sequence_, 0, &error_), SCI_SEQ_OK);
  to_all[5] = 55;
  to_all[kBytes / 4 - 1] = 66;
  SCIFlush(sequence_, SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY);
  EXPECT_EQ(mine[5], 55U);
  EXPECT_EQ(mine[kBytes / 4 - 1], 66U);
  for (const Node* node : {&one, &two}) {
    EXPECT_TRUE(soon([&] { return node->word(5) == 55 && node->word(kBytes / 4 - 1) == 66; }));
  }
  // Also without a flush, a little later.
  to_all[6] = 7;
  EXPECT_TRUE(soon([&] { return one.word(6) == 7 && two.word(6) == 7 && mine[6] == 7; }));
  EXPECT_EQ(SCICheckSequence(sequence_, 0, &error_), SCI_SEQ_OK);
  // What an owner stores into its own memory stays there.
  one.store_here(5, 99);
  mine[6] = 8;
  EXPECT_TRUE(soon([&] { return one.word(5) == 99; }));
  to_all[7] = 1;
  EXPECT_TRUE(soon([&] { return one.word(7) == 1 && two.word(7) == 1; }));
  EXPECT_EQ(two.word(5), 55U);
  EXPECT_EQ(one.word(6), 7U);
}

// Nodes that store beside each other, in one word of eight bytes, disturb nobody.
TEST_F(Broadcast, NodesStoreSideBySide) {
  Node one(1);
  Node two(2);
  auto* mine = reinterpret_cast<volatile std::uint32_t*>(local_memory(member()));
  auto* bytes = reinterpret_cast<volatile std::uint8_t*>(map(join()));
  one.store_to_all(2, 0x01010101);
  two.store_to_all(3, 0x02020202);
  EXPECT_TRUE(soon([&] { return mine[2] == 0x01010101 && mine[3] == 0x02020202; }));
  bytes[13] = 7;
  SCIFlush(sequence_, 0);
  EXPECT_EQ(mine[3], 0x02020702U);
  one.store_to_all(2, 0x03030303);
  EXPECT_TRUE(soon([&] { return mine[2] == 0x03030303 && two.word(2) == 0x03030303; }));
  for (const Node* node : {&one, &two}) {
    EXPECT_TRUE(soon([&] { return node->word(3) == 0x02020702; }));
  }
  EXPECT_EQ(mine[3], 0x02020702U);
}

TEST_F(Broadcast, NodesComeAndGo) {
  auto* mine = reinterpret_cast<volatile std::uint32_t*>(local_memory(member()));
  volatile std::uint32_t* to_all = map(join());
  to_all[1] = 11;
  SCIFlush(sequence_, 0);
  EXPECT_EQ(mine[1], 11U);
  // A program may repeat a store for late nodes; this cannot be distinguished from no store.
  auto late = std::make_unique<Node>(3);
  EXPECT_TRUE(soon([&] { return late->word(1) == 11; }));
  to_all[2] = 22;
  EXPECT_TRUE(soon([&] { return late->word(2) == 22; }));
  late->end(SIGKILL);
  to_all[3] = 33;
  EXPECT_TRUE(soon([&] { return mine[3] == 33; }));
  const Node again(3);
  EXPECT_TRUE(soon([&] { return again.word(1) == 11 && again.word(3) == 33; }));
  // The own segment goes first, as the vendor's example removes it.
  EXPECT_EQ(SCICheckSequence(sequence_, 0, &error_), SCI_SEQ_OK);
  to_all[4] = 44;
  EXPECT_TRUE(soon([&] { return again.word(4) == 44; }));
}

TEST_F(Broadcast, ClosesInAnyOrder) {
  const Node other(1);
  sci_local_segment_t segment = member();
  sci_remote_segment_t all = join();
  volatile std::uint32_t* to_all = map(all);
  SCIRemoveSegment(segment, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  to_all[4] = 44;
  SCIDisconnectSegment(all, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_BUSY);
  SCIUnmapSegment(map_, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_TRUE(soon([&] { return other.word(4) == 44; }));
  SCIDisconnectSegment(all, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  SCIRemoveSequence(sequence_, 0, &error_);
  SCIClose(sd_, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
}

TEST_F(Broadcast, CopiesReachAllNodes) {
  Node one(1);
  Node two(2);
  std::byte* mine = local_memory(member());
  sci_remote_segment_t all = join();
  volatile std::uint32_t* to_all = map(all, kPage);
  std::vector<std::uint32_t> data(1000);
  for (std::uint32_t i = 0; i < data.size(); ++i) data[i] = i * 2654435761U;
  const auto there = [&](const Node& node, std::size_t at) {
    return soon([&] {
      for (std::size_t i = 0; i < data.size(); ++i) {
        if (node.word(at / 4 + i) != data[i]) return false;
      }
      return true;
    });
  };
  to_all[250] = 1;  // before, so it is written over
  SCIMemCpy(sequence_, data.data(), map_, 1000, data.size() * 4, SCI_FLAG_ERROR_CHECK, &error_);
  EXPECT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(std::memcmp(mine + kPage + 1000, data.data(), data.size() * 4), 0);
  EXPECT_TRUE(there(one, kPage + 1000) && there(two, kPage + 1000));
  // That it changes nothing here is no reason that it changes nothing there.
  one.store_here((kPage + 1000) / 4, 5);
  SCIMemCpy(nullptr, data.data(), map_, 1000, data.size() * 4, 0, &error_);
  EXPECT_TRUE(there(one, kPage + 1000));
  // By DMA from a segment, and from plain memory.
  sci_local_segment_t from = create(70);
  SCIPrepareSegment(from, 0, 0, &error_);
  std::memcpy(local_memory(from) + 40, data.data(), data.size() * 4);
  sci_dma_queue_t dma = queue();
  SCIStartDmaTransfer(dma, from, all, 40, data.size() * 4, 2 * kPage, nullptr, nullptr,
                      SCI_FLAG_BROADCAST, &error_);
  ASSERT_EQ(error_, SCI_ERR_OK);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
  SCIStartDmaTransferMem(dma, data.data(), all, data.size() * 4, 4 * kPage, nullptr, nullptr,
                         SCI_FLAG_BROADCAST, &error_);
  EXPECT_EQ(moved(dma), SCI_DMAQUEUE_DONE);
  for (const std::size_t at : {2 * kPage, 4 * kPage}) {
    EXPECT_EQ(std::memcmp(mine + at, data.data(), data.size() * 4), 0);
    EXPECT_TRUE(there(one, at) && there(two, at));
  }
  SCIStartDmaTransfer(dma, from, all, 0, 100, 0, nullptr, nullptr, SCI_FLAG_DMA_READ, &error_);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_OPERATION);
}

TEST_F(Broadcast, LinksThatAreDownReceiveNothing) {
  Node one(1);
  Node two(2);
  volatile std::uint32_t* to_all = map(join());
  sci_remote_segment_t all = join();
  set("link_down 1 0\n");
  to_all[1] = 1;
  EXPECT_TRUE(soon([&] { return two.word(1) == 1; }));
  EXPECT_EQ(one.word(1), 0U);
  EXPECT_EQ(SCICheckSequence(sequence_, 0, &error_), SCI_SEQ_OK);
  set("link_down 0 0\n");
  sci_error_t status = SCI_ERR_OK;
  EXPECT_EQ(SCIWaitForRemoteSegmentEvent(all, &status, 5000, 0, &error_), SCI_CB_NOT_OPERATIONAL);
  to_all[9] = 9;
  EXPECT_EQ(SCICheckSequence(sequence_, 0, &error_), SCI_SEQ_NOT_RETRIABLE);
  (void)join();
  EXPECT_EQ(error_, SCI_ERR_NO_LINK_ACCESS);
  set("\n");
  EXPECT_EQ(SCIWaitForRemoteSegmentEvent(all, &status, 5000, 0, &error_), SCI_CB_OPERATIONAL);
  to_all[2] = 2;
  EXPECT_TRUE(soon([&] { return one.word(2) == 2 && two.word(2) == 2; }));
  EXPECT_EQ(one.word(9), 0U);  // what was stored meanwhile has vanished
  EXPECT_EQ(two.word(9), 0U);
}

TEST_F(Broadcast, SegmentsMayBeOfDifferentSizes) {
  Node small(1, kPage);
  Node large(2);
  sci_remote_segment_t all = join();
  EXPECT_EQ(SCIGetRemoteSegmentSize(all), kPage);
  volatile std::uint32_t* to_all = map(all);
  to_all[kPage / 4 - 1] = 5;
  EXPECT_TRUE(
      soon([&] { return small.word(kPage / 4 - 1) == 5 && large.word(kPage / 4 - 1) == 5; }));
}

TEST_F(Broadcast, InvalidCallsAreRefused) {
  // Nobody has such a segment, or it is not available.
  (void)join();
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_SEGMENT);
  (void)create(kGroup, kBytes, SCI_FLAG_BROADCAST);
  EXPECT_EQ(error_, SCI_ERR_OK);
  (void)join();
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_SEGMENT);
  EXPECT_EQ(create(kGroup, kBytes, SCI_FLAG_BROADCAST), nullptr);
  EXPECT_EQ(error_, SCI_ERR_SEGMENTID_USED);
  // The flag and the node belong together.
  (void)join(kGroup, 4);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_NODEID);
  (void)join(kGroup, kAll, 0);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_NODEID);
  // At its own node it is there with another flag alone.
  (void)member(2);
  (void)join(2, 4, 0);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_SEGMENT);
  (void)member(3, SCI_FLAG_BROADCAST | SCI_FLAG_ALLOW_UNICAST);
  EXPECT_NE(join(3, 4, 0), nullptr);
  EXPECT_NE(join(3), nullptr);
  sci_remote_data_interrupt_t interrupt = nullptr;
  SCIConnectDataInterrupt(sd_, &interrupt, kAll, 0, 1, SCI_INFINITE_TIMEOUT, 0, &error_);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_NODEID);
  // Other kinds of memory, and ids without a group.
  EXPECT_EQ(create(4, kBytes, SCI_FLAG_BROADCAST | SCI_FLAG_EMPTY), nullptr);
  EXPECT_EQ(error_, SCI_ERR_FLAG_NOT_IMPLEMENTED);
  (void)available(60);
  (void)join(60);
  EXPECT_EQ(error_, SCI_ERR_NO_SUCH_SEGMENT);
}

TEST_F(Broadcast, AdaptersHaveSoManyGroupsOrNone) {
  const auto groups = [&] {
    unsigned answer = 0xdead;
    sci_query_adapter_t query{0, 0, SCI_Q_ADAPTER_MCAST_MAX_GROUPS, &answer};
    SCIQuery(SCI_Q_ADAPTER, &query, 0, &error_);
    return answer;
  };
  EXPECT_EQ(groups(), 64U);
  set("multicast_groups 4\n");
  EXPECT_EQ(groups(), 4U);
  EXPECT_NE(create(3, kBytes, SCI_FLAG_BROADCAST), nullptr);
  EXPECT_EQ(create(4, kBytes, SCI_FLAG_BROADCAST), nullptr);
  EXPECT_EQ(error_, SCI_ERR_ILLEGAL_PARAMETER);
  set("multicast_groups 0\n");
  EXPECT_EQ(create(1, kBytes, SCI_FLAG_BROADCAST), nullptr);
  EXPECT_EQ(error_, SCI_ERR_FLAG_NOT_IMPLEMENTED);
  (void)join();
  EXPECT_EQ(error_, SCI_ERR_FLAG_NOT_IMPLEMENTED);
  EXPECT_NE(create(1), nullptr);
}

}  // namespace
