/* How long ranks take to join a communicator, and what an idle communicator costs.
 *
 *   join threads|processes|all RANKS     RANKS ranks as threads, as processes, or by rwCommInitAll
 *   join machine RANKS                   processes that join, and then all ask for their machine
 *   join memory COMMUNICATORS            two processes with that many communicators of 2 ranks
 *
 * Prints one JSON object. Exit status 1 when a call fails, with its text on standard error.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <ropewalk/topology.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { kMostRanks = 4096, kMostCommunicators = 1024, kGiveUpSeconds = 120 };

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static void require(rwResult_t result, const char* call) {
  if (result == rwSuccess) return;
  fprintf(stderr, "join: %s: %s: %s\n", call, rwGetErrorString(result), rwGetLastError(NULL));
  _exit(1);
}

static void require_system(int ok, const char* call) {
  if (ok) return;
  perror(call);
  _exit(1);
}

/* ---- what ranks share ----------------------------------------------------------------------- */

typedef struct Rank {
  double joined_s; /* when rwCommInitRank returned */
  double knows_s;  /* mode "machine": when rwCommTopology returned */
  double left_s;   /* when rwCommDestroy returned */
} Rank;

/* Memory and descriptors of one process. */
typedef struct Usage {
  long long anonymous_bytes;
  long long pss_bytes;
  long long shmem_bytes; /* of the whole machine, also memory that is allocated but not mapped */
  long long threads;
  long long files;
} Usage;

enum Moment { kBase, kIdle, kUsed, kMoments };

typedef struct Shared {
  pthread_barrier_t barrier;
  int ranks;
  rwUniqueId ids[kMostCommunicators + 1];
  double start_s;
  double ask_s;
  double leave_s;
  Rank rank[kMostRanks];
  Usage usage[2][kMoments];
} Shared;

static Shared* make_shared(int ranks) {
  Shared* shared =
      mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  require_system(shared != MAP_FAILED, "mmap");
  pthread_barrierattr_t attributes;
  pthread_barrierattr_init(&attributes);
  pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
  require_system(pthread_barrier_init(&shared->barrier, &attributes, (unsigned)ranks) == 0,
                 "pthread_barrier_init");
  shared->ranks = ranks;
  return shared;
}

/* Forks `ranks` children that run `body` and waits for them. One that fails ends the others, which
 * would wait for it at a barrier. */
static int run_processes(Shared* shared, void (*body)(Shared*, int)) {
  pid_t* children = calloc((size_t)shared->ranks, sizeof *children);
  require_system(children != NULL, "calloc");
  for (int rank = 0; rank < shared->ranks; ++rank) {
    children[rank] = fork();
    require_system(children[rank] >= 0, "fork");
    if (children[rank] == 0) {
      alarm(kGiveUpSeconds);
      body(shared, rank);
      _exit(0);
    }
  }
  int failed = 0;
  for (int left = shared->ranks; left > 0; --left) {
    int status = 0;
    const pid_t child = wait(&status);
    for (int rank = 0; rank < shared->ranks; ++rank) {
      if (children[rank] == child) children[rank] = 0;
    }
    if (status == 0 || failed) continue;
    failed = 1;
    for (int rank = 0; rank < shared->ranks; ++rank) {
      if (children[rank] > 0) kill(children[rank], SIGKILL);
    }
  }
  free(children);
  return failed;
}

/* ---- joining -------------------------------------------------------------------------------- */

static int g_asks; /* for the machine */

static void ask_for_machine(Shared* shared, int rank, rwComm_t comm) {
  pthread_barrier_wait(&shared->barrier);
  if (rank == 0) shared->ask_s = now_s();
  pthread_barrier_wait(&shared->barrier);
  rwTopology_t topology = NULL;
  require(rwCommTopology(comm, &topology), "rwCommTopology");
  shared->rank[rank].knows_s = now_s();
  rwTopologyFree(topology);
}

static void join_and_leave(Shared* shared, int rank) {
  pthread_barrier_wait(&shared->barrier); /* all have started; starting is not measured */
  if (rank == 0) {
    shared->start_s = now_s();
    require(rwGetUniqueId(&shared->ids[0]), "rwGetUniqueId");
  }
  pthread_barrier_wait(&shared->barrier);
  rwComm_t comm = NULL;
  require(rwCommInitRank(&comm, shared->ranks, shared->ids[0], rank), "rwCommInitRank");
  shared->rank[rank].joined_s = now_s();
  if (g_asks) ask_for_machine(shared, rank, comm);
  pthread_barrier_wait(&shared->barrier);
  if (rank == 0) shared->leave_s = now_s();
  pthread_barrier_wait(&shared->barrier);
  require(rwCommDestroy(comm), "rwCommDestroy");
  shared->rank[rank].left_s = now_s();
}

typedef struct ThreadArgument {
  Shared* shared;
  int rank;
} ThreadArgument;

static void* thread_rank(void* argument) {
  const ThreadArgument* a = argument;
  join_and_leave(a->shared, a->rank);
  return NULL;
}

static void run_threads(Shared* shared) {
  static pthread_t threads[kMostRanks];
  static ThreadArgument arguments[kMostRanks];
  alarm(kGiveUpSeconds);
  for (int rank = 0; rank < shared->ranks; ++rank) {
    arguments[rank] = (ThreadArgument){shared, rank};
    require_system(pthread_create(&threads[rank], NULL, thread_rank, &arguments[rank]) == 0,
                   "pthread_create");
  }
  for (int rank = 0; rank < shared->ranks; ++rank) pthread_join(threads[rank], NULL);
}

static void print_join(const char* mode, int ranks, double joined_s, double left_s) {
  printf("{\"mode\": \"%s\", \"ranks\": %d, \"join_s\": %.4f, \"leave_s\": %.4f", mode, ranks,
         joined_s, left_s);
}

static void report_join(const Shared* shared, const char* mode) {
  double joined_s = 0;
  double left_s = 0;
  for (int rank = 0; rank < shared->ranks; ++rank) {
    const Rank* r = &shared->rank[rank];
    if (r->joined_s - shared->start_s > joined_s) joined_s = r->joined_s - shared->start_s;
    if (r->left_s - shared->leave_s > left_s) left_s = r->left_s - shared->leave_s;
  }
  print_join(mode, shared->ranks, joined_s, left_s);
  double knows_s = 0;
  for (int rank = 0; rank < shared->ranks && g_asks; ++rank) {
    const double took = shared->rank[rank].knows_s - shared->ask_s;
    if (took > knows_s) knows_s = took;
  }
  if (g_asks) printf(", \"machine_s\": %.4f", knows_s);
  printf("}\n");
}

static void init_all(int ranks) {
  static rwComm_t comms[kMostRanks];
  alarm(kGiveUpSeconds);
  const double start_s = now_s();
  require(rwCommInitAll(comms, ranks), "rwCommInitAll");
  const double joined_s = now_s() - start_s;
  const double leave_s = now_s();
  for (int rank = 0; rank < ranks; ++rank) require(rwCommDestroy(comms[rank]), "rwCommDestroy");
  print_join("all", ranks, joined_s, now_s() - leave_s);
  printf("}\n");
}

/* ---- memory --------------------------------------------------------------------------------- */

static int g_communicators;

/* The number after `key` in a file of "Key:  123 kB" lines. */
static long long number_in(const char* path, const char* key) {
  FILE* file = fopen(path, "r");
  require_system(file != NULL, path);
  char line[256];
  long long number = 0;
  while (fgets(line, sizeof line, file) != NULL) {
    if (strncmp(line, key, strlen(key)) == 0) {
      number = strtoll(line + strlen(key), NULL, 10);
      break;
    }
  }
  fclose(file);
  return number;
}

static long long open_files(void) {
  DIR* folder = opendir("/proc/self/fd");
  require_system(folder != NULL, "/proc/self/fd");
  long long count = 0;
  while (readdir(folder) != NULL) ++count;
  closedir(folder);
  return count;
}

/* Both ranks are between two barriers, so that neither runs while the other measures. */
static void take_usage(Shared* shared, int rank, enum Moment moment) {
  pthread_barrier_wait(&shared->barrier);
  shared->usage[rank][moment] = (Usage){
      .anonymous_bytes = number_in("/proc/self/smaps_rollup", "Anonymous:") * 1024,
      .pss_bytes = number_in("/proc/self/smaps_rollup", "Pss:") * 1024,
      .shmem_bytes = number_in("/proc/meminfo", "Shmem:") * 1024,
      .threads = number_in("/proc/self/status", "Threads:"),
      .files = open_files(),
  };
  pthread_barrier_wait(&shared->barrier);
}

static void hold_communicators(Shared* shared, int rank) {
  static rwComm_t comms[kMostCommunicators + 1];
  const int count = g_communicators + 1; /* the first one pays for resources that a process needs
                                          * once */
  for (int i = 0; i < count; ++i) {
    if (rank == 0) require(rwGetUniqueId(&shared->ids[i]), "rwGetUniqueId");
    pthread_barrier_wait(&shared->barrier);
    require(rwCommInitRank(&comms[i], 2, shared->ids[i], rank), "rwCommInitRank");
    if (i == 0) {
      float value = 1;
      require(rwAllReduce(&value, &value, 1, rwFloat32, rwSum, comms[0], NULL, NULL),
              "rwAllReduce");
      take_usage(shared, rank, kBase);
    }
  }
  take_usage(shared, rank, kIdle);
  /* Small and large, so that everything allocated at the first use is allocated now. */
  const size_t large = 1 << 20;
  float* memory = calloc(large, sizeof *memory);
  require_system(memory != NULL, "calloc");
  for (int i = 1; i < count; ++i) {
    require(rwAllReduce(memory, memory, 1, rwFloat32, rwSum, comms[i], NULL, NULL), "rwAllReduce");
    require(rwAllReduce(memory, memory, large, rwFloat32, rwSum, comms[i], NULL, NULL),
            "rwAllReduce");
  }
  free(memory);
  take_usage(shared, rank, kUsed);
  for (int i = 0; i < count; ++i) require(rwCommDestroy(comms[i]), "rwCommDestroy");
}

/* Of both ranks together, per communicator, since the base. */
static void print_growth(const Shared* shared, const char* name, enum Moment moment) {
  double anonymous = 0;
  double pss = 0;
  double threads = 0;
  double files = 0;
  for (int rank = 0; rank < 2; ++rank) {
    const Usage* base = &shared->usage[rank][kBase];
    const Usage* then = &shared->usage[rank][moment];
    anonymous += (double)(then->anonymous_bytes - base->anonymous_bytes);
    pss += (double)(then->pss_bytes - base->pss_bytes);
    threads += (double)(then->threads - base->threads);
    files += (double)(then->files - base->files);
  }
  const double shmem =
      (double)(shared->usage[0][moment].shmem_bytes - shared->usage[0][kBase].shmem_bytes);
  const double n = g_communicators;
  printf(
      ", \"%s\": {\"anonymous_bytes\": %.0f, \"shmem_bytes\": %.0f, \"pss_bytes\": %.0f, "
      "\"threads\": %.2f, \"files\": %.2f}",
      name, anonymous / n, shmem / n, pss / n, threads / n, files / n);
}

/* ---- */

int main(int argc, char** argv) {
  const char* mode = argc == 3 ? argv[1] : "";
  const int count = argc == 3 ? atoi(argv[2]) : 0;
  if (strcmp(mode, "memory") == 0 && count >= 1 && count <= kMostCommunicators) {
    g_communicators = count;
    Shared* shared = make_shared(2);
    if (run_processes(shared, hold_communicators) != 0) return 1;
    printf("{\"mode\": \"memory\", \"communicators\": %d", count);
    print_growth(shared, "idle", kIdle);
    print_growth(shared, "used", kUsed);
    printf("}\n");
    return 0;
  }
  if (count < 1 || count > kMostRanks) mode = "";
  if (strcmp(mode, "all") == 0) {
    init_all(count);
  } else if (strcmp(mode, "threads") == 0) {
    Shared* shared = make_shared(count);
    run_threads(shared);
    report_join(shared, mode);
  } else if (strcmp(mode, "processes") == 0 || strcmp(mode, "machine") == 0) {
    g_asks = strcmp(mode, "machine") == 0;
    Shared* shared = make_shared(count);
    if (run_processes(shared, join_and_leave) != 0) return 1;
    report_join(shared, mode);
  } else {
    fprintf(stderr, "usage: join threads|processes|all|machine RANKS | memory COMMUNICATORS\n");
    return 2;
  }
  return 0;
}
