/* Puts and signals of Ropewalk between two processes: messages MOST_BYTES ROUNDS. See loop.h. */
#define _GNU_SOURCE
#include <ropewalk/messages.h>
#include <ropewalk/ropewalk.h>

#include "loop.h"

static rwComm_t comm;
static rwMessageWindow_t window;
static int rank;
static unsigned char* source;

static void check(rwResult_t result) {
  if (result == rwSuccess) return;
  fprintf(stderr, "%s: %s\n", rwGetErrorString(result), rwGetLastError(comm));
  exit(EXIT_FAILURE);
}

static void put(size_t bytes, int with_signal) {
  check(with_signal ? rwPutSignal(source, bytes, 1 - rank, 0, 0, window, NULL, NULL)
                    : rwPut(source, bytes, 1 - rank, 0, window, NULL, NULL));
}

static void wait_one(void) { check(rwWaitSignal(1 - rank, 0, 1, window, NULL, NULL)); }

int main(int argc, char** argv) {
  const size_t most_bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 4096;
  const int rounds = argc > 2 ? atoi(argv[2]) : 3;
  check(rwCommInitEnv(&comm));
  check(rwCommUserRank(comm, &rank));
  bind_rank(rank);
  check(rwWindowCreate(comm, most_bytes, 1, &window));
  void* memory = NULL;
  check(rwWindowMemory(window, rank, &memory, NULL));
  source = malloc(most_bytes);
  if (source == NULL) return EXIT_FAILURE;
  memset(source, 1 + rank, most_bytes);
  measure(rank, most_bytes, rounds, memory, put, wait_one);
  check(rwWindowFree(window));
  check(rwCommDestroy(comm));
  free(source);
  return EXIT_SUCCESS;
}
