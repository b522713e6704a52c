/* Both ends give back what they have in an order that the API's description does not promise: the
 * client unmaps, and disconnects, before it removes its sequences; the server removes a segment to
 * which the client is connected, and one that it has mapped as well. Commands go by data
 * interrupts, handled in a callback of the server's. */
#include "program.h"

#define BYTES 16384
#define ORDERS 300
#define ANSWERS 301

struct Order {
  int create; /* else remove */
  unsigned int id;
};

struct Server {
  sci_desc_t sd;
  sci_remote_data_interrupt_t answers;
  sci_local_segment_t segments[64];
  volatile int removed;
};

static sci_callback_action_t on_order(void* arg, sci_local_data_interrupt_t interrupt, void* data,
                                      unsigned int length, sci_error_t status) {
  struct Server* server = arg;
  struct Order order;
  sci_error_t error;
  unsigned int i;
  (void)interrupt;
  if (status != SCI_ERR_OK || length != sizeof order) exit(1);
  memcpy(&order, data, sizeof order);
  if (order.create) {
    sci_local_segment_t segment;
    SCICreateSegment(server->sd, &segment, 0, BYTES, NULL, NULL, SCI_FLAG_AUTO_ID, &error);
    OK("SCICreateSegment");
    SCIPrepareSegment(segment, ADAPTER, 0, &error);
    OK("SCIPrepareSegment");
    SCISetSegmentAvailable(segment, ADAPTER, 0, &error);
    OK("SCISetSegmentAvailable");
    order.id = SCIGetLocalSegmentId(segment);
    for (i = 0; server->segments[i] != NULL; ++i) {
    }
    server->segments[i] = segment;
  } else {
    for (i = 0; SCIGetLocalSegmentId(server->segments[i]) != order.id; ++i) {
    }
    SCIRemoveSegment(server->segments[i], 0, &error);
    OK("SCIRemoveSegment");
    server->segments[i] = server->segments[63];
    ++server->removed;
  }
  SCITriggerDataInterrupt(server->answers, &order, sizeof order, 0, &error);
  OK("SCITriggerDataInterrupt");
  return SCI_CALLBACK_CONTINUE;
}

static unsigned int ask(sci_remote_data_interrupt_t orders, sci_local_data_interrupt_t answers,
                        int create, unsigned int id) {
  struct Order order;
  unsigned int length = sizeof order;
  sci_error_t error;
  order.create = create;
  order.id = id;
  SCITriggerDataInterrupt(orders, &order, sizeof order, 0, &error);
  OK("SCITriggerDataInterrupt");
  SCIWaitForDataInterrupt(answers, &order, &length, SCI_INFINITE_TIMEOUT, 0, &error);
  OK("SCIWaitForDataInterrupt");
  return order.id;
}

static sci_remote_data_interrupt_t connect_interrupt(sci_desc_t sd, unsigned int node,
                                                     unsigned int number) {
  sci_remote_data_interrupt_t interrupt;
  sci_error_t error;
  do {
    SCIConnectDataInterrupt(sd, &interrupt, node, ADAPTER, number, SCI_INFINITE_TIMEOUT, 0, &error);
    if (error != SCI_ERR_OK) usleep(1000);
  } while (error != SCI_ERR_OK);
  return interrupt;
}

static int serve(sci_desc_t sd, struct Program program) {
  static struct Server server;
  sci_local_data_interrupt_t orders;
  unsigned int number = ORDERS;
  sci_error_t error;
  double start = seconds();
  server.sd = sd;
  server.answers = connect_interrupt(sd, program.peer, ANSWERS);
  SCICreateDataInterrupt(sd, &orders, ADAPTER, &number, on_order, &server,
                         SCI_FLAG_FIXED_INTNO | SCI_FLAG_USE_CALLBACK, &error);
  OK("SCICreateDataInterrupt");
  while (server.removed < 3 && seconds() - start < 60) usleep(1000);
  if (server.removed < 3) return 1;
  usleep(100000); /* the last answer */
  SCIRemoveDataInterrupt(orders, 0, &error);
  OK("SCIRemoveDataInterrupt");
  SCIDisconnectDataInterrupt(server.answers, 0, &error);
  OK("SCIDisconnectDataInterrupt");
  return 0;
}

static int use(sci_desc_t sd, struct Program program) {
  sci_local_data_interrupt_t answers;
  sci_remote_data_interrupt_t orders;
  unsigned int number = ANSWERS;
  sci_error_t error;
  int round;
  SCICreateDataInterrupt(sd, &answers, ADAPTER, &number, NULL, NULL, SCI_FLAG_FIXED_INTNO, &error);
  OK("SCICreateDataInterrupt");
  orders = connect_interrupt(sd, program.peer, ORDERS);
  for (round = 0; round < 3; ++round) {
    unsigned int id = ask(orders, answers, 1, 0);
    sci_remote_segment_t segment = connect_segment(sd, program.peer, id);
    sci_sequence_t sequence;
    sci_map_t map;
    volatile unsigned int* theirs = SCIMapRemoteSegment(segment, &map, 0, BYTES, NULL, 0, &error);
    OK("SCIMapRemoteSegment");
    SCICreateMapSequence(map, &sequence, 0, &error);
    OK("SCICreateMapSequence");
    while (SCIStartSequence(sequence, 0, &error) != SCI_SEQ_OK) {
    }
    theirs[1] = 1;
    if (SCICheckSequence(sequence, 0, &error) != SCI_SEQ_OK) return 1;
    if (round == 0) {
      /* Mapped when it goes. */
      ask(orders, answers, 0, id);
      theirs[1] = 2;
      SCIRemoveSequence(sequence, 0, &error);
      OK("SCIRemoveSequence");
      SCIUnmapSegment(map, 0, &error);
      OK("SCIUnmapSegment");
    } else if (round == 1) {
      /* Unmapped, and connected, when it goes; and the sequence is still there. */
      SCIUnmapSegment(map, 0, &error);
      OK("SCIUnmapSegment");
      ask(orders, answers, 0, id);
    } else {
      SCIUnmapSegment(map, 0, &error);
      OK("SCIUnmapSegment");
    }
    SCIDisconnectSegment(segment, 0, &error);
    OK("SCIDisconnectSegment");
    if (round != 0) {
      SCIRemoveSequence(sequence, 0, &error);
      OK("SCIRemoveSequence");
    }
    if (round == 2) ask(orders, answers, 0, id);
  }
  SCIDisconnectDataInterrupt(orders, 0, &error);
  OK("SCIDisconnectDataInterrupt");
  SCIRemoveDataInterrupt(answers, 0, &error);
  OK("SCIRemoveDataInterrupt");
  return 0;
}

int main(int argc, char** argv) {
  struct Program program = begin(argc, argv);
  sci_error_t error;
  sci_desc_t sd;
  int result;
  SCIOpen(&sd, 0, &error);
  OK("SCIOpen");
  result = program.server ? serve(sd, program) : use(sd, program);
  if (result != 0) return result;
  SCIClose(sd, 0, &error);
  OK("SCIClose");
  SCITerminate();
  return 0;
}
