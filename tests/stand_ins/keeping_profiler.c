/* A profiler plugin for NCCL (version 5) that keeps the addresses of texts, as NCCL's literals
 * allow: it says a line of each collective when its communicator ends. */
#include <string.h>

#include "profiler_v5.h"

enum { kCollective = 1 << 1, kMost = 16 };

static struct Communicator {
  Logger logger;
  int rank, count;
  struct {
    const char *function, *type, *algorithm, *protocol;
  } told[kMost];
} communicators[2];

static int start(void** context, uint64_t id, int* mask, const char* name, int num_nodes,
                 int num_ranks, int rank, Logger logger) {
  (void)id, (void)name, (void)num_nodes, (void)num_ranks;
  struct Communicator* self = &communicators[rank & 1];
  self->logger = logger;
  self->rank = rank;
  *context = self;
  *mask = kCollective;
  return 0;
}

static const char* text_at(const void* descriptor, size_t offset) {
  const char* text = NULL;
  memcpy(&text, (const char*)descriptor + offset, sizeof text);
  return text;
}

static int start_event(void* context, void** event, void* descriptor) {
  struct Communicator* self = context;
  *event = NULL;
  if (self->count == kMost) return 0;
  self->told[self->count].function = text_at(descriptor, 32);
  self->told[self->count].type = text_at(descriptor, 72);
  self->told[self->count].algorithm = text_at(descriptor, 88);
  self->told[self->count].protocol = text_at(descriptor, 96);
  ++self->count;
  return 0;
}

static int end(void* context) {
  const struct Communicator* self = context;
  for (int i = 0; i < self->count; ++i) {
    self->logger(2, ~0UL, __FILE__, __LINE__, "rank %d kept %s %s %s %s", self->rank,
                 self->told[i].function, self->told[i].type, self->told[i].algorithm,
                 self->told[i].protocol);
  }
  return 0;
}

__attribute__((visibility("default"))) struct Profiler ncclProfiler_v5 = {
    "Keeping", start, start_event, stop_event, record_state, end};
