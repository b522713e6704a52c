#include "capi/nccl/config.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "core/error.h"

namespace ropewalk::nccl {
namespace {

void require(int value, int low, int high, const char* field) {
  if (value == kNcclUndefInt || (value >= low && value <= high)) return;
  throw Error(Errc::kInvalidArgument, "config: {} is {}, outside {} to {}", field, value, low,
              high);
}

}  // namespace

CommConfig read_config(const ncclConfig_t* config, const CommConfig& inherited) {
  if (config == nullptr) return inherited;
  if (config->magic != kNcclMagic) {
    throw Error(Errc::kInvalidArgument, "config: not made by NCCL_CONFIG_INITIALIZER");
  }
  // The first configurations, of 2.14, ended after `blocking`.
  constexpr std::size_t kSmallest = offsetof(ncclConfig_t, blocking) + sizeof(int);
  if (config->size < kSmallest) {
    throw Error(Errc::kInvalidArgument, "config: a size of {} bytes is too small", config->size);
  }
  ncclConfig_t own;
  for (int* field : {&own.blocking, &own.cgaClusterSize, &own.minCTAs, &own.maxCTAs,
                     &own.splitShare, &own.shrinkShare}) {
    *field = kNcclUndefInt;
  }
  std::memcpy(&own, config, std::min(config->size, sizeof own));
  constexpr int kMany = std::numeric_limits<int>::max();
  require(own.blocking, 0, 1, "blocking");
  require(own.cgaClusterSize, 0, 8, "cgaClusterSize");
  require(own.minCTAs, 1, kMany, "minCTAs");
  require(own.maxCTAs, 1, kMany, "maxCTAs");
  require(own.splitShare, 0, 1, "splitShare");
  require(own.shrinkShare, 0, 1, "shrinkShare");
  if (own.minCTAs != kNcclUndefInt && own.maxCTAs != kNcclUndefInt && own.minCTAs > own.maxCTAs) {
    throw Error(Errc::kInvalidArgument, "config: minCTAs is {}, more than maxCTAs, {}", own.minCTAs,
                own.maxCTAs);
  }
  CommConfig result = inherited;
  if (own.blocking != kNcclUndefInt) result.blocking = own.blocking == 1;
  return result;
}

}  // namespace ropewalk::nccl
