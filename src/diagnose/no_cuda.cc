// Replaces src/diagnose/cuda in builds without CUDA.
#include "comm/device_group.h"
#include "core/error.h"
#include "diagnose/measure_site.h"
#include "diagnose/peer_matrix.h"
#include "diagnose/probe/probe.h"

namespace ropewalk::diagnose {

std::unique_ptr<MeasureSite> device_site(comm::Communicator& /*comm*/) {
  throw Error(Errc::kInvalidUsage, comm::why_no_device());
}

std::string measure_peers(std::size_t /*bytes*/, int /*repetitions*/) {
  throw Error(Errc::kInvalidUsage, comm::why_no_device());
}

probe::Checks probe::gpu(int /*device*/) {
  throw Error(Errc::kInvalidUsage, comm::why_no_device());
}

probe::Checks probe::gpu_pair(int /*first*/, int /*second*/) {
  throw Error(Errc::kInvalidUsage, comm::why_no_device());
}

}  // namespace ropewalk::diagnose
