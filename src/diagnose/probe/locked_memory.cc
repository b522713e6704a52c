#include "diagnose/probe/locked_memory.h"

#include <fmt/format.h>
#include <sys/resource.h>

namespace ropewalk::diagnose::probe {
namespace {

// The least memory that one communicator with many connections registers.
constexpr rlim_t kLeastLocked = rlim_t{64} << 20;

}  // namespace

Check locked_memory(bool needed) {
  Check check{.what = "locked memory"};
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    check.found = "no limit";
    return check;
  }
  check.found = fmt::format("limit {} KiB", limit.rlim_cur >> 10);
  if (!needed) {
    check.found += "; this provider locks none";
  } else if (limit.rlim_cur < kLeastLocked) {
    check.outcome = Outcome::kFailed;
    check.cause =
        "adapters read and write locked memory only: ulimit -l unlimited, or memlock in "
        "/etc/security/limits.conf";
  }
  return check;
}

}  // namespace ropewalk::diagnose::probe
