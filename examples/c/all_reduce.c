/* Sums one number per rank, and stops with the library's words when something fails.
 *
 * Run: ./all_reduce alone (one rank), or under a launcher: mpirun -n 4 ./all_reduce
 */
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

  float values[4];
  for (int i = 0; i < 4; ++i) values[i] = (float)(rank + i);
  /* In place, blocking: the same buffer twice, no stream, no request. */
  check(rwAllReduce(values, values, 4, rwFloat32, rwSum, comm, NULL, NULL), comm);
  if (rank == 0) {
    printf("%d ranks: %g %g %g %g\n", size, (double)values[0], (double)values[1], (double)values[2],
           (double)values[3]);
  }
  check(rwCommFinalize(comm), comm);
  check(rwCommDestroy(comm), NULL);
  return EXIT_SUCCESS;
}
