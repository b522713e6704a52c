#include "capi/nccl/config.h"

#include "capi/nccl/structures.h"

namespace ropewalk::nccl {
namespace {

// As NCCL_CONFIG_INITIALIZER leaves it.
ncclConfig_t undefined_config() {
  ncclConfig_t config{};
  for (int* field : {&config.blocking,
                     &config.cgaClusterSize,
                     &config.minCTAs,
                     &config.maxCTAs,
                     &config.splitShare,
                     &config.trafficClass,
                     &config.collnetEnable,
                     &config.CTAPolicy,
                     &config.shrinkShare,
                     &config.nvlsCTAs,
                     &config.nChannelsPerNetPeer,
                     &config.nvlinkCentricSched,
                     &config.graphUsageMode,
                     &config.numRmaCtx,
                     &config.maxP2pPeers,
                     &config.graphStreamOrdering,
                     &config.launchOrderImplicit,
                     &config.numRmaSig,
                     &config.rmaEagerInit,
                     &config.hostCftMode,
                     &config.nvlsHostMode}) {
    *field = kNcclUndefInt;
  }
  return config;
}

// A structure's last bytes may be padding, where a later version has a field: what the caller's
// version did not know is undefined, whatever is there.
ncclConfig_t read_fields(const ncclConfig_t& given) {
  // The first configurations, of 2.14, ended after `blocking`.
  constexpr std::size_t kSmallest = offsetof(ncclConfig_t, blocking) + sizeof(int);
  ncclConfig_t config =
      copy_known(given, undefined_config(), kSmallest, "config", "NCCL_CONFIG_INITIALIZER");
  const ncclConfig_t undefined = undefined_config();
  if (config.version < 21700) {
    config.cgaClusterSize = undefined.cgaClusterSize;
    config.minCTAs = undefined.minCTAs;
    config.maxCTAs = undefined.maxCTAs;
  }
  if (config.version < 22700) config.shrinkShare = undefined.shrinkShare;
  return config;
}

}  // namespace

CommConfig read_config(const ncclConfig_t* config, const CommConfig& inherited) {
  if (config == nullptr) return inherited;
  const ncclConfig_t own = read_fields(*config);
  require_within(own.blocking, 0, 1, "config", "blocking");
  require_within(own.cgaClusterSize, 0, 8, "config", "cgaClusterSize");
  require_bounds(own.minCTAs, own.maxCTAs, "config");
  require_within(own.splitShare, 0, 1, "config", "splitShare");
  require_within(own.shrinkShare, 0, 1, "config", "shrinkShare");
  require_within(own.numRmaCtx, 1, SignalCounts::kMost, "config", "numRmaCtx");
  require_within(own.numRmaSig, 1, SignalCounts::kMost, "config", "numRmaSig");
  require_within(own.rmaEagerInit, 0, 1, "config", "rmaEagerInit");
  CommConfig result = inherited;
  if (own.blocking != kNcclUndefInt) result.blocking = own.blocking == 1;
  if (own.minCTAs != kNcclUndefInt) result.blocks.least = own.minCTAs;
  if (own.maxCTAs != kNcclUndefInt) result.blocks.most = own.maxCTAs;
  if (own.cgaClusterSize != kNcclUndefInt) result.blocks.cluster = own.cgaClusterSize;
  if (own.CTAPolicy != kNcclUndefInt && (own.CTAPolicy & kNcclCtaPolicyZero) != 0) {
    result.blocks.copy_engines = comm::CopyEngineUse::kOn;
  }
  if (own.numRmaCtx != kNcclUndefInt) result.signals.contexts = own.numRmaCtx;
  if (own.numRmaSig != kNcclUndefInt) result.signals.indices = own.numRmaSig;
  if (own.rmaEagerInit != kNcclUndefInt) result.eager_signals = own.rmaEagerInit == 1;
  if (result.signals.contexts > SignalCounts::kMost / result.signals.indices) {
    throw Error(Errc::kInvalidArgument,
                "config: numRmaCtx is {} and numRmaSig {}: that is more than {} signals for a pair "
                "of ranks",
                result.signals.contexts, result.signals.indices, SignalCounts::kMost);
  }
  return result;
}

void check_config(const ncclCollConfig_t* config) {
  if (config == nullptr) return;
  ncclCollConfig_t defaults{};
  defaults.minCTAs = defaults.maxCTAs = defaults.cgaClusterSize = kNcclUndefInt;
  defaults.forceAlgSelection = 1;
  // 2.31, the first version, ended before the event.
  constexpr std::size_t kSmallest = offsetof(ncclCollConfig_t, launchCompletionEvent);
  const ncclCollConfig_t own =
      copy_known(*config, defaults, kSmallest, "config", "NCCL_COLLCONFIG_INITIALIZER");
  require_bounds(own.minCTAs, own.maxCTAs, "config");
  require_within(own.cgaClusterSize, 0, 8, "config", "cgaClusterSize");
  require_within(own.forceAlgSelection, 0, 1, "config", "forceAlgSelection");
  if (own.algSelection != nullptr && *own.algSelection != '\0' && own.forceAlgSelection != 0) {
    throw Error(Errc::kInvalidUsage,
                "config: algSelection is \"{}\", and Ropewalk has algorithms of its own, which its "
                "setting ALGORITHM names; with forceAlgSelection = 0 it chooses one",
                own.algSelection);
  }
  if (own.launchCompletionEvent != nullptr) {
    throw Error(Errc::kInvalidUsage,
                "config: launchCompletionEvent is given, which Ropewalk does not record");
  }
}

}  // namespace ropewalk::nccl
