/* Vectors of growing length on a queue of one entry, each start waiting for its end; then read back
 * the same way, with a queue that is removed right after. */
#include "program.h"

#define BYTES (1 << 20)

static unsigned int value(unsigned int i) { return i * 2654435761u + 12345u; }

int main(int argc, char** argv) {
  struct Program program = begin(argc, argv);
  sci_error_t error;
  sci_desc_t sd;
  sci_local_segment_t local;
  sci_map_t map;
  unsigned int* memory;
  unsigned int i;

  SCIOpen(&sd, 0, &error);
  OK("SCIOpen");
  SCICreateSegment(sd, &local, program.own, BYTES, NULL, NULL, 0, &error);
  OK("SCICreateSegment");
  SCIPrepareSegment(local, ADAPTER, 0, &error);
  OK("SCIPrepareSegment");
  memory = SCIMapLocalSegment(local, &map, 0, BYTES, NULL, 0, &error);
  OK("SCIMapLocalSegment");
  if (program.server) {
    sci_segment_cb_reason_t reason;
    unsigned int node;
    unsigned int adapter;
    SCISetSegmentAvailable(local, ADAPTER, 0, &error);
    OK("SCISetSegmentAvailable");
    do {
      reason = SCIWaitForLocalSegmentEvent(local, &node, &adapter, SCI_INFINITE_TIMEOUT, 0, &error);
      OK("SCIWaitForLocalSegmentEvent");
    } while (reason == SCI_CB_CONNECT || reason == SCI_CB_OPERATIONAL);
    for (i = 0; i < BYTES / 4; ++i) {
      if (memory[i] != value(i)) return 1;
    }
    SCISetSegmentUnavailable(local, ADAPTER, 0, &error);
    OK("SCISetSegmentUnavailable");
  } else {
    sci_remote_segment_t remote = connect_segment(sd, program.peer, program.peer);
    unsigned int length;
    for (length = 1; length <= DIS_DMA_MAX_VECLEN; length *= 4) {
      static dis_dma_vec_t vector[DIS_DMA_MAX_VECLEN];
      int read;
      for (i = 0; i < BYTES / 4; ++i) memory[i] = value(i);
      for (i = 0; i < length; ++i) {
        vector[i].size = BYTES / length;
        vector[i].local_offset = vector[i].remote_offset = i * (BYTES / length);
        vector[i].flags = 0;
      }
      for (read = 0; read < 2; ++read) {
        sci_dma_queue_t queue;
        SCICreateDMAQueue(sd, &queue, ADAPTER, 1, 0, &error);
        OK("SCICreateDMAQueue");
        SCIStartDmaTransferVec(queue, local, remote, length, vector, NULL, NULL,
                               SCI_FLAG_DMA_WAIT | (read ? SCI_FLAG_DMA_READ : 0), &error);
        OK("SCIStartDmaTransferVec");
        SCIRemoveDMAQueue(queue, 0, &error);
        OK("SCIRemoveDMAQueue");
        if (!read) memset(memory, 0, BYTES);
      }
      for (i = 0; i < BYTES / 4; ++i) {
        if (memory[i] != value(i)) return 1;
      }
    }
    SCIDisconnectSegment(remote, 0, &error);
    OK("SCIDisconnectSegment");
  }
  SCIUnmapSegment(map, 0, &error);
  OK("SCIUnmapSegment");
  SCIRemoveSegment(local, 0, &error);
  OK("SCIRemoveSegment");
  SCIClose(sd, 0, &error);
  OK("SCIClose");
  SCITerminate();
  return 0;
}
