/* Times one collective of an MPI library. The same source is compiled by every MPI's mpicc.
 *
 *   mpi_bench OPERATION CPUS BLOCKING LIMIT_S REGION IN_PLACE SIZE:WARMUP:ITERATIONS...
 *
 * The loop is that of rwMeasure: warm-up, barrier, iterations back to back (BLOCKING 1: a barrier
 * after each), mean over iterations, then mean (smallest, largest) over ranks. The result is
 * checked after the timed part, with fresh data. ITERATIONS are cut to what fits into LIMIT_S
 * seconds by the first warm-up iterations, so that a very slow library does not delay the others.
 * Each run takes the memory after that of the run before, cyclically, within REGION bytes of input
 * and as many of output, in steps of whole cache lines, so that data comes from memory; REGION 0:
 * all take the same, and data comes from caches. IN_PLACE 1: input and output are one buffer, and
 * MPI_IN_PLACE says so where MPI has it: on all ranks, and of reduce, gather and scatter at the
 * root alone; such runs move through REGION bytes in all. SIZE is as in nccl-tests: the larger of
 * the bytes that a rank sends and receives. CPUS is a comma-separated list (rank r is bound to
 * entry r modulo its length, before MPI starts) or "-": the launcher binds, or nobody does.
 *
 * Rank 0 prints JSON lines: one that names the library, then one per size. */
#define _GNU_SOURCE
#include <mpi.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const int kRoot = 0;
static int g_rank;
static int g_ranks;

static void die(const char* what, const char* value) {
  fprintf(stderr, "mpi_bench: %s: %s\n", what, value);
  exit(2);
}

/* ---- binding -------------------------------------------------------------------------------- */

/* The rank on this host, as the launchers of Open MPI and MPICH give it to a process before
 * MPI_Init. */
static int launcher_rank(void) {
  static const char* const names[] = {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "PMI_RANK"};
  for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
    const char* value = getenv(names[i]);
    if (value != NULL) return atoi(value);
  }
  die("no launcher set the local rank", "start with mpirun");
  return 0;
}

static void bind_to_cpu(const char* list) {
  if (strcmp(list, "-") == 0) return;
  int cpus[256];
  int num_cpus = 0;
  char* end = NULL;
  for (const char* at = list; *at != '\0' && num_cpus < 256; at = *end == ',' ? end + 1 : end) {
    cpus[num_cpus++] = (int)strtol(at, &end, 10);
    if (end == at) die("not a list of CPUs", list);
  }
  if (num_cpus == 0) die("not a list of CPUs", list);
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)cpus[launcher_rank() % num_cpus], &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) die("cannot bind to one of the CPUs", list);
}

/* ---- the operations ------------------------------------------------------------------------- */

typedef struct Buffers {
  float* send;
  float* recv;   /* in place: the same as `send` */
  int count;     /* elements as in the MPI call: of the whole message, or of one rank's block */
  size_t stride; /* elements from the memory of one run to that of the next */
  size_t places; /* how many there are */
  size_t place;  /* that of the next run */
  int in_place;
} Buffers;

static void advance(Buffers* b) {
  const int last = b->place + 1 == b->places;
  const ptrdiff_t by = last ? -(ptrdiff_t)(b->place * b->stride) : (ptrdiff_t)b->stride;
  b->send += by;
  b->recv += by;
  b->place = last ? 0 : b->place + 1;
}

/* The argument that is MPI_IN_PLACE where input and output are one buffer. */
static void* unless_in_place(const Buffers* b, float* separate) {
  return b->in_place ? MPI_IN_PLACE : separate;
}
static void* unless_in_place_at_root(const Buffers* b, float* separate) {
  return g_rank == kRoot ? unless_in_place(b, separate) : separate;
}

static void all_reduce(const Buffers* b) {
  const void* send = unless_in_place(b, b->send);
  MPI_Allreduce(send, b->recv, b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void all_gather(const Buffers* b) {
  const void* send = unless_in_place(b, b->send);
  MPI_Allgather(send, b->count, MPI_FLOAT, b->recv, b->count, MPI_FLOAT, MPI_COMM_WORLD);
}
static void reduce_scatter(const Buffers* b) {
  const void* send = unless_in_place(b, b->send);
  MPI_Reduce_scatter_block(send, b->recv, b->count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
}
static void broadcast(const Buffers* b) {
  MPI_Bcast(g_rank == kRoot ? b->send : b->recv, b->count, MPI_FLOAT, kRoot, MPI_COMM_WORLD);
}
static void reduce(const Buffers* b) {
  const void* send = unless_in_place_at_root(b, b->send);
  MPI_Reduce(send, b->recv, b->count, MPI_FLOAT, MPI_SUM, kRoot, MPI_COMM_WORLD);
}
static void all_to_all(const Buffers* b) {
  MPI_Alltoall(b->send, b->count, MPI_FLOAT, b->recv, b->count, MPI_FLOAT, MPI_COMM_WORLD);
}
static void gather(const Buffers* b) {
  const void* send = unless_in_place_at_root(b, b->send);
  MPI_Gather(send, b->count, MPI_FLOAT, b->recv, b->count, MPI_FLOAT, kRoot, MPI_COMM_WORLD);
}
static void scatter(const Buffers* b) {
  void* recv = unless_in_place_at_root(b, b->recv);
  MPI_Scatter(b->send, b->count, MPI_FLOAT, recv, b->count, MPI_FLOAT, kRoot, MPI_COMM_WORLD);
}
static void sendrecv(const Buffers* b) {
  const int next = (g_rank + 1) % g_ranks;
  const int previous = (g_rank + g_ranks - 1) % g_ranks;
  MPI_Sendrecv(b->send, b->count, MPI_FLOAT, next, 0, b->recv, b->count, MPI_FLOAT, previous, 0,
               MPI_COMM_WORLD, MPI_STATUS_IGNORE);
}

/* Small integers: every order of summing gives the same bits. */
static float input(int rank, size_t element) {
  return (float)((element * 7 + (size_t)rank * 3 + element / 1000) % 11);
}

static float sum_of_inputs(size_t element) {
  float sum = 0;
  for (int rank = 0; rank < g_ranks; ++rank) sum += input(rank, element);
  return sum;
}

/* What `element` of this rank's receive buffer must hold; `block` elements come from each rank. */
static float expect_sum(size_t element, size_t block) {
  (void)block;
  return sum_of_inputs(element);
}
static float expect_gathered(size_t element, size_t block) {
  return input((int)(element / block), element % block);
}
static float expect_scattered_sum(size_t element, size_t block) {
  return sum_of_inputs((size_t)g_rank * block + element);
}
static float expect_root(size_t element, size_t block) {
  (void)block;
  return input(kRoot, element);
}
static float expect_exchanged(size_t element, size_t block) {
  return input((int)(element / block), (size_t)g_rank * block + element % block);
}
static float expect_scattered(size_t element, size_t block) {
  return input(kRoot, (size_t)g_rank * block + element);
}
static float expect_previous(size_t element, size_t block) {
  (void)block;
  return input((g_rank + g_ranks - 1) % g_ranks, element);
}

enum Ranks { kEveryRank, kRootOnly, kAllButRoot };

static int is_among(enum Ranks ranks) {
  return ranks == kEveryRank || (ranks == kRootOnly) == (g_rank == kRoot);
}

typedef struct Operation {
  const char* name;
  void (*run)(const Buffers*);
  float (*expected)(size_t element, size_t block);
  int send_is_block; /* the buffer holds one rank's block, not the whole */
  int recv_is_block;
  enum Ranks senders;
  enum Ranks receivers;
  int has_in_place; /* in Ropewalk too */
} Operation;

static const Operation kOperations[] = {
    {"all_reduce", all_reduce, expect_sum, 0, 0, kEveryRank, kEveryRank, 1},
    {"all_gather", all_gather, expect_gathered, 1, 0, kEveryRank, kEveryRank, 1},
    {"reduce_scatter", reduce_scatter, expect_scattered_sum, 0, 1, kEveryRank, kEveryRank, 1},
    {"broadcast", broadcast, expect_root, 0, 0, kRootOnly, kAllButRoot, 1},
    {"reduce", reduce, expect_sum, 0, 0, kEveryRank, kRootOnly, 1},
    {"all_to_all", all_to_all, expect_exchanged, 0, 0, kEveryRank, kEveryRank, 0},
    {"gather", gather, expect_gathered, 1, 0, kEveryRank, kRootOnly, 1},
    {"scatter", scatter, expect_scattered, 0, 1, kRootOnly, kEveryRank, 1},
    {"sendrecv", sendrecv, expect_previous, 0, 0, kEveryRank, kEveryRank, 0},
};

static const Operation* find_operation(const char* name) {
  for (size_t i = 0; i < sizeof kOperations / sizeof kOperations[0]; ++i) {
    if (strcmp(kOperations[i].name, name) == 0) return &kOperations[i];
  }
  die("unknown operation", name);
  return NULL;
}

/* all_to_all's call counts one block although both buffers hold the whole. */
static int counts_one_block(const Operation* operation) {
  return operation->send_is_block || operation->recv_is_block || operation->run == all_to_all;
}

/* ---- measuring ------------------------------------------------------------------------------ */

static double now_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

static float* allocate(size_t elements) {
  enum { kPage = 4096 };
  const size_t bytes = (elements * sizeof(float) + kPage - 1) / kPage * kPage;
  float* memory = aligned_alloc(kPage, bytes);
  if (memory == NULL) die("out of memory", "buffer");
  memset(memory, 0, bytes);
  return memory;
}

/* Where this rank's input begins: in place, its block of a gathered output. */
static float* input_of(const Operation* operation, const Buffers* b) {
  const int within = b->in_place && operation->send_is_block && is_among(operation->receivers);
  return within ? b->recv + (size_t)g_rank * (size_t)b->count : b->send;
}

/* Where its output begins: in place, the root's block of a scattered input stays where it is, but
 * MPI_Reduce_scatter_block's output is always at the buffer's begin. */
static float* output_of(const Operation* operation, const Buffers* b) {
  const int within = b->in_place && operation->senders == kRootOnly && g_rank == kRoot;
  return within && operation->recv_is_block ? b->send + (size_t)kRoot * (size_t)b->count : b->recv;
}

static unsigned long long wrong_elements(const Operation* operation, const Buffers* b,
                                         size_t send_elems, size_t recv_elems) {
  const size_t block = (size_t)b->count;
  for (size_t i = 0; i < recv_elems; ++i) b->recv[i] = -1;
  float* const sent = input_of(operation, b);
  const int sends = is_among(operation->senders);
  for (size_t i = 0; i < send_elems; ++i) {
    if (sends) sent[i] = input(g_rank, i);
  }
  operation->run(b);

  unsigned long long wrong = 0;
  const float* const received = output_of(operation, b);
  const int receives = is_among(operation->receivers);
  for (size_t i = 0; receives && i < recv_elems; ++i) {
    wrong += received[i] != operation->expected(i, block);
  }
  unsigned long long total = 0;
  MPI_Allreduce(&wrong, &total, 1, MPI_UNSIGNED_LONG_LONG, MPI_SUM, MPI_COMM_WORLD);
  return total;
}

/* Mean microseconds of one run. */
static double time_loop(const Operation* operation, Buffers* buffers, int iterations,
                        int blocking) {
  MPI_Barrier(MPI_COMM_WORLD);
  const double start_us = now_us();
  for (int i = 0; i < iterations; ++i) {
    operation->run(buffers);
    advance(buffers);
    if (blocking) MPI_Barrier(MPI_COMM_WORLD);
  }
  return (now_us() - start_us) / iterations;
}

/* Runs batches, each twice the one before, until `warmup` runs or the time are spent. Returns the
 * mean of the last batch. Rank 0's clock decides, for all alike. */
static double warm_up(const Operation* operation, Buffers* buffers, int warmup, int blocking,
                      double limit_us) {
  const double start_us = now_us();
  double one_us = 0;
  int done = 0;
  for (int batch = 1; done < warmup; batch *= 2) {
    one_us = time_loop(operation, buffers, batch, blocking);
    done += batch;
    if (now_us() - start_us > limit_us) done = warmup;
    MPI_Bcast(&done, 1, MPI_INT, 0, MPI_COMM_WORLD);
  }
  return one_us;
}

/* How many of `wanted` runs of `one_us` fit; at least 2. Rank 0 decides. */
static int that_fit(int wanted, double one_us, double limit_us) {
  int fit = wanted;
  if (one_us * wanted > limit_us) fit = (int)(limit_us / one_us);
  if (fit < 2) fit = 2;
  MPI_Bcast(&fit, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return fit < wanted ? fit : wanted;
}

static void measure(const Operation* operation, size_t size, int warmup, int iterations,
                    int blocking, double limit_us, size_t region, int in_place) {
  enum { kLineElems = 64 / sizeof(float) };
  const size_t whole = size / sizeof(float);
  const size_t block = whole / (size_t)g_ranks;
  const size_t send_elems = operation->send_is_block ? block : whole;
  const size_t recv_elems = operation->recv_is_block ? block : whole;
  const size_t stride = (whole + kLineElems - 1) / kLineElems * kLineElems;
  const size_t fit = region / sizeof(float) / stride;
  const size_t places = fit > 1 ? fit : 1;
  float* const sends = allocate(places * stride);
  float* const recvs = in_place ? sends : allocate(places * stride);
  const int count = (int)(counts_one_block(operation) ? block : whole);
  Buffers buffers = {sends, recvs, count, stride, places, 0, in_place};

  const double one_us = warm_up(operation, &buffers, warmup, blocking, limit_us / 4);
  iterations = that_fit(iterations, one_us, limit_us);
  const double mean_us = time_loop(operation, &buffers, iterations, blocking);

  double sum = 0;
  double smallest = 0;
  double largest = 0;
  MPI_Allreduce(&mean_us, &sum, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
  MPI_Allreduce(&mean_us, &smallest, 1, MPI_DOUBLE, MPI_MIN, MPI_COMM_WORLD);
  MPI_Allreduce(&mean_us, &largest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  const unsigned long long wrong = wrong_elements(operation, &buffers, send_elems, recv_elems);
  if (g_rank == 0) {
    printf(
        "{\"size\": %zu, \"iterations\": %d, \"avg_us\": %.4f, \"min_us\": %.4f, "
        "\"max_us\": %.4f, \"wrong\": %llu}\n",
        size, iterations, sum / g_ranks, smallest, largest, wrong);
    fflush(stdout);
  }
  free(sends);
  if (!in_place) free(recvs);
}

int main(int argc, char** argv) {
  if (argc < 8) {
    die("usage",
        "mpi_bench OPERATION CPUS BLOCKING LIMIT_S REGION IN_PLACE SIZE:WARMUP:ITERATIONS...");
  }
  const Operation* operation = find_operation(argv[1]);
  bind_to_cpu(argv[2]);
  const int blocking = atoi(argv[3]);
  const double limit_us = atof(argv[4]) * 1e6;
  const size_t region = strtoull(argv[5], NULL, 10);
  const int in_place = atoi(argv[6]);
  if (in_place && !operation->has_in_place) die("no in-place form is compared", argv[1]);

  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &g_rank);
  MPI_Comm_size(MPI_COMM_WORLD, &g_ranks);
  if (g_rank == 0) {
    char version[MPI_MAX_LIBRARY_VERSION_STRING];
    int length = 0;
    MPI_Get_library_version(version, &length);
    version[strcspn(version, ",\n")] = '\0';
    for (char* c = version; *c != '\0'; ++c) {
      if (*c == '\t' || *c == '"' || *c == '\\') *c = ' ';
    }
    printf("{\"library\": \"%s\"}\n", version);
  }
  for (int i = 7; i < argc; ++i) {
    size_t size = 0;
    int warmup = 0;
    int iterations = 0;
    if (sscanf(argv[i], "%zu:%d:%d", &size, &warmup, &iterations) != 3 || iterations < 1) {
      die("not SIZE:WARMUP:ITERATIONS", argv[i]);
    }
    measure(operation, size, warmup, iterations, blocking, limit_us, region, in_place);
  }
  MPI_Finalize();
  return 0;
}
