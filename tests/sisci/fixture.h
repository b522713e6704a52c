// What the tests of the software libsisci have in common.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstddef>
#include <string>

#include "settings.h"
#include "sisci_api.h"
#include "transport/window/sisci/testing/fabric.h"

namespace software_sisci::testing {

constexpr std::size_t kBytes = 64 << 10;
constexpr std::size_t kPage = 4096;

// One process as both ends of the fabric's adapter 0, which is node 4.
class SoftwareSisci : public ::testing::Test {
 protected:
  void SetUp() override {
    SCIInitialize(0, &error_);
    ASSERT_EQ(error_, SCI_ERR_OK);
    SCIOpen(&sd_, 0, &error_);
    ASSERT_EQ(error_, SCI_ERR_OK);
  }
  void TearDown() override { SCITerminate(); }
  sci_local_segment_t create(unsigned id, std::size_t bytes = kBytes, unsigned flags = 0) {
    sci_local_segment_t segment = nullptr;
    SCICreateSegment(sd_, &segment, id, bytes, nullptr, nullptr, flags, &error_);
    return segment;
  }
  sci_local_segment_t available(unsigned id, std::size_t bytes = kBytes) {
    sci_local_segment_t segment = create(id, bytes);
    SCIPrepareSegment(segment, 0, 0, &error_);
    SCISetSegmentAvailable(segment, 0, 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
    return segment;
  }
  sci_remote_segment_t connect(unsigned id, unsigned node = 4, unsigned adapter = 0) {
    sci_remote_segment_t segment = nullptr;
    SCIConnectSegment(sd_, &segment, node, id, adapter, nullptr, nullptr, SCI_INFINITE_TIMEOUT, 0,
                      &error_);
    return segment;
  }
  std::byte* local_memory(sci_local_segment_t segment) {
    sci_map_t map = nullptr;
    void* memory =
        SCIMapLocalSegment(segment, &map, 0, SCIGetLocalSegmentSize(segment), nullptr, 0, &error_);
    EXPECT_EQ(error_, SCI_ERR_OK);
    return static_cast<std::byte*>(memory);
  }
  sci_dma_queue_t queue(unsigned entries = 2) {
    sci_dma_queue_t made = nullptr;
    SCICreateDMAQueue(sd_, &made, 0, entries, 0, &error_);
    return made;
  }
  sci_dma_queue_state_t moved(sci_dma_queue_t on) {
    return SCIWaitForDMAQueue(on, 10'000, 0, &error_);
  }
  // New settings, seen by the library.
  void set(const std::string& settings) {
    fabric_.write(settings);
    software_sisci_read_settings();
  }
  static std::byte* pages(std::size_t bytes) {
    return static_cast<std::byte*>(mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0));
  }

  ropewalk::transport::SoftwareFabric fabric_;
  sci_desc_t sd_ = nullptr;
  sci_error_t error_ = SCI_ERR_OK;
};

}  // namespace software_sisci::testing
