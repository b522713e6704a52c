/* Each rank puts a number into its neighbour's window and signals; then all read rank 0's by get.
 *
 * Run: ./window alone (one rank), or under a launcher: mpirun -n 4 ./window
 */
#include <ropewalk/messages.h>
#include <ropewalk/ropewalk.h>
#include <stdio.h>
#include <stdlib.h>

static void check(rwResult_t result, rwComm_t comm) {
  if (result == rwSuccess) return;
  fprintf(stderr, "%s: %s\n", rwGetErrorString(result), rwGetLastError(comm));
  exit(EXIT_FAILURE);
}

int main(void) {
  rwComm_t comm = NULL;
  check(rwCommInitEnv(&comm), NULL);
  int rank = 0;
  int size = 0;
  check(rwCommUserRank(comm, &rank), comm);
  check(rwCommCount(comm, &size), comm);
  const int right = (rank + 1) % size;
  const int left = (rank + size - 1) % size;

  rwMessageWindow_t window = NULL;
  check(rwWindowCreate(comm, sizeof(double), 1, &window), comm);
  void* memory = NULL;
  check(rwWindowMemory(window, rank, &memory, NULL), comm);
  const double* mine = memory;

  const double value = 10.0 + rank;
  check(rwPutSignal(&value, sizeof value, right, 0, 0, window, NULL, NULL), comm);
  check(rwWaitSignal(left, 0, 1, window, NULL, NULL), comm);
  const double received = *mine;
  check(rwBarrier(comm), comm);

  double first = 0;
  rwRequest_t request = NULL;
  check(rwGet(&first, sizeof first, 0, 0, window, NULL, &request), comm);
  check(rwRequestWait(request, -1), comm);
  check(rwRequestFree(request), comm);
  if (rank == 0) {
    printf("%d ranks: %g from rank %d, rank 0 has %g\n", size, received, left, first);
  }
  check(rwWindowFree(window), comm);
  check(rwCommFinalize(comm), comm);
  check(rwCommDestroy(comm), NULL);
  return EXIT_SUCCESS;
}
