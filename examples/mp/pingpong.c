/* Half round trips of libmp's messages between two ranks, from the CPU and in the order of a
 * stream.
 *
 * Run: mpirun -n 2 ./pingpong, or under another launcher if it was compiled without MPI.
 * Prints one line for each size: bytes, microseconds from the CPU, microseconds on the host stream.
 */
#include <mp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kMost = 65536, kSteps = 200 };

static void check(int result) {
  if (result == MP_SUCCESS) return;
  fprintf(stderr, "%s\n", mp_last_error());
  exit(EXIT_FAILURE);
}

static double now_us(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return 1e6 * (double)time.tv_sec + 1e-3 * (double)time.tv_nsec;
}

static int rank, peer;
static unsigned char out[kMost], in[kSteps][kMost];
static mp_reg_t out_reg, in_reg;

/* Receives are posted ahead, so that the loop only sends and waits. */
static double steps(int bytes, int on_stream) {
  mp_request_t sends[kSteps], receives[kSteps];
  const double begin_us = now_us();
  for (int k = 0; k < kSteps; ++k) {
    check(mp_irecv(in[k], bytes, peer, &in_reg, &receives[k]));
  }
  for (int k = 0; k < kSteps; ++k) {
    for (int turn = 0; turn < 2; ++turn) {
      if (turn == rank) {
        if (on_stream) check(mp_isend_on_stream(out, bytes, peer, &out_reg, &sends[k], NULL));
        if (!on_stream) check(mp_isend(out, bytes, peer, &out_reg, &sends[k]));
      } else if (on_stream) {
        check(mp_wait_on_stream(&receives[k], NULL)); /* the stream waits, not the CPU */
      } else {
        check(mp_wait(&receives[k]));
      }
    }
  }
  /* Requests that streams waited for are released by the CPU. */
  if (on_stream) check(mp_wait_all(kSteps, receives));
  check(mp_wait_all(kSteps, sends));
  return (now_us() - begin_us) / kSteps / 2;
}

int main(int argc, char** argv) {
#ifdef MPI_VERSION
  MPI_Init(&argc, &argv);
  check(mp_init(MPI_COMM_WORLD, NULL, 0, MP_INIT_DEFAULT, MP_HOST_ONLY));
#else
  (void)argc;
  (void)argv;
  check(mp_init_env(NULL, 0, MP_INIT_DEFAULT, MP_HOST_ONLY));
#endif
  rank = mp_rank();
  peer = 1 - rank;
  if (mp_size() != 2) {
    fprintf(stderr, "pingpong: 2 ranks, not %d\n", mp_size());
    return EXIT_FAILURE;
  }
  memset(out, 1 + rank, sizeof out);
  check(mp_register(out, sizeof out, &out_reg));
  check(mp_register(in, sizeof in, &in_reg));
  for (int bytes = 8; bytes <= kMost; bytes *= 8) {
    memset(in, 0, sizeof in);
    (void)steps(bytes, 0);
    const double cpu_us = steps(bytes, 0);
    memset(in, 0, sizeof in);
    const double stream_us = steps(bytes, 1);
    for (int k = 0; k < kSteps; ++k) {
      if (in[k][0] == 1 + peer && in[k][bytes - 1] == 1 + peer) continue;
      fprintf(stderr, "pingpong: wrong data\n");
      return EXIT_FAILURE;
    }
    if (rank == 0) printf("%6d bytes: %8.2f us, on a stream %8.2f us\n", bytes, cpu_us, stream_us);
  }
  check(mp_deregister(&out_reg));
  check(mp_deregister(&in_reg));
  mp_finalize();
#ifdef MPI_VERSION
  MPI_Finalize();
#endif
  return EXIT_SUCCESS;
}
