/* libmp's API, case by case: api CASE. Each rank prints "CASE: passed" at the end. With MPI (mpicc)
 * it begins by mp_init, else by mp_init_env. */
#define _GNU_SOURCE
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"

enum { kBig = 3 << 20 };

static int rank, size, right, left;
static unsigned char* source;
static unsigned char* target;
static mp_reg_t source_reg, target_reg;

static void begin(void) {
#ifdef MPI_VERSION
  OK(mp_init(MPI_COMM_WORLD, NULL, 0, MP_INIT_DEFAULT, MP_HOST_ONLY));
#else
  OK(mp_init_env(NULL, 0, MP_INIT_DEFAULT, MP_HOST_ONLY));
#endif
  rank = mp_rank();
  size = mp_size();
  right = (rank + 1) % size;
  left = (rank + size - 1) % size;
  source = malloc(kBig);
  target = malloc(kBig);
  EXPECT(source != NULL && target != NULL);
  memset(target, 0, kBig);
  OK(mp_register(source, kBig, &source_reg));
  OK(mp_register(target, kBig, &target_reg));
}

static void end(void) {
  OK(mp_deregister(&source_reg));
  OK(mp_deregister(&target_reg));
  EXPECT(source_reg == NULL);
  mp_finalize();
  EXPECT(mp_rank() == -1);
  free(source);
  free(target);
}

static double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* A message of 4 bytes each way, so that all have come here. */
static void meet(void) {
  uint32_t word = 1;
  mp_reg_t reg;
  mp_request_t requests[2];
  OK(mp_register(&word, sizeof word, &reg));
  for (int step = 0; step < size; ++step) {
    OK(mp_irecv(&word, 4, left, &reg, &requests[0]));
    OK(mp_isend(&word, 4, right, &reg, &requests[1]));
    OK(mp_wait_all(2, requests));
  }
  OK(mp_deregister(&reg));
}

/* ---- cases ---------------------------------------------------------------------------------- */

static void version(void) {
  int value = 0;
  OK(mp_query_param(MP_PARAM_VERSION, &value));
  EXPECT(value == 0x20000);
  EXPECT(MP_API_VERSION_COMPATIBLE((uint32_t)value));
  EXPECT(!MP_API_VERSION_COMPATIBLE(0x30000U) && !MP_API_VERSION_COMPATIBLE(0x10005U));
  EXPECT(mp_query_param(MP_NUM_PARAMS, &value) == EINVAL);
  EXPECT(mp_query_param(MP_PARAM_VERSION, NULL) == EINVAL);
}

/* Sizes around the chunks, sends before and after the receives, in a ring of ranks. */
static void messages(void) {
  const int sizes[] = {0, 1, 4, 63, 64, 4095, 4096, 65535, 65536, 65537, 524288, 524289, kBig};
  const int count = (int)(sizeof sizes / sizeof sizes[0]);
  for (int k = 0; k < 3 * count; ++k) {
    const int bytes = sizes[k % count];
    mp_request_t requests[2];
    fill(source, (size_t)bytes, rank, k);
    memset(target, 0xee, (size_t)bytes);
    if (k % 2 == 0) {
      OK(mp_irecv(target, bytes, left, &target_reg, &requests[0]));
      OK(mp_isend(source, bytes, right, &source_reg, &requests[1]));
    } else {
      OK(mp_isend(source, bytes, right, &source_reg, &requests[1]));
      OK(mp_irecv(target, bytes, left, &target_reg, &requests[0]));
    }
    OK(mp_wait_all(2, requests));
    EXPECT(requests[0] == NULL && requests[1] == NULL);
    EXPECT(wrong(target, (size_t)bytes, left, k) == 0);
  }
}

/* The n-th send meets the n-th receive, many at once, and a shorter message than its receive. */
static void order(void) {
  enum { kMany = 700, kBytes = 1000 };
  mp_request_t sends[kMany], receives[kMany];
  for (int k = 0; k < kMany; ++k) {
    OK(mp_irecv(target + k * kBytes, kBytes, left, &target_reg, &receives[k]));
  }
  for (int k = 0; k < kMany; ++k) {
    fill(source + k * kBytes, kBytes, rank, k);
    OK(mp_isend(source + k * kBytes, kBytes - k % 3, right, &source_reg, &sends[k]));
  }
  /* The last first: waiting for one moves all. */
  OK(mp_wait(&receives[kMany - 1]));
  int complete = 0;
  while ((complete = mp_progress_all(kMany - 1, receives)) != kMany - 1) EXPECT(complete >= 0);
  OK(mp_wait_all(kMany - 1, receives));
  OK(mp_wait_all(kMany, sends));
  for (int k = 0; k < kMany; ++k) {
    EXPECT(wrong(target + k * kBytes, (size_t)(kBytes - k % 3), left, k) == 0);
    EXPECT(k % 3 == 0 || target[k * kBytes + kBytes - 1] == 0);
  }
}

/* Scattered blocks on both sides, cut differently; mp_isendv sets the request, which libmp's did
 * not. */
static void vectors(void) {
  struct iovec out[MP_MOST_BLOCKS], in[3];
  size_t bytes = 0;
  fill(source, kBig, rank, 5);
  for (int k = 0; k < MP_MOST_BLOCKS; ++k) {
    out[k].iov_base = source + bytes;
    out[k].iov_len = (size_t)(k * 997);
    bytes += out[k].iov_len;
  }
  in[0].iov_base = target + 2000000;
  in[0].iov_len = 10;
  in[1].iov_base = target;
  in[1].iov_len = bytes - 300000;
  in[2].iov_base = target + 1000000;
  in[2].iov_len = 300000 - 10;
  mp_request_t requests[2] = {NULL, NULL};
  OK(mp_irecvv(in, 3, left, &target_reg, &requests[0]));
  OK(mp_isendv(out, MP_MOST_BLOCKS, right, &source_reg, &requests[1]));
  EXPECT(requests[1] != NULL);
  OK(mp_wait_all(2, requests));
  size_t at = 0;
  for (int k = 0; k < 3; ++k) {
    const unsigned char* data = in[k].iov_base;
    for (size_t i = 0; i < in[k].iov_len; ++i) EXPECT(data[i] == pattern(left, 5, at + i));
    at += in[k].iov_len;
  }
  OK(mp_irecvv(in, 1, left, &target_reg, &requests[0]));
  OK(mp_isendv_on_stream(out, 5, right, &source_reg, &requests[1], NULL)); /* 9970 bytes */
  EXPECT(mp_wait(&requests[0]) == MP_FAILURE);                             /* into 10 */
  OK(mp_wait(&requests[1]));
  EXPECT(mp_isendv(out, MP_MOST_BLOCKS + 1, right, &source_reg, &requests[1]) == EINVAL);
  EXPECT(mp_isendv(out, 0, right, &source_reg, &requests[1]) == EINVAL);
}

/* A wait on the host stream holds back what follows on it, and not the CPU. */
static void streams(void) {
  uint32_t gate = 0;
  mp_request_t send, receive, early;
  fill(source, 1000, rank, 1);
  OK(mp_irecv(target, 1000, left, &target_reg, &receive));
  OK(mp_wait32_on_stream(&gate, 1, MP_WAIT_GEQ, NULL));
  OK(mp_isend_on_stream(source, 1000, right, &source_reg, &send, NULL));
  OK(mp_wait_on_stream(&send, NULL));
  for (int k = 0; k < 50; ++k) {
    EXPECT(mp_progress_all(1, &send) == 0);
    usleep(200);
  }
  __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
  OK(mp_wait(&send));
  OK(mp_wait(&receive));
  EXPECT(wrong(target, 1000, left, 1) == 0);

  /* Nobody calls: the library's thread moves the stream. The release waits for the stream. */
  gate = 0;
  OK(mp_irecv(target, 1000, left, &target_reg, &receive));
  OK(mp_isend(source, 1000, right, &source_reg, &early));
  OK(mp_wait32_on_stream(&gate, 1, MP_WAIT_EQ, NULL));
  OK(mp_wait_on_stream(&early, NULL));
  usleep(2000);
  EXPECT(mp_progress_all(1, &early) == 0); /* complete, but the stream has not come to its wait */
  EXPECT(mp_wait_on_stream(&early, NULL) == EINVAL);
  OK(mp_send_on_stream(source, 10, right, &source_reg, &send, NULL));
  __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
  const double begin_s = now_s();
  mp_request_t second;
  OK(mp_irecv(target + 2000, 10, left, &target_reg, &second));
  while (__atomic_load_n(&target[2009], __ATOMIC_ACQUIRE) != pattern(left, 1, 9)) {
    EXPECT(now_s() - begin_s < 60);
    usleep(100);
  }
  OK(mp_wait(&second));
  OK(mp_wait(&send));
  OK(mp_wait(&early));
  OK(mp_wait(&receive));
}

/* Split forms, and queues of descriptors. */
static void prepared(void) {
  enum { kMany = 12 };
  mp_request_t sends[kMany], receives[kMany];
  for (int round = 0; round < 4; ++round) {
    for (int k = 0; k < kMany; ++k) {
      fill(source + 100 * k, 100, rank, k + round);
      memset(target + 100 * k, 0xee, 100);
      OK(mp_irecv(target + 100 * k, 100, left, &target_reg, &receives[k]));
      struct iovec parts[2] = {{source + 100 * k, 60}, {source + 100 * k + 60, 40}};
      if (k % 2 == 0) OK(mp_send_prepare(source + 100 * k, 100, right, &source_reg, &sends[k]));
      if (k % 2 == 1) OK(mp_sendv_prepare(parts, 2, right, &source_reg, &sends[k]));
      EXPECT(mp_wait(&sends[k]) == EINVAL && sends[k] != NULL);
      EXPECT(mp_wait_on_stream(&sends[k], NULL) == EINVAL);
    }
    EXPECT(mp_progress_all(kMany, sends) == 0);
    if (round == 0) OK(mp_isend_post_all_on_stream(kMany, sends, NULL));
    if (round == 1) OK(mp_send_post_all_on_stream(kMany, sends, NULL));
    if (round == 2) {
      for (int k = 0; k < kMany; ++k) OK(mp_isend_post_on_stream(&sends[k], NULL));
    }
    if (round == 3) {
      for (int k = 0; k < kMany; ++k) OK(mp_send_post_on_stream(&sends[k], NULL));
    }
    EXPECT(mp_isend_post_on_stream(&sends[0], NULL) == EINVAL);
    if (round != 1 && round != 3) OK(mp_wait_all_on_stream(kMany, sends, NULL));
    OK(mp_wait_all_on_stream(kMany, receives, NULL));
    OK(mp_wait_all(kMany, receives));
    OK(mp_wait_all(kMany, sends));
    for (int k = 0; k < kMany; ++k) EXPECT(wrong(target + 100 * k, 100, left, k + round) == 0);
  }

  mp_desc_queue_t queue = NULL;
  uint32_t words[2] = {0, 0};
  OK(mp_desc_queue_alloc(&queue));
  OK(mp_irecv(target, 100, left, &target_reg, &receives[0]));
  OK(mp_send_prepare(source, 100, right, &source_reg, &sends[0]));
  OK(mp_desc_queue_add_wait_value32(&queue, &words[0], 7, MP_WAIT_EQ));
  OK(mp_desc_queue_add_send(&queue, &sends[0]));
  EXPECT(mp_desc_queue_add_send(&queue, &sends[0]) == EINVAL);
  EXPECT(mp_desc_queue_add_wait_recv(&queue, &sends[0]) == EINVAL);
  EXPECT(mp_desc_queue_add_wait_send(&queue, &receives[0]) == EINVAL);
  OK(mp_desc_queue_add_wait_send(&queue, &sends[0]));
  OK(mp_desc_queue_add_wait_recv(&queue, &receives[0]));
  OK(mp_desc_queue_add_write_value32(&queue, &words[1], 9));
  EXPECT(mp_desc_queue_post_on_stream(NULL, &queue, 1) == EINVAL);
  OK(mp_desc_queue_post_on_stream(NULL, &queue, 0));
  OK(mp_desc_queue_post_on_stream(NULL, &queue, 0)); /* empty now */
  usleep(1000);
  EXPECT(__atomic_load_n(&words[1], __ATOMIC_ACQUIRE) == 0);
  __atomic_store_n(&words[0], 7, __ATOMIC_RELEASE);
  OK(mp_wait32(&words[1], 9, MP_WAIT_EQ));
  OK(mp_wait(&sends[0]));
  OK(mp_wait(&receives[0]));
  OK(mp_desc_queue_free(&queue));
  EXPECT(queue == NULL && mp_desc_queue_free(&queue) == EINVAL);
}

/* Puts and gets, and how their target learns of them. */
static void windows(void) {
  enum { kBytes = 100000 };
  mp_window_t window = NULL;
  mp_request_t requests[4];
  const size_t mine = kBytes + 4 * (size_t)rank;
  OK(mp_window_create(target, mine, &window));
  fill(source, kBytes, rank, 3);

  /* A send is seen after the puts before it. */
  uint32_t note = 0;
  mp_reg_t note_reg;
  OK(mp_register(&note, sizeof note, &note_reg));
  OK(mp_irecv(&note, 4, left, &note_reg, &requests[0]));
  OK(mp_iput(source, kBytes, &source_reg, right, 0, &window, &requests[1], MP_PUT_INLINE));
  OK(mp_isend(source, 4, right, &source_reg, &requests[2]));
  OK(mp_wait(&requests[0]));
  EXPECT(wrong(target, kBytes, left, 3) == 0);
  OK(mp_wait_all(2, requests + 1));
  meet();

  /* A word, put after the data, is seen after it. */
  uint32_t* word = (uint32_t*)(void*)(target + kBytes - 4);
  memset(target, 0, kBytes);
  meet();
  for (uint32_t round = 1; round <= 200; ++round) {
    memset(source, (int)round, 1000);
    memcpy(source + 1000, &round, 4);
    OK(mp_iput(source, 1000, &source_reg, right, 8, &window, &requests[0], MP_PUT_NOWAIT));
    EXPECT(requests[0] == NULL);
    OK(mp_iput(source + 1000, 4, &source_reg, right, kBytes - 4, &window, &requests[1], 0));
    OK(mp_wait32(word, round, MP_WAIT_GEQ));
    for (int k = 8; k < 1008; ++k) EXPECT(target[k] == (unsigned char)round);
    OK(mp_wait(&requests[1]));
    meet();
  }

  /* Prepared puts, one post, and gets. */
  fill(source, 3000, rank, 4);
  for (int k = 0; k < 3; ++k) {
    OK(mp_put_prepare(source + 1000 * k, 1000, &source_reg, right, (size_t)(1000 * k), &window,
                      &requests[k], k == 2 ? MP_PUT_NOWAIT : 0));
  }
  EXPECT(mp_isend_post_on_stream(&requests[0], NULL) == EINVAL); /* a put */
  OK(mp_iput_post_on_stream(&requests[0], NULL));
  OK(mp_iput_post_all_on_stream(2, requests + 1, NULL));
  EXPECT(requests[2] == NULL && requests[1] != NULL);
  OK(mp_wait_all_on_stream(2, requests, NULL));
  OK(mp_isend_on_stream(source, 4, right, &source_reg, &requests[2], NULL));
  OK(mp_irecv(&note, 4, left, &note_reg, &requests[3]));
  OK(mp_wait_all(4, requests));
  EXPECT(wrong(target, 3000, left, 4) == 0);
  memset(source, 0, 3000);
  OK(mp_iget(source, 1500, &source_reg, right, 0, &window, &requests[0]));
  OK(mp_iget_on_stream(source + 1500, 1500, &source_reg, right, 1500, &window, &requests[1], NULL));
  OK(mp_wait_all(2, requests));
  EXPECT(wrong(source, 3000, rank, 4) == 0);

  /* The end of the range counts, of the peer's part. */
  const size_t its = kBytes + 4 * (size_t)right;
  OK(mp_iput(source, 4, &source_reg, right, its - 4, &window, &requests[0], 0));
  OK(mp_wait(&requests[0]));
  EXPECT(mp_iput(source, 4, &source_reg, right, its - 3, &window, &requests[0], 0) == EINVAL);
  EXPECT(mp_iget(source, 4, &source_reg, right, its + 1, &window, &requests[0]) == EINVAL);
  EXPECT(mp_iput(source, 4, &source_reg, right, 0, &window, &requests[0], 4) == EINVAL);
  EXPECT(mp_put_prepare(source, 4, &source_reg, right, (size_t)-4, &window, &requests[0], 0) ==
         EINVAL);
  meet();
  OK(mp_window_destroy(&window));
  EXPECT(window == NULL);
  EXPECT(mp_iput(source, 4, &source_reg, right, 0, &window, &requests[0], 0) == EINVAL);

  /* Ranks without memory; a second window. */
  OK(mp_window_create(rank == 0 ? target : NULL, rank == 0 ? 8 : 0, &window));
  if (rank == size - 1) {
    OK(mp_iput(source, 8, &source_reg, 0, 0, &window, &requests[0], 0));
    OK(mp_wait(&requests[0]));
  }
  if (size > 1) EXPECT(mp_iget(source, 1, &source_reg, 1, 0, &window, &requests[0]) == EINVAL);
  OK(mp_deregister(&note_reg));
}

/* The same conditions on the CPU and on streams; GEQ is cyclic. */
static void words(void) {
  static uint32_t word, seen; /* which the stream still reads in mp_finalize */
  const struct {
    uint32_t is, value;
    int flags, holds;
  } cases[] = {{5, 5, MP_WAIT_GEQ, 1},
               {6, 5, MP_WAIT_GEQ, 1},
               {4, 5, MP_WAIT_GEQ, 0},
               {2, 0xfffffffeU, MP_WAIT_GEQ, 1},
               {0xfffffffeU, 2, MP_WAIT_GEQ, 0},
               {0x7fffffffU, 0, MP_WAIT_GEQ, 1},
               {5, 5, MP_WAIT_EQ, 1},
               {6, 5, MP_WAIT_EQ, 0},
               {4, 5, MP_WAIT_EQ, 0},
               {6, 4, MP_WAIT_AND, 1},
               {3, 4, MP_WAIT_AND, 0},
               {8, 0, MP_WAIT_AND, 0}};
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; ++k) {
    __atomic_store_n(&word, cases[k].is, __ATOMIC_RELEASE);
    __atomic_store_n(&seen, 0, __ATOMIC_RELEASE);
    if (cases[k].holds) OK(mp_wait32(&word, cases[k].value, cases[k].flags));
    mp_desc_queue_t queue;
    OK(mp_desc_queue_alloc(&queue));
    OK(mp_wait32_on_stream(&word, cases[k].value, cases[k].flags, NULL));
    OK(mp_desc_queue_add_write_value32(&queue, &seen, 1));
    OK(mp_desc_queue_post_on_stream(NULL, &queue, 0));
    EXPECT(mp_progress_all(0, NULL) == 0);
    EXPECT(__atomic_load_n(&seen, __ATOMIC_ACQUIRE) == (uint32_t)cases[k].holds);
    if (!cases[k].holds && cases[k].flags == MP_WAIT_AND && cases[k].value == 0) {
      /* Never: the engine ends with it. */
      OK(mp_desc_queue_free(&queue));
      return;
    }
    /* Lets it through. */
    __atomic_store_n(&word, cases[k].value, __ATOMIC_RELEASE);
    OK(mp_wait32(&seen, 1, MP_WAIT_EQ));
    OK(mp_desc_queue_free(&queue));
  }
}

static void inline_words(void) {
  uint32_t word = 3;
  OK(mp_wait_dword_geq_on_stream(&word, 2, NULL));
  OK(mp_wait_dword_eq_on_stream(&word, 3, NULL));
}

/* Nothing is done, and the ranks go on. */
static void refused(void) {
  mp_request_t request = NULL;
  mp_reg_t none = NULL;
  mp_window_t window = NULL;
  char other[8];
  EXPECT(mp_init_env(NULL, 0, 0, MP_HOST_ONLY) == EINVAL); /* twice */
  EXPECT(strstr(mp_last_error(), "mp_finalize") != NULL);
  EXPECT(mp_isend(source, 4, size, &source_reg, &request) == EINVAL);
  EXPECT(mp_isend(source, 4, -1, &source_reg, &request) == EINVAL);
  EXPECT(mp_isend(source, -1, right, &source_reg, &request) == EINVAL);
  EXPECT(mp_isend(NULL, 4, right, &source_reg, &request) == EINVAL);
  EXPECT(mp_isend(other, 4, right, &source_reg, &request) == EINVAL);
  EXPECT(mp_isend(source + kBig - 3, 4, right, &source_reg, &request) == EINVAL);
  EXPECT(mp_isend(source, 4, right, &none, &request) == EINVAL);
  EXPECT(mp_isend(source, 4, right, NULL, &request) == EINVAL);
  EXPECT(mp_isend(source, 4, right, &source_reg, NULL) == EINVAL);
  EXPECT(mp_irecv(source, 4, size, &source_reg, &request) == EINVAL);
  EXPECT(mp_wait(&request) == EINVAL && mp_wait(NULL) == EINVAL);
  EXPECT(mp_wait_all(1, NULL) == EINVAL);
  OK(mp_wait_all(0, NULL));
  EXPECT(mp_progress_all(1, &request) == -EINVAL);
  EXPECT(mp_wait_on_stream(&request, NULL) == EINVAL);
  EXPECT(mp_iput(source, 4, &source_reg, right, 0, &window, &request, 0) == EINVAL);
  EXPECT(mp_register(NULL, 4, &none) == EINVAL);
  EXPECT(mp_register(source, 4, NULL) == EINVAL);
  EXPECT(mp_deregister(&none) == EINVAL);
  EXPECT(mp_wait32(NULL, 0, MP_WAIT_EQ) == EINVAL);
  EXPECT(mp_wait32((uint32_t*)(void*)source, 0, 3) == EINVAL);
  /* Streams of a GPU, on ranks without one. */
  cudaStream_t stream = (cudaStream_t)(void*)other;
  EXPECT(mp_isend_on_stream(source, 4, right, &source_reg, &request, stream) == EINVAL);
  EXPECT(strstr(mp_last_error(), "no GPU") != NULL);
  EXPECT(mp_wait32_on_stream((uint32_t*)(void*)source, 0, 0, stream) == EINVAL);
  OK(mp_send_prepare(source, 4, right, &source_reg, &request));
  EXPECT(mp_isend_post_on_stream(&request, stream) == EINVAL);
  /* Still prepared. */
  mp_request_t receive;
  OK(mp_irecv(target, 4, left, &target_reg, &receive));
  OK(mp_isend_post_on_stream(&request, NULL));
  OK(mp_wait(&request));
  OK(mp_wait(&receive));
  /* Released: a handle that was copied is none any more. */
  OK(mp_irecv(target, 4, left, &target_reg, &receive));
  mp_request_t copy = receive;
  OK(mp_isend(source, 4, right, &source_reg, &request));
  OK(mp_wait(&receive));
  OK(mp_wait(&request));
  EXPECT(mp_wait(&copy) == EINVAL);
  /* Too long for its receive: an error of the receive alone. */
  meet();
  OK(mp_irecv(target, 100, left, &target_reg, &receive));
  OK(mp_isend(source, 200000, right, &source_reg, &request));
  EXPECT(mp_wait(&receive) == MP_FAILURE && receive == NULL);
  EXPECT(strstr(mp_last_error(), "200000 bytes") != NULL);
  OK(mp_wait(&request));
  meet();
}

/* Messages that are longer than what is on its way without a receive, and a collective between. */
static void across_a_collective(void) {
  mp_request_t requests[2];
  mp_window_t window = NULL;
  fill(source, kBig, rank, 6);
  OK(mp_isend(source, kBig, right, &source_reg, &requests[0]));
  if (rank % 2 == 0) OK(mp_irecv(target, kBig, left, &target_reg, &requests[1]));
  if (rank % 2 == 0) OK(mp_wait(&requests[1])); /* while the others are in mp_window_create */
  OK(mp_window_create(source, 8, &window));
  if (rank % 2 != 0) OK(mp_irecv(target, kBig, left, &target_reg, &requests[1]));
  if (rank % 2 != 0) OK(mp_wait(&requests[1]));
  OK(mp_wait(&requests[0]));
  EXPECT(wrong(target, kBig, left, 6) == 0);
}

/* Nobody calls while the messages move. */
static void while_it_computes(void) {
  mp_request_t requests[2];
  fill(source, kBig, rank, 7);
  OK(mp_irecv(target, kBig, left, &target_reg, &requests[0]));
  OK(mp_isend(source, kBig, right, &source_reg, &requests[1]));
  const double begin_s = now_s();
  while (__atomic_load_n(&target[kBig - 1], __ATOMIC_ACQUIRE) != pattern(left, 7, kBig - 1)) {
    EXPECT(now_s() - begin_s < 60);
    usleep(500);
  }
  OK(mp_wait_all(2, requests));
  EXPECT(wrong(target, kBig, left, 7) == 0);
}

/* The last rank goes when all others have said that they may lose it. */
static void let_go(void) {
  mp_request_t request;
  if (rank < size - 1) {
    OK(mp_isend(source, 1, size - 1, &source_reg, &request));
    OK(mp_wait(&request));
    return;
  }
  for (int peer = 0; peer < size - 1; ++peer) {
    OK(mp_irecv(target, 1, peer, &target_reg, &request));
    OK(mp_wait(&request));
  }
}

/* A rank that dies ends the others' waits; nothing ends their processes. */
static void lost_peer(void) {
  EXPECT(size > 1);
  if (rank == size - 1) {
    let_go();
    _exit(0);
  }
  static uint32_t never; /* which the stream still reads in mp_finalize */
  mp_request_t receive, other;
  OK(mp_irecv(target, 4, size - 1, &target_reg, &receive));
  OK(mp_wait32_on_stream(&never, 1, MP_WAIT_EQ, NULL));
  OK(mp_isend_on_stream(source, 4, rank, &source_reg, &other, NULL));
  let_go();
  EXPECT(mp_wait(&receive) == MP_FAILURE && receive == NULL);
  EXPECT(mp_wait(&other) == MP_FAILURE);
  EXPECT(mp_isend(source, 4, rank, &source_reg, &other) == MP_FAILURE);
  EXPECT(strstr(mp_last_error(), "rank") != NULL);
}

/* A program that ends by itself, without mp_finalize. */
static void without_the_end(void) {
  EXPECT(size > 1);
  if (rank == size - 1) {
    let_go();
    exit(EXIT_SUCCESS);
  }
  mp_request_t receive;
  OK(mp_irecv(target, 4, size - 1, &target_reg, &receive));
  let_go();
  EXPECT(mp_wait(&receive) == MP_FAILURE);
}

/* With a short TIMEOUT: a message that never comes. */
static void deadline(void) {
  mp_request_t receive;
  OK(mp_irecv(target, 4, left, &target_reg, &receive));
  EXPECT(mp_wait(&receive) == MP_FAILURE);
}

static const struct {
  const char* name;
  void (*run)(void);
} kCases[] = {{"version", version},
              {"messages", messages},
              {"order", order},
              {"vectors", vectors},
              {"streams", streams},
              {"prepared", prepared},
              {"windows", windows},
              {"words", words},
              {"inline_words", inline_words},
              {"refused", refused},
              {"across_a_collective", across_a_collective},
              {"while_it_computes", while_it_computes},
              {"lost_peer", lost_peer},
              {"without_the_end", without_the_end},
              {"deadline", deadline}};

/* ---- beginnings ----------------------------------------------------------------------------- */

/* An error of one rank is an error on all, and mp_init may be tried again. */
static void beginnings(void) {
#ifndef MPI_VERSION
  EXPECT(mp_rank() == -1 && mp_size() == -1);
  mp_reg_t reg;
  EXPECT(mp_register(&reg, 8, &reg) == EINVAL);
  EXPECT(strstr(mp_last_error(), "mp_init was not called") != NULL);
  EXPECT(mp_init_env(NULL, 0, 16, MP_HOST_ONLY) == EINVAL);
#else
  const int none = 99;
  int world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &world);
  int self = world;
  const int bad = mp_init(MPI_COMM_WORLD, world == 0 ? (int*)&none : &self, 1, 0, MP_HOST_ONLY);
  EXPECT(bad == EINVAL && strstr(mp_last_error(), "rank 0: peers: 99") != NULL);
  EXPECT(mp_init(MPI_COMM_WORLD, NULL, 0, 0, 1000) == EINVAL);
  EXPECT(strstr(mp_last_error(), "gpu_id") != NULL);
  /* Itself alone, with the flags that libmp tests as bits: TX_CQ_ON_GPU is 3. */
  OK(mp_init(MPI_COMM_WORLD, &self, 1, MP_INIT_TX_CQ_ON_GPU, MP_HOST_ONLY));
  mp_request_t request;
  OK(mp_register(&self, sizeof self, &source_reg));
  EXPECT(mp_isend(&self, 4, (world + 1) % mp_size(), &source_reg, &request) ==
         (mp_size() > 1 ? EINVAL : MP_SUCCESS));
  if (mp_size() > 1) {
    mp_request_t both[2];
    int got = -1;
    mp_reg_t reg;
    OK(mp_register(&got, sizeof got, &reg));
    OK(mp_irecv(&got, 4, world, &reg, &both[0]));
    OK(mp_isend(&self, 4, world, &source_reg, &both[1]));
    OK(mp_wait_all(2, both));
    EXPECT(got == world);
  }
  mp_finalize();
#endif
  begin();
  meet();
  end();
  mp_finalize(); /* without mp_init: nothing happens */
}

int main(int argc, char** argv) {
  const char* const name = argc > 1 ? argv[1] : "";
#ifdef MPI_VERSION
  MPI_Init(&argc, &argv);
#endif
  int found = 0;
  if (strcmp(name, "beginnings") == 0) {
    beginnings();
    found = 1;
  }
  for (size_t k = 0; k < sizeof kCases / sizeof kCases[0]; ++k) {
    if (strcmp(name, kCases[k].name) != 0) continue;
    begin();
    kCases[k].run();
    end();
    found = 1;
  }
#ifdef MPI_VERSION
  MPI_Finalize();
#endif
  if (!found) fprintf(stderr, "no case %s\n", name);
  if (found) printf("%s: passed\n", name);
  return found ? EXIT_SUCCESS : EXIT_FAILURE;
}
