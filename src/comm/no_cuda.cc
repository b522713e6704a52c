// What a build without CUDA has in place of src/comm/cuda.
#include "comm/device_group.h"
#include "comm/measure_site.h"
#include "comm/peer_matrix.h"
#include "comm/probe/probe.h"
#include "comm/stream_mark.h"

namespace ropewalk::comm {

std::string why_no_device() { return "this build of Ropewalk has no CUDA: nvcc was not found"; }

std::unique_ptr<DeviceGroup> attach_device(Bootstrap& /*bootstrap*/, const Config& /*config*/,
                                           Runtime& /*runtime*/, const GroupFacts& /*facts*/,
                                           int /*device*/) {
  throw Error(Errc::kInvalidUsage, why_no_device());
}

int device_count() { return 0; }

std::string describe_device(int /*device*/) { throw Error(Errc::kInvalidUsage, why_no_device()); }

std::unique_ptr<StreamMark> mark_stream(int /*device*/, DeviceStream /*stream*/) {
  throw Error(Errc::kInvalidUsage, why_no_device());
}

std::unique_ptr<MeasureSite> device_site(Communicator& /*comm*/) {
  throw Error(Errc::kInvalidUsage, why_no_device());
}

std::string measure_peers(std::size_t /*bytes*/, int /*repetitions*/) {
  throw Error(Errc::kInvalidUsage, why_no_device());
}

probe::Checks probe::gpu(int /*device*/) { throw Error(Errc::kInvalidUsage, why_no_device()); }

probe::Checks probe::gpu_pair(int /*first*/, int /*second*/) {
  throw Error(Errc::kInvalidUsage, why_no_device());
}

int current_device() { throw Error(Errc::kInvalidUsage, why_no_device()); }

}  // namespace ropewalk::comm
