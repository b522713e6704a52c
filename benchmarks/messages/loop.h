/* The loop that messages.c and mpi_messages.c time, and how they print it: one line for each size,
 * "BYTES LATENCY_S BYTES_PER_S WRONG", by rank 0 of two.
 *
 * Latency: half a round trip of a put of BYTES and a signal that the other one waits for. Rate: a
 * window of puts with one signal, acknowledged by a signal back. Medians of `rounds`; the first
 * quarter of the iterations of a round is not timed. */
#ifndef BENCHMARKS_MESSAGES_LOOP_H_
#define BENCHMARKS_MESSAGES_LOOP_H_

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kPutsOfAWindow = 16, kMostRounds = 101 };

static inline double now_s(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* To the CPU of this rank among those that the process may use. */
static inline void bind_rank(int rank) {
  cpu_set_t allowed;
  cpu_set_t one;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int wanted = rank % CPU_COUNT(&allowed);
  int seen = 0;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed) || seen++ != wanted) continue;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    (void)sched_setaffinity(0, sizeof one, &one);
    return;
  }
}

static inline int iterations_of(size_t bytes) {
  const size_t most = ((size_t)256 << 20) / (bytes + 4096);
  return most > 8000 ? 8000 : most < 8 ? 8 : (int)most;
}

static inline int compare_doubles(const void* a, const void* b) {
  const double left = *(const double*)a;
  const double right = *(const double*)b;
  return (left > right) - (left < right);
}

static inline double median(double* values, int count) {
  qsort(values, (size_t)count, sizeof *values, compare_doubles);
  return values[count / 2];
}

/* What a program gives: a put to the other rank with or without a signal, and a wait for one. */
typedef void (*PutFunction)(size_t bytes, int with_signal);
typedef void (*WaitFunction)(void);

static inline void round_trips(int rank, size_t bytes, int count, PutFunction put,
                               WaitFunction wait) {
  for (int i = 0; i < count; ++i) {
    if (rank == 0) put(bytes, 1);
    wait();
    if (rank == 1) put(bytes, 1);
  }
}

static inline void bursts(int rank, size_t bytes, int count, PutFunction put, WaitFunction wait) {
  for (int i = 0; i < count; ++i) {
    if (rank == 0) {
      for (int k = 0; k < kPutsOfAWindow; ++k) put(bytes, k == kPutsOfAWindow - 1);
      wait();
    } else {
      wait();
      put(0, 1);
    }
  }
}

/* `memory` is what the other rank puts to, whose source is filled with 1 + its rank. */
static inline void measure(int rank, size_t most_bytes, int rounds, const unsigned char* memory,
                           PutFunction put, WaitFunction wait) {
  double latency[kMostRounds];
  double rate[kMostRounds];
  if (rounds > kMostRounds) rounds = kMostRounds;
  for (size_t bytes = 8; bytes <= most_bytes; bytes *= 8) {
    const int count = iterations_of(bytes);
    const int few = count / kPutsOfAWindow < 4 ? 4 : count / kPutsOfAWindow;
    for (int round = 0; round < rounds; ++round) {
      round_trips(rank, bytes, count / 4, put, wait);
      double begin = now_s();
      round_trips(rank, bytes, count, put, wait);
      latency[round] = (now_s() - begin) / count / 2;
      bursts(rank, bytes, few / 4, put, wait);
      begin = now_s();
      bursts(rank, bytes, few, put, wait);
      rate[round] = (double)bytes * kPutsOfAWindow * few / (now_s() - begin);
    }
    size_t wrong = 0;
    for (size_t i = 0; i < bytes; ++i) wrong += memory[i] != 2 - rank;
    if (rank == 0) {
      printf("%zu %.9g %.9g %zu\n", bytes, median(latency, rounds), median(rate, rounds), wrong);
      fflush(stdout);
    }
  }
}

#endif
