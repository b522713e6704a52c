// What a build without CUDA has in place of src/comm/cuda.
#include "comm/device_group.h"

namespace ropewalk::comm {

std::string why_no_device() { return "this build of Ropewalk has no CUDA: nvcc was not found"; }

std::unique_ptr<DeviceGroup> attach_device(Bootstrap& /*bootstrap*/, const Config& /*config*/,
                                           Runtime& /*runtime*/, const GroupFacts& /*facts*/,
                                           int /*device*/) {
  throw Error(Errc::kInvalidUsage, why_no_device());
}

int current_device() { throw Error(Errc::kInvalidUsage, why_no_device()); }

}  // namespace ropewalk::comm
