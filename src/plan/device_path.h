// Paths between devices of one host: the cheapest path, its class, and its price as a NIC choice
// weighs it.
#pragma once

#include <optional>
#include <vector>

#include "topology/distance.h"
#include "topology/topology.h"

namespace ropewalk::plan {

/// A path from one device to another of the same host.
struct DevicePath {
  /// One for a PCIe (or chip-to-chip) link, 10 more for a CPU on the path, 100 for a link between
  /// sockets. So any path through PCIe switches is nearer than one through a CPU, and that nearer
  /// than one to another socket: PIX < PXB < PHB < SYS.
  int distance = 0;
  topology::PathClass path_class = topology::PathClass::kSelf;
  std::vector<int> links;  ///< indices into Topology::links, in the order of travel
};

/// The nearest path over PCIe and between sockets; among equals the one with the wider narrowest
/// link. GPUs and NICs on the path do not forward. Nothing when there is none.
std::optional<DevicePath> nearest_over_pcie(const topology::Topology& topology,
                                            topology::NodeIndex from, topology::NodeIndex to);

/// GPU to GPU: the widest direct NVLink or xGMI link, else through one NVSwitch. Nothing where
/// these do not join the two.
std::optional<DevicePath> nearest_over_fabric(const topology::Topology& topology,
                                              topology::NodeIndex from, topology::NodeIndex to);

/// GPU to GPU: nearest_over_fabric(), else nearest_over_pcie().
std::optional<DevicePath> nearest_between_gpus(const topology::Topology& topology,
                                               topology::NodeIndex from, topology::NodeIndex to);

}  // namespace ropewalk::plan
