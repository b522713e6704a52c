/* The same by MPI's one-sided operations: mpi_messages MOST_BYTES ROUNDS. See loop.h.
 *
 * MPI has no signal: a put is completed by MPI_Win_flush, then a number is put into the target's
 * window and completed, which the target looks at, as MPI-4 12.7 allows within lock_all. */
#define _GNU_SOURCE
#include <mpi.h>
#include <stdint.h>

#include "loop.h"

static MPI_Win window;
static int rank;
static size_t data_bytes;
static unsigned char* memory;
static unsigned char* source;
static uint64_t sent;
static uint64_t awaited;

static void put(size_t bytes, int with_signal) {
  const int peer = 1 - rank;
  if (bytes > 0) MPI_Put(source, (int)bytes, MPI_BYTE, peer, 0, (int)bytes, MPI_BYTE, window);
  if (!with_signal) return;
  MPI_Win_flush(peer, window);
  ++sent;
  MPI_Put(&sent, 1, MPI_UINT64_T, peer, (MPI_Aint)data_bytes, 1, MPI_UINT64_T, window);
  MPI_Win_flush(peer, window);
}

static void wait_one(void) {
  ++awaited;
  volatile const uint64_t* arrived = (volatile const uint64_t*)(memory + data_bytes);
  for (int turn = 1; *arrived < awaited; ++turn) {
    MPI_Win_sync(window);
    if (turn % 64 != 0) continue;
    int flag = 0; /* lets the library move what needs it */
    MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &flag, MPI_STATUS_IGNORE);
  }
  MPI_Win_sync(window);
}

int main(int argc, char** argv) {
  const size_t most_bytes = argc > 1 ? strtoull(argv[1], NULL, 10) : 4096;
  const int rounds = argc > 2 ? atoi(argv[2]) : 3;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  bind_rank(rank);
  data_bytes = (most_bytes + 63) / 64 * 64;
  MPI_Win_allocate((MPI_Aint)(data_bytes + 64), 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
  memset(memory, 0, data_bytes + 64);
  MPI_Barrier(MPI_COMM_WORLD);
  MPI_Win_lock_all(MPI_MODE_NOCHECK, window);
  source = malloc(most_bytes);
  if (source == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  memset(source, 1 + rank, most_bytes);
  measure(rank, most_bytes, rounds, memory, put, wait_one);
  MPI_Win_unlock_all(window);
  MPI_Win_free(&window);
  free(source);
  MPI_Finalize();
  return EXIT_SUCCESS;
}
