/* Words stored by the CPU into the peer's segment, and back. */
#include "program.h"

#define BYTES 8192

int main(int argc, char** argv) {
  struct Program program = begin(argc, argv);
  sci_error_t error;
  sci_desc_t sd;
  sci_local_segment_t local;
  sci_remote_segment_t remote;
  sci_map_t local_map;
  sci_map_t remote_map;
  sci_sequence_t sequence;
  volatile unsigned int* mine;
  volatile unsigned int* theirs;
  unsigned int round;
  double start;

  SCIOpen(&sd, 0, &error);
  OK("SCIOpen");
  SCICreateSegment(sd, &local, program.own << 16 | 1, BYTES, NULL, NULL, 0, &error);
  OK("SCICreateSegment");
  SCIPrepareSegment(local, ADAPTER, 0, &error);
  OK("SCIPrepareSegment");
  mine = SCIMapLocalSegment(local, &local_map, 0, BYTES, NULL, 0, &error);
  OK("SCIMapLocalSegment");
  memset((void*)mine, 0, BYTES);
  SCISetSegmentAvailable(local, ADAPTER, 0, &error);
  OK("SCISetSegmentAvailable");

  remote = connect_segment(sd, program.peer, program.peer << 16 | 1);
  theirs = SCIMapRemoteSegment(remote, &remote_map, 0, BYTES, NULL, 0, &error);
  OK("SCIMapRemoteSegment");
  SCICreateMapSequence(remote_map, &sequence, 0, &error);
  OK("SCICreateMapSequence");
  while (SCIStartSequence(sequence, 0, &error) != SCI_SEQ_OK) usleep(1000);

  start = seconds();
  for (round = 1; round <= ROUNDS; ++round) {
    if (!program.server) {
      theirs[0] = round;
      SCIFlush(sequence, 0);
    }
    while (mine[0] != round) {
      if (seconds() - start > 60) return 1;
    }
    if (program.server) {
      theirs[0] = round;
      SCIFlush(sequence, 0);
    }
  }
  if (!program.server) {
    printf("pio half round trip: %.3f us\n", (seconds() - start) / ROUNDS / 2 * 1e6);
  }

  /* A block, by the library's copy, checked by the sequence; the first word says that it is there.
   */
  if (!program.server) {
    unsigned int block[BYTES / 4];
    unsigned int i;
    for (i = 0; i < BYTES / 4; ++i) block[i] = i * 2654435761u;
    SCIMemCpy(sequence, block + 1, remote_map, 4, BYTES - 4, SCI_FLAG_ERROR_CHECK, &error);
    OK("SCIMemCpy");
    theirs[0] = 0xabcdef01u;
    if (SCICheckSequence(sequence, 0, &error) != SCI_SEQ_OK) return 1;
    while (mine[0] != 0xabcdef01u) {
    }
  } else {
    unsigned int i;
    while (mine[0] != 0xabcdef01u) {
    }
    for (i = 1; i < BYTES / 4; ++i) {
      if (mine[i] != i * 2654435761u) return 1;
    }
    theirs[0] = 0xabcdef01u;
    SCIStoreBarrier(sequence, 0);
  }

  SCIRemoveSequence(sequence, 0, &error);
  OK("SCIRemoveSequence");
  SCIUnmapSegment(remote_map, 0, &error);
  OK("SCIUnmapSegment");
  SCIDisconnectSegment(remote, 0, &error);
  OK("SCIDisconnectSegment");
  SCISetSegmentUnavailable(local, ADAPTER, 0, &error);
  OK("SCISetSegmentUnavailable");
  SCIUnmapSegment(local_map, 0, &error);
  OK("SCIUnmapSegment");
  do {
    SCIRemoveSegment(local, 0, &error);
  } while (error == SCI_ERR_BUSY);
  OK("SCIRemoveSegment");
  SCIClose(sd, 0, &error);
  OK("SCIClose");
  SCITerminate();
  return 0;
}
