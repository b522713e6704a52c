/* libmp's API with a GPU's memory and streams: gpu CASE. CUDA's driver is opened at run time, so
 * that software may stand in for it. Each rank prints "CASE: passed" at the end. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"

enum { kBig = 1 << 20 };

/* ---- CUDA ------------------------------------------------------------------------------------ */

typedef unsigned long long Device;
static int (*cu_init)(unsigned);
static int (*cu_context)(void**, int);
static int (*cu_set)(void*);
static int (*cu_alloc)(Device*, size_t);
static int (*cu_free)(Device);
static int (*cu_to_device)(Device, const void*, size_t);
static int (*cu_to_host)(void*, Device, size_t);
static int (*cu_stream)(cudaStream_t*, unsigned, int);
static int (*cu_destroy)(cudaStream_t);
static int (*cu_query)(cudaStream_t);
static int (*cu_copy)(Device, Device, size_t, cudaStream_t);
static int (*cu_count)(int*);
static int (*cu_synchronize)(void);

static void* symbol(const char* name) {
  static void* library;
  if (library == NULL) library = dlopen("libcuda.so.1", RTLD_NOW);
  EXPECT(library != NULL);
  void* const found = dlsym(library, name);
  EXPECT(found != NULL);
  return found;
}

static int gpu;

static void load_cuda(int local_rank) {
  *(void**)&cu_init = symbol("cuInit");
  *(void**)&cu_context = symbol("cuDevicePrimaryCtxRetain");
  *(void**)&cu_set = symbol("cuCtxSetCurrent");
  *(void**)&cu_alloc = symbol("cuMemAlloc_v2");
  *(void**)&cu_free = symbol("cuMemFree_v2");
  *(void**)&cu_to_device = symbol("cuMemcpyHtoD_v2");
  *(void**)&cu_to_host = symbol("cuMemcpyDtoH_v2");
  *(void**)&cu_stream = symbol("cuStreamCreateWithPriority");
  *(void**)&cu_destroy = symbol("cuStreamDestroy_v2");
  *(void**)&cu_query = symbol("cuStreamQuery");
  *(void**)&cu_copy = symbol("cuMemcpyDtoDAsync_v2");
  *(void**)&cu_count = symbol("cuDeviceGetCount");
  *(void**)&cu_synchronize = symbol("cuCtxSynchronize");
  int count = 0;
  void* context = NULL;
  EXPECT(cu_init(0) == 0 && cu_count(&count) == 0 && count > 0);
  gpu = local_rank % count;
  EXPECT(cu_context(&context, gpu) == 0 && cu_set(context) == 0);
}

static void await_stream(cudaStream_t stream) {
  for (int k = 0; cu_query(stream) != 0; ++k) {
    EXPECT(k < 600000);
    usleep(100);
  }
}

/* ---- cases ---------------------------------------------------------------------------------- */

static int rank, size, right, left;
static Device source, target;
static unsigned char* host;
static mp_reg_t source_reg, target_reg, host_reg;
static cudaStream_t stream;

static void begin(void) {
  OK(mp_init_env(NULL, 0, MP_INIT_DEFAULT, gpu));
  rank = mp_rank();
  size = mp_size();
  right = (rank + 1) % size;
  left = (rank + size - 1) % size;
  host = malloc(kBig);
  EXPECT(host != NULL);
  EXPECT(cu_alloc(&source, kBig) == 0 && cu_alloc(&target, kBig) == 0);
  EXPECT(cu_stream(&stream, 1 /* beside the default stream */, 0) == 0);
  OK(mp_register((void*)(uintptr_t)source, kBig, &source_reg));
  OK(mp_register((void*)(uintptr_t)target, kBig, &target_reg));
  OK(mp_register(host, kBig, &host_reg));
}

static void end(void) {
  OK(mp_deregister(&source_reg));
  OK(mp_deregister(&target_reg));
  OK(mp_deregister(&host_reg));
  mp_finalize();
  EXPECT(cu_destroy(stream) == 0 && cu_free(source) == 0 && cu_free(target) == 0);
  free(host);
}

static void* at(Device memory, size_t offset) { return (void*)(uintptr_t)(memory + offset); }

/* From pageable memory the call returns before the data is there. No stream may wait meanwhile. */
static void copy_to_gpu(Device memory, size_t bytes) {
  EXPECT(cu_to_device(memory, host, bytes) == 0 && cu_synchronize() == 0);
}

static void set(Device memory, size_t bytes, int of_rank, int message) {
  fill(host, bytes, of_rank, message);
  copy_to_gpu(memory, bytes);
}

static size_t wrong_on_gpu(Device memory, size_t bytes, int of_rank, int message) {
  EXPECT(cu_to_host(host, memory, bytes) == 0);
  return wrong(host, bytes, of_rank, message);
}

/* By the CPU, between any memories. */
static void messages(void) {
  const int sizes[] = {0, 1, 1000, 65536, 65537, kBig};
  for (int k = 0; k < 12; ++k) {
    const int bytes = sizes[k % 6];
    mp_request_t requests[2];
    set(source, (size_t)bytes, rank, k);
    const int to_host = k % 4 == 3;
    if (to_host) OK(mp_irecv(host, bytes, left, &host_reg, &requests[0]));
    if (!to_host) OK(mp_irecv(at(target, 0), bytes, left, &target_reg, &requests[0]));
    OK(mp_isend(at(source, 0), bytes, right, &source_reg, &requests[1]));
    OK(mp_wait_all(2, requests));
    if (to_host) EXPECT(wrong(host, (size_t)bytes, left, k) == 0);
    if (!to_host) EXPECT(wrong_on_gpu(target, (size_t)bytes, left, k) == 0);
  }
  fill(host, 5000, rank, 99);
  mp_request_t requests[2];
  OK(mp_irecv(at(target, 0), 5000, left, &target_reg, &requests[0]));
  OK(mp_isend(host, 5000, right, &host_reg, &requests[1]));
  OK(mp_wait_all(2, requests));
  EXPECT(wrong_on_gpu(target, 5000, left, 99) == 0);
}

/* In a stream: copy, send, wait for a message, copy; the CPU waits at the end only. */
static void streams(void) {
  enum { kSteps = 40, kBytes = 3000 };
  mp_request_t sends[kSteps], receives[kSteps];
  set(source, kBytes, rank, 1);
  for (int k = 0; k < kSteps; ++k) {
    OK(mp_irecv(at(target, (size_t)k * kBytes), kBytes, left, &target_reg, &receives[k]));
  }
  const size_t scratch = 500000;
  for (int k = 0; k < kSteps; ++k) {
    /* What this rank got in the step before goes on. */
    const Device from = k == 0 ? source : target + (size_t)(k - 1) * kBytes;
    EXPECT(cu_copy(source + scratch + (size_t)k * kBytes, from, kBytes, stream) == 0);
    OK(mp_isend_on_stream(at(source, scratch + (size_t)k * kBytes), kBytes, right, &source_reg,
                          &sends[k], stream));
    OK(mp_wait_on_stream(&receives[k], stream));
  }
  OK(mp_wait_all_on_stream(kSteps, sends, stream));
  await_stream(stream);
  OK(mp_wait_all(kSteps, receives));
  OK(mp_wait_all(kSteps, sends));
  for (int k = 0; k < kSteps; ++k) {
    const int origin = ((rank - 1 - k) % size + size) % size;
    EXPECT(wrong_on_gpu(target + (size_t)k * kBytes, kBytes, origin, 1) == 0);
  }
}

/* The stream waits for a word, and does not hold the CPU. */
static void words(void) {
  uint32_t gate = 0;
  mp_request_t send, receive;
  mp_desc_queue_t queue;
  uint32_t seen = 0;
  set(source, 100, rank, 2);
  OK(mp_irecv(at(target, 0), 100, left, &target_reg, &receive));
  OK(mp_wait32_on_stream(&gate, 5, MP_WAIT_EQ, stream));
  OK(mp_isend_on_stream(at(source, 0), 100, right, &source_reg, &send, stream));
  usleep(20000);
  EXPECT(cu_query(stream) != 0 && mp_progress_all(1, &send) == 0);
  __atomic_store_n(&gate, 5, __ATOMIC_RELEASE);
  OK(mp_desc_queue_alloc(&queue));
  OK(mp_desc_queue_add_wait_send(&queue, &send));
  OK(mp_desc_queue_add_wait_recv(&queue, &receive));
  OK(mp_desc_queue_add_write_value32(&queue, &seen, 3));
  OK(mp_desc_queue_post_on_stream(stream, &queue, 0));
  await_stream(stream);
  EXPECT(seen == 3);
  OK(mp_desc_queue_free(&queue));
  OK(mp_wait(&send));
  OK(mp_wait(&receive));
  EXPECT(wrong_on_gpu(target, 100, left, 2) == 0);
  EXPECT(mp_wait32((uint32_t*)at(target, 0), 0, MP_WAIT_EQ) == EINVAL);
}

/* Windows of either kind; prepared puts on a stream. */
static void windows(void) {
  mp_window_t window, in_host;
  mp_request_t requests[3], receive, send;
  char note = 0;
  mp_reg_t note_reg;
  OK(mp_register(&note, 1, &note_reg));
  OK(mp_window_create(at(target, 0), rank == 0 && size > 1 ? 0 : kBig, &window));
  OK(mp_window_create(host, 4096, &in_host));
  const int peer = right == 0 && size > 1 ? (size > 2 ? 1 : rank) : right;
  set(source, 3000, rank, 3);
  for (int k = 0; k < 3; ++k) {
    OK(mp_put_prepare(at(source, (size_t)k * 1000), 1000, &source_reg, peer,
                      (size_t)rank * 4096 + (size_t)k * 1000, &window, &requests[k], 0));
  }
  OK(mp_iput_post_all_on_stream(3, requests, stream));
  OK(mp_irecv(&note, 1, left, &note_reg, &receive));
  OK(mp_wait_all_on_stream(3, requests, stream));
  OK(mp_isend_on_stream(at(source, 0), 1, right, &source_reg, &send, stream));
  await_stream(stream);
  OK(mp_wait_all(3, requests));
  OK(mp_wait(&send));
  OK(mp_wait(&receive));
  memset(host, 0, 3000);
  copy_to_gpu(source, 3000);
  OK(mp_iget(at(source, 0), 3000, &source_reg, peer, (size_t)rank * 4096, &window, &requests[0]));
  OK(mp_wait(&requests[0]));
  EXPECT(wrong_on_gpu(source, 3000, rank, 3) == 0);
  EXPECT(mp_iput(at(source, 0), 10, &source_reg, right, 0, &in_host, &requests[0], 0) == ENOTSUP);
  EXPECT(strstr(mp_last_error(), "host memory") != NULL);
  if (size > 1) {
    mp_window_t mixed;
    EXPECT(mp_window_create(rank == 0 ? (void*)host : at(target, 0), 100, &mixed) == EINVAL);
  }
  OK(mp_deregister(&note_reg));
}

/* More than Ropewalk's calls on streams take at once, some of them while the stream stands. */
static void many(void) {
  enum { kMany = 1500 };
  uint32_t gate = 0;
  static mp_request_t sends[kMany], receives[kMany];
  for (int k = 0; k < kMany; ++k) {
    OK(mp_irecv(at(target, (size_t)k * 4), 4, left, &target_reg, &receives[k]));
  }
  OK(mp_wait32_on_stream(&gate, 1, MP_WAIT_EQ, stream));
  for (int k = 0; k < kMany; ++k) {
    if (k == 200) __atomic_store_n(&gate, 1, __ATOMIC_RELEASE);
    OK(mp_isend_on_stream(at(source, (size_t)k * 4), 4, right, &source_reg, &sends[k], stream));
  }
  await_stream(stream);
  OK(mp_wait_all(kMany, sends));
  OK(mp_wait_all(kMany, receives));
}

/* A rank that dies: the streams of the others go on. */
static void lost_peer(void) {
  EXPECT(size > 1);
  mp_request_t receive, request;
  if (rank == size - 1) {
    for (int peer = 0; peer < size - 1; ++peer) {
      OK(mp_irecv(at(target, 0), 1, peer, &target_reg, &request));
      OK(mp_wait(&request));
    }
    _exit(0);
  }
  OK(mp_irecv(at(target, 0), 100, size - 1, &target_reg, &receive));
  OK(mp_wait_on_stream(&receive, stream));
  OK(mp_isend(at(source, 0), 1, size - 1, &source_reg, &request));
  OK(mp_wait(&request));
  EXPECT(mp_wait(&receive) == MP_FAILURE);
  await_stream(stream);
}

int main(int argc, char** argv) {
  static const struct {
    const char* name;
    void (*run)(void);
  } cases[] = {{"messages", messages}, {"streams", streams}, {"words", words},
               {"windows", windows},   {"many", many},       {"lost_peer", lost_peer}};
  const char* const name = argc > 1 ? argv[1] : "";
  const char* const local = getenv("LOCAL_RANK");
  load_cuda(local == NULL ? 0 : atoi(local));
  for (size_t k = 0; k < sizeof cases / sizeof cases[0]; ++k) {
    if (strcmp(name, cases[k].name) != 0) continue;
    begin();
    cases[k].run();
    end();
    printf("%s: passed\n", name);
    return EXIT_SUCCESS;
  }
  return EXIT_FAILURE;
}
