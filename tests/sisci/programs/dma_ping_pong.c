/* Blocks moved by DMA, in both directions, in one piece, as a vector, from plain memory, with a
 * callback; an interrupt tells the peer. */
#include "program.h"

#define BYTES (256 * 1024)
#define DMA_ROUNDS 40

static volatile int callbacks;

static sci_callback_action_t on_done(void* arg, sci_dma_queue_t queue, sci_error_t status) {
  (void)queue;
  if (status == SCI_ERR_OK && arg == &callbacks) ++callbacks;
  return SCI_CALLBACK_CONTINUE;
}

static void fill(unsigned int* words, unsigned int seed) {
  unsigned int i;
  for (i = 0; i < BYTES / 4; ++i) words[i] = (i + 1) * (seed * 2 + 1);
}

static int holds(const unsigned int* words, unsigned int seed) {
  unsigned int i;
  for (i = 0; i < BYTES / 4; ++i) {
    if (words[i] != (i + 1) * (seed * 2 + 1)) return 0;
  }
  return 1;
}

int main(int argc, char** argv) {
  struct Program program = begin(argc, argv);
  sci_error_t error;
  sci_desc_t sd;
  sci_local_segment_t local;
  sci_remote_segment_t remote;
  sci_map_t local_map;
  sci_map_t remote_map;
  sci_dma_queue_t queue;
  sci_local_interrupt_t told;
  sci_remote_interrupt_t tell;
  unsigned int number = 100 + program.own;
  unsigned int* memory;
  unsigned int* plain;
  unsigned int round;
  double start;

  SCIOpen(&sd, 0, &error);
  OK("SCIOpen");
  /* The first half is written by the peer, the second is where this end writes from. */
  SCICreateSegment(sd, &local, program.own << 16 | 2, 2 * BYTES, NULL, NULL, 0, &error);
  OK("SCICreateSegment");
  SCIPrepareSegment(local, ADAPTER, 0, &error);
  OK("SCIPrepareSegment");
  memory = SCIMapLocalSegment(local, &local_map, 0, 2 * BYTES, NULL, 0, &error);
  OK("SCIMapLocalSegment");
  SCICreateInterrupt(sd, &told, ADAPTER, &number, NULL, NULL, SCI_FLAG_FIXED_INTNO, &error);
  OK("SCICreateInterrupt");
  SCISetSegmentAvailable(local, ADAPTER, 0, &error);
  OK("SCISetSegmentAvailable");

  remote = connect_segment(sd, program.peer, program.peer << 16 | 2);
  (void)SCIMapRemoteSegment(remote, &remote_map, 0, 2 * BYTES, NULL, 0, &error);
  OK("SCIMapRemoteSegment");
  do {
    SCIConnectInterrupt(sd, &tell, program.peer, ADAPTER, 100 + program.peer, SCI_INFINITE_TIMEOUT,
                        0, &error);
  } while (error == SCI_ERR_NO_SUCH_INTNO);
  OK("SCIConnectInterrupt");
  SCICreateDMAQueue(sd, &queue, ADAPTER, 4, 0, &error);
  OK("SCICreateDMAQueue");
  plain = malloc(BYTES);

  start = seconds();
  for (round = 0; round < DMA_ROUNDS; ++round) {
    int turn;
    for (turn = 0; turn < 2; ++turn) {
      if (program.server == turn) {
        unsigned int* from = memory + BYTES / 4;
        fill(from, round);
        if (round % 4 == 0) {
          SCIStartDmaTransfer(queue, local, remote, BYTES, BYTES, 0, NULL, NULL, 0, &error);
          OK("SCIStartDmaTransfer");
          while (SCIDMAQueueState(queue) == SCI_DMAQUEUE_POSTED) {
          }
          if (SCIDMAQueueState(queue) != SCI_DMAQUEUE_DONE) return 1;
        } else if (round % 4 == 1) {
          dis_dma_vec_t parts[2] = {{BYTES / 2, BYTES, 0, 0},
                                    {BYTES / 2, BYTES + BYTES / 2, BYTES / 2, 0}};
          SCIStartDmaTransferVec(queue, local, remote, 2, parts, NULL, NULL, 0, &error);
          OK("SCIStartDmaTransferVec");
          if (SCIWaitForDMAQueue(queue, 10000, 0, &error) != SCI_DMAQUEUE_DONE) return 1;
          OK("SCIWaitForDMAQueue");
        } else if (round % 4 == 2) {
          memcpy(plain, from, BYTES);
          SCIStartDmaTransferMem(queue, plain, remote, BYTES, 0, NULL, NULL, 0, &error);
          OK("SCIStartDmaTransferMem");
          if (SCIWaitForDMAQueue(queue, SCI_INFINITE_TIMEOUT, 0, &error) != SCI_DMAQUEUE_DONE) {
            return 1;
          }
        } else {
          int before = callbacks;
          SCIStartDmaTransfer(queue, local, remote, BYTES, BYTES, 0, on_done, (void*)&callbacks,
                              SCI_FLAG_USE_CALLBACK, &error);
          OK("SCIStartDmaTransfer");
          while (callbacks == before) usleep(50);
        }
        SCITriggerInterrupt(tell, 0, &error);
        OK("SCITriggerInterrupt");
      } else {
        SCIWaitForInterrupt(told, 20000, 0, &error);
        OK("SCIWaitForInterrupt");
        if (!holds(memory, round)) {
          fprintf(stderr, "round %u brought something else\n", round);
          return 1;
        }
      }
    }
  }
  if (!program.server) {
    printf("dma: %.1f MB/s\n", 2.0 * DMA_ROUNDS * BYTES / (seconds() - start) / 1e6);
    /* What the peer received, read back. */
    SCIStartDmaTransfer(queue, local, remote, 0, BYTES, 0, NULL, NULL, SCI_FLAG_DMA_READ, &error);
    OK("SCIStartDmaTransfer");
    if (SCIWaitForDMAQueue(queue, 10000, 0, &error) != SCI_DMAQUEUE_DONE) return 1;
    if (!holds(memory, DMA_ROUNDS - 1)) return 1;
    SCITriggerInterrupt(tell, 0, &error);
    OK("SCITriggerInterrupt");
  } else {
    SCIWaitForInterrupt(told, 20000, 0, &error);
    OK("SCIWaitForInterrupt");
  }
  SCIRemoveDMAQueue(queue, 0, &error);
  OK("SCIRemoveDMAQueue");
  SCIDisconnectInterrupt(tell, 0, &error);
  OK("SCIDisconnectInterrupt");
  SCIUnmapSegment(remote_map, 0, &error);
  OK("SCIUnmapSegment");
  SCIDisconnectSegment(remote, 0, &error);
  OK("SCIDisconnectSegment");
  SCIUnmapSegment(local_map, 0, &error);
  OK("SCIUnmapSegment");
  SCIRemoveInterrupt(told, 0, &error);
  OK("SCIRemoveInterrupt");
  do {
    SCIRemoveSegment(local, 0, &error);
  } while (error == SCI_ERR_BUSY);
  OK("SCIRemoveSegment");
  SCIClose(sd, 0, &error);
  OK("SCIClose");
  free(plain);
  SCITerminate();
  return 0;
}
