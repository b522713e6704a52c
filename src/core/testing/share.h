// How much of an expensive test is done.
#pragma once

#include <algorithm>
#include <cstdlib>

namespace ropewalk::testing {

/// RW_TEST_SHARE in the environment: tests of very many cases run every Nth of them only. 1,
/// all cases, where it is not set; CI sets it for the sanitizers, under which a case takes ten
/// times as long.
inline int share() {
  const char* given = std::getenv("RW_TEST_SHARE");
  return given == nullptr ? 1 : std::max(1, std::atoi(given));
}

/// Says of each case in turn whether it is done.
class Share {
 public:
  bool next() { return count_++ % every_ == 0; }

 private:
  const int every_ = share();
  int count_ = 0;
};

}  // namespace ropewalk::testing
