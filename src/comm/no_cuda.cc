// Replaces src/comm/cuda in a build without CUDA.
#include "comm/device_group.h"
#include "comm/stream_mark.h"

namespace ropewalk::comm {

std::string why_no_device() { return "this build of Ropewalk has no CUDA: nvcc was not found"; }

std::unique_ptr<DeviceGroup> attach_device(bootstrap::Bootstrap& /*bootstrap*/,
                                           const Config& /*config*/, Runtime& /*runtime*/,
                                           const tune::GroupFacts& /*facts*/,
                                           const link::Rails& /*rails*/,
                                           executor::Traffic* /*traffic*/, int /*device*/,
                                           BlockBounds /*blocks*/) {
  throw Error(Errc::kInvalidUsage, why_no_device());
}

int device_count() { return 0; }

std::string describe_device(int /*device*/) { throw Error(Errc::kInvalidUsage, why_no_device()); }

std::string device_bus_id(int /*device*/) { throw Error(Errc::kInvalidUsage, why_no_device()); }

std::unique_ptr<StreamMark> mark_stream(int /*device*/, DeviceStream /*stream*/) {
  throw Error(Errc::kInvalidUsage, why_no_device());
}

int current_device() { throw Error(Errc::kInvalidUsage, why_no_device()); }

}  // namespace ropewalk::comm
