/* Data interrupts to and fro: by waiting at the client, by a callback, which answers, at the
 * server. */
#include "program.h"

struct Answering {
  sci_remote_data_interrupt_t to;
  volatile int answered;
};

static sci_callback_action_t on_message(void* arg, sci_local_data_interrupt_t interrupt, void* data,
                                        unsigned int length, sci_error_t status) {
  struct Answering* answering = arg;
  sci_error_t error = SCI_ERR_OK;
  unsigned int* number = data;
  (void)interrupt;
  if (status != SCI_ERR_OK || length != sizeof *number) return SCI_CALLBACK_CANCEL;
  *number += 1000;
  do {
    SCITriggerDataInterrupt(answering->to, number, sizeof *number, 0, &error);
  } while (error == SCI_ERR_NOSPC);
  ++answering->answered;
  return SCI_CALLBACK_CONTINUE;
}

static void connect_interrupt(sci_desc_t sd, sci_remote_data_interrupt_t* to, unsigned int node) {
  sci_error_t error;
  do {
    SCIConnectDataInterrupt(sd, to, node, ADAPTER, 200 + node, SCI_INFINITE_TIMEOUT, 0, &error);
    if (error == SCI_ERR_NO_SUCH_INTNO) usleep(1000);
  } while (error == SCI_ERR_NO_SUCH_INTNO);
  OK("SCIConnectDataInterrupt");
}

int main(int argc, char** argv) {
  struct Program program = begin(argc, argv);
  sci_error_t error;
  sci_desc_t sd;
  sci_local_data_interrupt_t told;
  struct Answering answering = {NULL, 0};
  unsigned int number = 200 + program.own;
  unsigned int round;
  double start = seconds();

  SCIOpen(&sd, 0, &error);
  OK("SCIOpen");
  if (program.server) {
    /* Connected first: a message may come as soon as the interrupt is there. */
    connect_interrupt(sd, &answering.to, program.peer);
    SCICreateDataInterrupt(sd, &told, ADAPTER, &number, on_message, &answering,
                           SCI_FLAG_FIXED_INTNO | SCI_FLAG_USE_CALLBACK, &error);
    OK("SCICreateDataInterrupt");
    while (answering.answered < ROUNDS && seconds() - start < 60) usleep(1000);
    if (answering.answered != ROUNDS) return 1;
  } else {
    SCICreateDataInterrupt(sd, &told, ADAPTER, &number, NULL, NULL, SCI_FLAG_FIXED_INTNO, &error);
    OK("SCICreateDataInterrupt");
    connect_interrupt(sd, &answering.to, program.peer);
    start = seconds();
    for (round = 0; round < ROUNDS; ++round) {
      unsigned int message = round;
      unsigned int length = sizeof message;
      SCITriggerDataInterrupt(answering.to, &message, sizeof message, 0, &error);
      OK("SCITriggerDataInterrupt");
      SCIWaitForDataInterrupt(told, &message, &length, 20000, 0, &error);
      OK("SCIWaitForDataInterrupt");
      if (length != sizeof message || message != round + 1000) return 1;
    }
    printf("data interrupt half round trip: %.1f us\n", (seconds() - start) / ROUNDS / 2 * 1e6);
  }
  SCIDisconnectDataInterrupt(answering.to, 0, &error);
  OK("SCIDisconnectDataInterrupt");
  SCIRemoveDataInterrupt(told, 0, &error);
  OK("SCIRemoveDataInterrupt");
  SCIClose(sd, 0, &error);
  OK("SCIClose");
  SCITerminate();
  return 0;
}
