// Discovery by Linux's /sys and /proc: NUMA nodes, PCI functions, rates of links and NICs.
#pragma once

#include <filesystem>

#include "topology/scan.h"

namespace ropewalk::topology {

/// NUMA nodes, GPUs and NICs of this host, without hwloc's help. `root` has sys/ and proc/; "/" but
/// in tests. Missing or unreadable files are noted, never an error.
Scan scan_sysfs(const std::filesystem::path& root);

/// Adds to devices and bridges of `scan` what sysfs knows better than hwloc: the rate that a PCIe
/// link can have (idle GPUs lower it), PCI ids as NCCL's XML has them, rates and guids of NICs.
void add_sysfs(Scan& scan, const std::filesystem::path& root);

}  // namespace ropewalk::topology
