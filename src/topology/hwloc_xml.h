// hwloc's XML (version 2): what `lstopo --of xml` writes and hwloc's export function gives.
//
// Live discovery goes by the same reader, so that a recorded machine and the one at hand take one
// path. Source of the form: hwloc 2.9, hwloc2.dtd.
#pragma once

#include <string_view>

#include "topology/scan.h"
#include "topology/topology.h"

namespace ropewalk::topology {

/// NUMA nodes with their CPUs, PCI functions that are GPUs or NICs, the bridges above them.
///
/// hwloc tells the present rate of a PCIe link, which idle GPUs lower, and no rates of NICs.
///
/// @throws Error kInvalidArgument "ORIGIN: line 3: what is wrong": no XML, no version 2 topology,
///         malformed attributes, objects nested deeper than 128
Scan scan_hwloc_xml(std::string_view text, std::string_view origin);

/// The same as a machine.
Topology read_hwloc_xml(std::string_view text, std::string_view origin);

}  // namespace ropewalk::topology
