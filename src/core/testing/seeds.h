// Which random programs a test runs.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <optional>

namespace ropewalk::testing {

struct Seeds {
  unsigned first = 0;
  unsigned end = 0;  ///< one behind the last
};

/// RW_TEST_SEEDS in the environment, FIRST-LAST: tests of random programs run these, all of them,
/// instead of as many as they have time for. Nothing where it is not set; what cannot be read ends
/// the test.
inline std::optional<Seeds> chosen_seeds() {
  const char* const given = std::getenv("RW_TEST_SEEDS");
  if (given == nullptr) return {};
  unsigned first = 0;
  unsigned last = 0;
  char rest = 0;
  if (std::sscanf(given, "%u-%u%c", &first, &last, &rest) != 2 || last < first) {
    std::fprintf(stderr, "RW_TEST_SEEDS=%s: is not FIRST-LAST\n", given);
    std::abort();
  }
  return Seeds{first, last + 1};
}

}  // namespace ropewalk::testing
