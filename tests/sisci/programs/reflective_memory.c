/* Memory that each of several nodes writes for all. Run on every node, the client once, as
 *   reflective_memory client|server OWN_NODE NODES
 * with the nodes 4, 8, ... The client tells a value, which all servers answer, each in a place of
 * its own; everyone reads its own memory alone. */
#include "program.h"

#define GROUP 2
#define BYTES 65536
#define READY 1234
/* Words: the client's, and after it one of each server. */
#define READINESS (BYTES / 4 - 1024)
#define VALUES 256

int main(int argc, char** argv) {
  struct Program program = begin(argc, argv);
  unsigned int nodes = program.peer;
  unsigned int rank = program.own / 4 - 1;
  sci_error_t error;
  sci_desc_t sd;
  sci_local_segment_t local;
  sci_remote_segment_t all;
  sci_map_t local_map;
  sci_map_t remote_map;
  sci_sequence_t sequence;
  volatile unsigned int* mine;
  volatile unsigned int* everyones;
  unsigned int round;
  unsigned int i;

  SCIOpen(&sd, 0, &error);
  OK("SCIOpen");
  SCICreateSegment(sd, &local, GROUP, BYTES, NULL, NULL, SCI_FLAG_BROADCAST, &error);
  OK("SCICreateSegment");
  SCIPrepareSegment(local, ADAPTER, SCI_FLAG_BROADCAST, &error);
  OK("SCIPrepareSegment");
  mine = SCIMapLocalSegment(local, &local_map, 0, BYTES, NULL, 0, &error);
  OK("SCIMapLocalSegment");
  SCISetSegmentAvailable(local, ADAPTER, 0, &error);
  OK("SCISetSegmentAvailable");
  do {
    SCIConnectSegment(sd, &all, DIS_BROADCAST_NODEID_GROUP_ALL, GROUP, ADAPTER, NULL, NULL,
                      SCI_INFINITE_TIMEOUT, SCI_FLAG_BROADCAST, &error);
  } while (error != SCI_ERR_OK);
  everyones = SCIMapRemoteSegment(all, &remote_map, 0, BYTES, NULL, SCI_FLAG_BROADCAST, &error);
  OK("SCIMapRemoteSegment");
  SCICreateMapSequence(remote_map, &sequence, 0, &error);
  OK("SCICreateMapSequence");

  /* Repeated, since nodes that join later have not received it. */
  everyones[READINESS + rank] = READY;
  SCIFlush(sequence, SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY);
  for (i = 0; i < nodes; ++i) {
    while (mine[READINESS + i] != READY) {
      everyones[READINESS + rank] = READY;
      SCIFlush(sequence, SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY);
      usleep(200);
    }
  }

  for (round = 1; round <= ROUNDS; ++round) {
    if (!program.server) {
      unsigned int block[512];
      for (i = 0; i < 512; ++i) block[i] = round * 1000 + i;
      SCIMemCpy(sequence, block, remote_map, 4096, sizeof block, SCI_FLAG_ERROR_CHECK, &error);
      OK("SCIMemCpy");
      everyones[VALUES] = round;
      SCIFlush(sequence, SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY);
    } else {
      while (mine[VALUES] != round) {
      }
      for (i = 0; i < 512; ++i) {
        if (mine[1024 + i] != round * 1000 + i) return 1;
      }
      everyones[VALUES + rank] = round;
      SCIFlush(sequence, SCI_FLAG_FLUSH_CPU_BUFFERS_ONLY);
    }
    /* Everyone sees everyone's answer. */
    for (i = 1; i < nodes; ++i) {
      while (mine[VALUES + i] < round) usleep(10);
    }
  }

  SCIRemoveSequence(sequence, 0, &error);
  OK("SCIRemoveSequence");
  SCIUnmapSegment(local_map, 0, &error);
  OK("SCIUnmapSegment");
  SCIRemoveSegment(local, 0, &error);
  OK("SCIRemoveSegment");
  SCIUnmapSegment(remote_map, 0, &error);
  OK("SCIUnmapSegment");
  SCIDisconnectSegment(all, 0, &error);
  OK("SCIDisconnectSegment");
  SCIClose(sd, 0, &error);
  OK("SCIClose");
  SCITerminate();
  return 0;
}
