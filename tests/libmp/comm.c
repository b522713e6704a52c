/* The COMM layer, case by case: comm CASE. Each rank prints "CASE: passed" at the end. */
#define _GNU_SOURCE
#include <comm.h>
#include <errno.h>
#include <unistd.h>

#include "cases.h"

enum { kBytes = 5000, kSteps = 100 };

static int rank, size;

static void begin(void) {
#ifdef MPI_VERSION
  OK(comm_init(MPI_COMM_WORLD, MP_HOST_ONLY));
#else
  OK(mp_init_env(NULL, 0, MP_INIT_DEFAULT, MP_HOST_ONLY));
  OK(comm_begin());
#endif
  EXPECT(comm_begin() == EINVAL);
  rank = mp_rank();
  size = mp_size();
}

static unsigned char* bytes_of(int peer) {
  static unsigned char data[2][64][kBytes];
  return data[peer >= 0][peer >= 0 ? peer : -1 - peer];
}

static unsigned char* outgoing(int peer) { return bytes_of(peer); }
static unsigned char* incoming(int peer) { return bytes_of(-1 - peer); }

/* All exchange with all by the CPU: nobody sends before the receive is posted. */
static void readiness(void) {
  comm_reg_t out[64] = {NULL}, in[64] = {NULL};
  for (int step = 0; step < kSteps; ++step) {
    comm_request_t receives[64], sends[64], ready = (comm_request_t)(void*)out;
    for (int peer = 0; peer < size; ++peer) {
      memset(incoming(peer), 0, kBytes);
      fill(outgoing(peer), kBytes, rank, step + peer);
#ifdef MPI_VERSION
      OK(comm_irecv(incoming(peer), kBytes / 4, MPI_INT, &in[peer], peer, &receives[peer]));
#else
      OK(comm_irecv_bytes(incoming(peer), kBytes, &in[peer], peer, &receives[peer]));
#endif
      OK(comm_send_ready(peer, &ready));
      EXPECT(ready == NULL && in[peer] != NULL);
    }
    for (int peer = 0; peer < size; ++peer) {
      int is = 0;
      if (step % 2 == 0) OK(comm_wait_ready(peer));
      while (step % 2 == 1 && !is) OK(comm_test_ready(peer, &is));
#ifdef MPI_VERSION
      OK(comm_isend(outgoing(peer), kBytes, MPI_CHAR, &out[peer], peer, &sends[peer]));
#else
      OK(comm_isend_bytes(outgoing(peer), kBytes, &out[peer], peer, &sends[peer]));
#endif
    }
    OK(comm_wait_all(size, receives));
    OK(comm_wait_all(size - 1, sends));
    OK(comm_wait(&sends[size - 1]));
    EXPECT(receives[0] == NULL && sends[size - 1] == NULL);
    for (int peer = 0; peer < size; ++peer) {
      EXPECT(wrong(incoming(peer), kBytes, peer, step + rank) == 0);
    }
  }
  for (int peer = 0; peer < size; ++peer) {
    OK(comm_deregister(&in[peer]));
    OK(comm_deregister(&out[peer]));
  }
}

/* The exchange of a stencil: the CPU tells the stream everything and waits at the end only. */
static void streams(void) {
  comm_reg_t out[64] = {NULL}, in[64] = {NULL};
  static unsigned char kept[kSteps][64][kBytes / 10];
  static unsigned char sent[kSteps][64][kBytes / 10];
  for (int peer = 0; peer < size; ++peer) {
    OK(comm_register(kept, sizeof kept, &in[peer]));
    OK(comm_register(sent, sizeof sent, &out[peer]));
  }
  for (int step = 0; step < kSteps; ++step) {
    comm_request_t receives[64], sends[64], readies[64];
    for (int peer = 0; peer < size; ++peer) {
      fill(sent[step][peer], sizeof sent[step][peer], rank, step + peer);
      OK(comm_irecv_bytes(kept[step][peer], sizeof kept[step][peer], &in[peer], peer,
                          &receives[peer]));
      OK(comm_send_ready_on_stream(peer, &readies[peer], NULL));
    }
    for (int peer = 0; peer < size; ++peer) {
      OK(comm_wait_ready_on_stream(peer, NULL));
      OK(comm_isend_bytes_on_stream(sent[step][peer], sizeof sent[step][peer], &out[peer], peer,
                                    &sends[peer], NULL));
    }
    OK(comm_wait_all_on_stream(size, receives, NULL));
    OK(comm_wait_all_on_stream(size, sends, NULL));
    OK(comm_wait_all_on_stream(size, readies, NULL));
    EXPECT(receives[0] == NULL && sends[0] == NULL && readies[0] == NULL);
    OK(comm_progress());
  }
  OK(comm_flush());
  for (int peer = 0; peer < size; ++peer) {
    OK(comm_deregister(&in[peer]));
    OK(comm_deregister(&out[peer]));
  }
  for (int step = 0; step < kSteps; ++step) {
    for (int peer = 0; peer < size; ++peer) {
      EXPECT(wrong(kept[step][peer], sizeof kept[step][peer], peer, step + rank) == 0);
    }
  }
}

static void requests(void) {
  comm_request_t request = NULL, copy;
  comm_reg_t reg = NULL;
  int is = 1;
  OK(comm_wait(&request)); /* NULL: skipped */
  OK(comm_wait_all_on_stream(1, &request, NULL));
  EXPECT(comm_wait(NULL) == EINVAL && comm_wait_all(-1, NULL) == EINVAL);
  EXPECT(comm_send_ready(size, &request) == EINVAL && comm_wait_ready(-1) == EINVAL);
  EXPECT(comm_irecv_bytes(incoming(0), (size_t)1 << 40, &reg, rank, &request) == EINVAL);
  EXPECT(comm_irecv_bytes(incoming(0), 4, NULL, rank, &request) == EINVAL);
  OK(comm_test_ready(rank, &is));
  EXPECT(is == 0);
  OK(comm_irecv_bytes(incoming(0), 4, &reg, rank, &request));
  copy = request;
  comm_reg_t out = NULL;
  comm_request_t send;
  OK(comm_isend_bytes(outgoing(0), 4, &out, rank, &send));
  OK(comm_wait(&request));
  EXPECT(comm_wait(&copy) == EINVAL);
  OK(comm_flush()); /* releases the send */
  EXPECT(comm_wait(&send) == EINVAL);
  OK(comm_deregister(&reg));
  OK(comm_deregister(&out));
  EXPECT(reg == NULL && comm_deregister(&out) == EINVAL);
  EXPECT(!comm_use_comm() && !comm_use_async() && !comm_use_gdrdma() && !comm_use_gpu_comm());
  setenv("COMM_USE_ASYNC", "1", 1);
  EXPECT(comm_use_async() == 1);
}

int main(int argc, char** argv) {
  const char* const name = argc > 1 ? argv[1] : "";
#ifdef MPI_VERSION
  MPI_Init(&argc, &argv);
#endif
  begin();
  if (strcmp(name, "readiness") == 0) {
    readiness();
  } else if (strcmp(name, "streams") == 0) {
    streams();
  } else if (strcmp(name, "requests") == 0) {
    requests();
  } else {
    return EXIT_FAILURE;
  }
  comm_finalize();
  EXPECT(comm_progress() == EINVAL);
#ifdef MPI_VERSION
  MPI_Finalize();
#endif
  printf("%s: passed\n", name);
  return EXIT_SUCCESS;
}
