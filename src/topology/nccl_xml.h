// NCCL's topology XML: what NCCL_TOPO_DUMP_FILE writes and NCCL_TOPO_FILE reads, and RCCL's variant
// of it (xgmi instead of nvlink).
//
// The form holds one host: system > cpu > pci (> pci ...) > gpu (> nvlink, c2c) or nic > net. What
// it says and Topology has no field for is kept in attributes (Node::attributes, Link::attributes),
// so that read, then write gives the same elements and attributes. Attributes of a node are those
// of its outermost element; those of elements inside have its name before them ("gpu.sm",
// "net.dev"). What readers of NCCL accept is in topology/nccl_form.h.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topology/topology.h"

namespace ropewalk::topology {

/// GPUs are numbered by their `rank` where all have one, else by `dev`. NVLinks get their model's
/// signalling rate as capacity and NCCL's planning figure as `effective`; PCIe links and those
/// between sockets NCCL's planning figure. No network is added: NICs of one host lead nowhere yet
/// (see replicate()). Elements that are not of the form are left out, with a note in `assumptions`.
///
/// @throws Error kInvalidArgument "ORIGIN: line 3: what is wrong": no XML, no `system`, a missing
/// or
///         malformed attribute that NCCL requires and cannot fill in, a bus id twice, elements
///         nested deeper than 32
Topology read_nccl_xml(std::string_view text, std::string_view origin);

struct NcclXml {
  std::string text;
  /// Values that were invented because the topology lacks them (bus ids, for example), and parts
  /// that the format cannot express (links between NVSwitches, the network).
  std::vector<std::string> notes;
};

/// One host as NCCL_TOPO_FILE takes it. Branches without GPU and NIC are left out.
///
/// @throws Error kInvalidArgument when there is no such host, it has neither GPU nor NIC, PCIe has
/// a
///         cycle, a value holds a character that the form cannot hold, or the file would exceed
///         the limits of NCCL's readers (255 elements, 31 children each, 16 attributes)
NcclXml write_nccl_xml(const Topology& topology, int host);

}  // namespace ropewalk::topology
