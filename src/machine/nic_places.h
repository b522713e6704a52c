// Where this rank's NICs are: which nodes of the machine they are, and how far from the rank.
#pragma once

#include <filesystem>
#include <span>
#include <string_view>
#include <vector>

#include "link/rails.h"
#include "link/route.h"
#include "machine/machine.h"
#include "transport/transport.h"
#include "tune/processors.h"

namespace ropewalk::machine {

/// On a machine that a person described: a device is the NIC of the rank's host that has its name
/// or its PCI address; where none has, and there are as many NICs as devices, they are the same in
/// order. Distances are those of plan/device_path.h, from the rank's GPU. Pure.
std::vector<link::NicPosition> place_nics(const Machine& machine, int rank,
                                          std::span<const transport::DeviceProperties> devices);

/// On one that was not: 0 of NICs at a NUMA node whose processors the rank may run on, and of those
/// that are at none; of the others the kernel's distance to the nearest node that has such, from 1
/// on. (The hosts' graphs are merged when ranks have joined, which is too late for links.)
/// @param sysfs  the system's "/sys"
std::vector<link::NicPosition> place_nics(const tune::Processors& usable,
                                          std::span<const transport::DeviceProperties> devices,
                                          const std::filesystem::path& sysfs = "/sys");

/// The same from a GPU's path of bridges: NICs behind the same switch, then those at the same CPU,
/// then those of another NUMA node, the nearest nodes first; among each the fewest bridges. 0 of
/// NICs that are at none, and of all where the GPU is not known.
/// @param gpu_address "0000:3b:00.0", in either case
std::vector<link::NicPosition> nic_positions_near_gpu(
    std::string_view gpu_address, std::span<const transport::DeviceProperties> devices,
    const std::filesystem::path& sysfs = "/sys");

/// The devices that a rank's links to other hosts take, those of the first rail first.
std::vector<int> nics_in_use(const link::Rails& rails, int rank, std::span<const int> host_of_rank);

/// As link::Links wants it. The machine's planned topology is kept.
link::NicsOfRoute nics_of_routes(const Machine& machine);

}  // namespace ropewalk::machine
