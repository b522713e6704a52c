/* Measures the machine's limits, which no library can exceed.
 *
 *   limits CPU_A CPU_B SIZE...
 *
 * Prints one JSON object:
 *   line_one_way_ns  a cache line written by one CPU is seen by the other (half a round trip)
 *   line_stream_ns   per line, when one CPU writes many lines ahead and the other reads them all
 *   switch_ns        one process yields the CPU to another one bound to it
 *   single_copy      whether the kernel lets a process read another's memory (process_vm_readv),
 *                    which the peers use for large messages through shared memory
 *   copy             [{size, gb_per_s}]: bytes copied per second by one core, buffers reused
 *   read             [{size, gb_per_s}]: bytes summed up per second by one core
 * Each is the best of several repetitions: noise only ever slows a machine down. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

enum { kLine = 64, kRepetitions = 15 };

static double now_ns(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static void bind_to(int cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET((size_t)cpu, &set);
  if (sched_setaffinity(0, sizeof set, &set) != 0) {
    perror("limits: cannot bind to the CPU");
    exit(2);
  }
}

static void relax(void) {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

static void* shared_memory(size_t bytes) {
  void* memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) {
    perror("limits: mmap");
    exit(2);
  }
  return memory;
}

/* ---- a shared cache line -------------------------------------------------------------------- */

typedef struct Line {
  _Alignas(kLine) _Atomic uint64_t value;
} Line;

enum { kPings = 20000, kStreamLines = 256, kStreamed = 200000 };

typedef struct Pair {
  Line ping;
  Line pong;
  Line consumed;
  Line stream[kStreamLines];
  int cpu;
} Pair;

static void wait_for(const Line* line, uint64_t value) {
  while (atomic_load_explicit(&line->value, memory_order_acquire) != value) relax();
}

static void* echo(void* argument) {
  Pair* pair = argument;
  bind_to(pair->cpu);
  for (uint64_t i = 1; i <= (uint64_t)kPings * kRepetitions; ++i) {
    wait_for(&pair->ping, i);
    atomic_store_explicit(&pair->pong.value, i, memory_order_release);
  }
  for (uint64_t i = 1; i <= (uint64_t)kStreamed * kRepetitions; ++i) {
    wait_for(&pair->stream[i % kStreamLines], i);
    /* Acknowledges a quarter of the ring at a time, so that acknowledgements do not slow the
     * stream. */
    if (i % (kStreamLines / 4) == 0) {
      atomic_store_explicit(&pair->consumed.value, i, memory_order_release);
    }
  }
  return NULL;
}

static void measure_lines(int cpu_a, int cpu_b, double* one_way_ns, double* stream_ns) {
  Pair* pair = shared_memory(sizeof *pair);
  pair->cpu = cpu_b;
  bind_to(cpu_a);
  pthread_t thread;
  if (pthread_create(&thread, NULL, echo, pair) != 0) {
    perror("limits: pthread_create");
    exit(2);
  }
  *one_way_ns = 1e30;
  uint64_t sequence = 0;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const double start = now_ns();
    for (int i = 0; i < kPings; ++i) {
      ++sequence;
      atomic_store_explicit(&pair->ping.value, sequence, memory_order_release);
      wait_for(&pair->pong, sequence);
    }
    const double one_way = (now_ns() - start) / kPings / 2;
    if (one_way < *one_way_ns) *one_way_ns = one_way;
  }
  *stream_ns = 1e30;
  sequence = 0;
  uint64_t consumed = 0;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const double start = now_ns();
    for (int i = 0; i < kStreamed; ++i) {
      ++sequence;
      while (sequence - consumed > kStreamLines) {
        consumed = atomic_load_explicit(&pair->consumed.value, memory_order_acquire);
      }
      atomic_store_explicit(&pair->stream[sequence % kStreamLines].value, sequence,
                            memory_order_release);
    }
    const double each = (now_ns() - start) / kStreamed;
    if (each < *stream_ns) *stream_ns = each;
  }
  pthread_join(thread, NULL);
  munmap(pair, sizeof *pair);
}

/* ---- processes that share a core ------------------------------------------------------------ */

/* Two processes pass a turn to and fro, each yielding until it has it. */
static double measure_switch(int cpu) {
  enum { kTurns = 4000 };
  _Atomic int* turn = shared_memory(sizeof *turn);
  bind_to(cpu);
  const pid_t child = fork();
  if (child < 0) {
    perror("limits: fork");
    exit(2);
  }
  for (int i = 0; child == 0 && i < kTurns * kRepetitions; ++i) {
    while (atomic_load(turn) != 1) sched_yield();
    atomic_store(turn, 0);
  }
  if (child == 0) _exit(0);
  double best_ns = 1e30;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const double start = now_ns();
    for (int i = 0; i < kTurns; ++i) {
      atomic_store(turn, 1);
      while (atomic_load(turn) != 0) sched_yield();
    }
    const double each = (now_ns() - start) / kTurns / 2;
    if (each < best_ns) best_ns = each;
  }
  waitpid(child, NULL, 0);
  munmap(turn, sizeof *turn);
  return best_ns;
}

/* A sibling's memory, not a child's: security modules often allow only descendants. */
static int single_copy_works(void) {
  char* target = shared_memory(1);
  pid_t children[2];
  for (int i = 0; i < 2; ++i) {
    children[i] = fork();
    if (children[i] < 0) {
      perror("limits: fork");
      exit(2);
    }
    if (children[i] == 0 && i == 0) {
      pause();
      _exit(0);
    }
    if (children[i] == 0) {
      char byte = 0;
      struct iovec local = {&byte, 1};
      struct iovec remote = {target, 1};
      _exit(process_vm_readv(children[0], &local, 1, &remote, 1, 0) == 1 ? 0 : 1);
    }
  }
  int status = 1;
  waitpid(children[1], &status, 0);
  kill(children[0], SIGKILL);
  waitpid(children[0], NULL, 0);
  munmap(target, 1);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- memory --------------------------------------------------------------------------------- */

typedef void (*Copy)(char* to, const char* from, size_t bytes);

static void copy_by_memcpy(char* to, const char* from, size_t bytes) { memcpy(to, from, bytes); }

#if defined(__x86_64__)
/* Non-temporal stores: fastest if the copy does not fit into the caches. `bytes` is a multiple of a
 * line. */
__attribute__((target("avx512f"))) static void copy_by_streaming(char* to, const char* from,
                                                                 size_t bytes) {
  for (size_t i = 0; i < bytes; i += kLine) {
    _mm512_stream_si512((void*)(to + i), _mm512_loadu_si512(from + i));
  }
  _mm_sfence();
}
static void copy_by_streaming_sse2(char* to, const char* from, size_t bytes) {
  for (size_t i = 0; i < bytes; i += 16) {
    _mm_stream_si128((__m128i*)(void*)(to + i),
                     _mm_loadu_si128((const __m128i*)(const void*)(from + i)));
  }
  _mm_sfence();
}
#endif

static volatile uint64_t g_sink;

/* Eight sums: one would wait for its own additions and not for memory. */
static void read_all(char* unused, const char* from, size_t bytes) {
  (void)unused;
  typedef uint64_t Lanes __attribute__((vector_size(kLine)));
  Lanes sums[8] = {{0}};
  size_t i = 0;
  for (; i + 8 * sizeof(Lanes) <= bytes; i += 8 * sizeof(Lanes)) {
    const Lanes* lanes = (const Lanes*)(const void*)(from + i);
    for (int j = 0; j < 8; ++j) sums[j] += lanes[j];
  }
  for (; i + sizeof(Lanes) <= bytes; i += sizeof(Lanes)) {
    sums[0] += *(const Lanes*)(const void*)(from + i);
  }
  for (int j = 1; j < 8; ++j) sums[0] += sums[j];
  g_sink = sums[0][0] + sums[0][1] + sums[0][2] + sums[0][3] + sums[0][4] + sums[0][5] +
           sums[0][6] + sums[0][7];
}

static double gb_per_s(Copy copy, char* to, const char* from, size_t bytes) {
  const size_t loops = bytes >= (32u << 20) ? 1 : (32u << 20) / bytes;
  double best_ns = 1e30;
  for (int repetition = 0; repetition < kRepetitions; ++repetition) {
    const double start = now_ns();
    for (size_t i = 0; i < loops; ++i) {
      copy(to, from, bytes);
      __asm__ volatile("" ::: "memory");
    }
    const double each = (now_ns() - start) / (double)loops;
    if (each < best_ns) best_ns = each;
  }
  return (double)bytes / best_ns;
}

static void measure_memory(int count, char** sizes) {
  for (int what = 0; what < 2; ++what) {
    printf(", \"%s\": [", what == 0 ? "copy" : "read");
    for (int i = 0; i < count; ++i) {
      const size_t bytes = strtoull(sizes[i], NULL, 10);
      if (bytes == 0 || bytes % kLine != 0) {
        fprintf(stderr, "limits: not a multiple of %d bytes: %s\n", kLine, sizes[i]);
        exit(2);
      }
      char* from = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
      char* to = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
      if (from == NULL || to == NULL) {
        fprintf(stderr, "limits: out of memory for two buffers of %zu bytes\n", bytes);
        exit(2);
      }
      memset(from, 1, bytes);
      memset(to, 2, bytes);
      double best = gb_per_s(what == 0 ? copy_by_memcpy : read_all, to, from, bytes);
#if defined(__x86_64__)
      if (what == 0) {
        double streamed = gb_per_s(copy_by_streaming_sse2, to, from, bytes);
        if (streamed > best) best = streamed;
        if (__builtin_cpu_supports("avx512f")) {
          streamed = gb_per_s(copy_by_streaming, to, from, bytes);
          if (streamed > best) best = streamed;
        }
      }
#endif
      printf("%s{\"size\": %zu, \"gb_per_s\": %.3f}", i == 0 ? "" : ", ", bytes, best);
      free(from);
      free(to);
    }
    printf("]");
  }
}

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: limits CPU_A CPU_B SIZE...\n");
    return 2;
  }
  double one_way_ns = 0;
  double stream_ns = 0;
  measure_lines(atoi(argv[1]), atoi(argv[2]), &one_way_ns, &stream_ns);
  printf(
      "{\"line_one_way_ns\": %.2f, \"line_stream_ns\": %.2f, \"switch_ns\": %.1f, "
      "\"single_copy\": %s",
      one_way_ns, stream_ns, measure_switch(atoi(argv[1])), single_copy_works() ? "true" : "false");
  fflush(stdout);
  measure_memory(argc - 3, argv + 3);
  printf("}\n");
  return 0;
}
