/* What the small programs have in common. Each is run twice, as
 *   PROGRAM server OWN_NODE PEER_NODE     and     PROGRAM client OWN_NODE PEER_NODE
 * and written as programs for the vendor's library are. */
#pragma once

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sisci_api.h"

#define ADAPTER 0
#define ROUNDS 200

#define OK(what)                                                                 \
  do {                                                                           \
    if (error != SCI_ERR_OK) {                                                   \
      fprintf(stderr, "%s: %s (0x%x)\n", what, SCIGetErrorString(error), error); \
      exit(1);                                                                   \
    }                                                                            \
  } while (0)

struct Program {
  int server;
  unsigned int own;
  unsigned int peer;
};

static inline struct Program begin(int argc, char** argv) {
  struct Program program;
  sci_error_t error;
  unsigned int node = 0;
  if (argc != 4) {
    fprintf(stderr, "usage: %s server|client OWN_NODE PEER_NODE\n", argv[0]);
    exit(2);
  }
  program.server = strcmp(argv[1], "server") == 0;
  program.own = (unsigned int)atoi(argv[2]);
  program.peer = (unsigned int)atoi(argv[3]);
  SCIInitialize(0, &error);
  OK("SCIInitialize");
  SCIGetLocalNodeId(ADAPTER, &node, 0, &error);
  OK("SCIGetLocalNodeId");
  if (node != program.own) {
    fprintf(stderr, "this is node %u, not %u\n", node, program.own);
    exit(1);
  }
  return program;
}

/* A segment of the peer may not be there yet: connecting asks once. */
static inline sci_remote_segment_t connect_segment(sci_desc_t sd, unsigned int node,
                                                   unsigned int id) {
  sci_remote_segment_t segment = NULL;
  sci_error_t error;
  int tries;
  for (tries = 0; tries < 20000; ++tries) {
    SCIConnectSegment(sd, &segment, node, id, ADAPTER, NULL, NULL, SCI_INFINITE_TIMEOUT, 0, &error);
    if (error == SCI_ERR_OK) return segment;
    usleep(1000);
  }
  OK("SCIConnectSegment");
  return NULL;
}

static inline double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}
