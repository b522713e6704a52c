// This host's Topology.
#pragma once

#include <filesystem>
#include <string>

#include "topology/topology.h"

namespace ropewalk::topology {

/// Where to look; the defaults are the host itself.
struct DiscoverOptions {
  std::string hwloc_library = "libhwloc.so.15";
  std::string nvml_library = "libnvidia-ml.so.1";
  std::filesystem::path root = "/";  ///< has sys/ and proc/
};

/// What can be seen of this host: by hwloc where its library is (sysfs alone where it is not),
/// sysfs for rates, NVML for GPUs. `assumptions` of the result says what could not be seen; that is
/// never an error. A host without a GPU is a Topology without a GPU.
Topology discover(const DiscoverOptions& options = {});

}  // namespace ropewalk::topology
