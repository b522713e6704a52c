/* What the test programs of libmp's API share: checks that name their line, and patterns. */
#ifndef TESTS_LIBMP_CASES_H_
#define TESTS_LIBMP_CASES_H_

#include <mp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPECT(condition)                                                                     \
  do {                                                                                        \
    if (!(condition)) {                                                                       \
      fprintf(stderr, "%s:%d: rank %d: %s (%s)\n", __FILE__, __LINE__, mp_rank(), #condition, \
              mp_last_error());                                                               \
      exit(EXIT_FAILURE);                                                                     \
    }                                                                                         \
  } while (0)
#define OK(call) EXPECT((call) == MP_SUCCESS)

/* The byte that `rank` sends at `at` of its message number `message`. */
static inline unsigned char pattern(int rank, int message, size_t at) {
  return (unsigned char)(31U * (unsigned)rank + 7U * (unsigned)message + at + at / 251U);
}

static inline void fill(unsigned char* data, size_t bytes, int rank, int message) {
  for (size_t k = 0; k < bytes; ++k) data[k] = pattern(rank, message, k);
}

static inline size_t wrong(const unsigned char* data, size_t bytes, int rank, int message) {
  size_t count = 0;
  for (size_t k = 0; k < bytes; ++k) count += data[k] != pattern(rank, message, k);
  return count;
}

/* The GPU of the variable TEST_GPU, for programs that need none but run with one, too. */
static inline int gpu_of_tests(void) {
  const char* const named = getenv("TEST_GPU");
  return named == NULL ? MP_HOST_ONLY : atoi(named);
}

#endif
