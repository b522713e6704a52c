/* A segment's life: connected, disconnected, and removed while the peer is connected, each told to
 * the other side by an event. */
#include "program.h"

int main(int argc, char** argv) {
  struct Program program = begin(argc, argv);
  sci_error_t error;
  sci_desc_t sd;
  unsigned int id = 0x77;

  SCIOpen(&sd, 0, &error);
  OK("SCIOpen");
  if (program.server) {
    sci_local_segment_t segment;
    unsigned int node = 0;
    unsigned int adapter = 99;
    SCICreateSegment(sd, &segment, id, 4096, NULL, NULL, 0, &error);
    OK("SCICreateSegment");
    SCIPrepareSegment(segment, ADAPTER, 0, &error);
    OK("SCIPrepareSegment");
    SCISetSegmentAvailable(segment, ADAPTER, 0, &error);
    OK("SCISetSegmentAvailable");
    if (SCIWaitForLocalSegmentEvent(segment, &node, &adapter, 20000, 0, &error) != SCI_CB_CONNECT) {
      return 1;
    }
    if (node != program.peer || adapter != ADAPTER) return 1;
    if (SCIWaitForLocalSegmentEvent(segment, &node, &adapter, 20000, 0, &error) !=
        SCI_CB_DISCONNECT) {
      return 1;
    }
    if (SCIWaitForLocalSegmentEvent(segment, &node, &adapter, 20000, 0, &error) != SCI_CB_CONNECT) {
      return 1;
    }
    SCISetSegmentUnavailable(segment, ADAPTER, SCI_FLAG_FORCE_DISCONNECT, &error);
    OK("SCISetSegmentUnavailable");
    do {
      SCIRemoveSegment(segment, 0, &error);
    } while (error == SCI_ERR_BUSY);
    OK("SCIRemoveSegment");
  } else {
    sci_remote_segment_t segment = connect_segment(sd, program.peer, id);
    sci_error_t status = SCI_ERR_OK;
    if (SCIGetRemoteSegmentSize(segment) != 4096 || SCIGetRemoteSegmentId(segment) != id ||
        SCIGetRemoteSegmentNodeId(segment) != program.peer) {
      return 1;
    }
    SCIDisconnectSegment(segment, 0, &error);
    OK("SCIDisconnectSegment");
    segment = connect_segment(sd, program.peer, id);
    if (SCIWaitForRemoteSegmentEvent(segment, &status, 20000, 0, &error) != SCI_CB_LOST) return 1;
    OK("SCIWaitForRemoteSegmentEvent");
    SCIDisconnectSegment(segment, 0, &error);
    OK("SCIDisconnectSegment");
  }
  SCIClose(sd, 0, &error);
  OK("SCIClose");
  SCITerminate();
  return 0;
}
