// Which hops of a plan a driver takes.
//
// A program asks a driver for a copy between two GPUs, not for a path. With peer access the copy
// takes NVLink (xGMI) where that joins the two, else PCIe; without it, PCIe. So a tree can run in
// one of two classes: with peer access, or, over PCIe where NVLink is, without. Blink (arXiv
// 1910.04940) plans the two apart for that reason. GPUs do not forward; what leaves a host does so
// for another one.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/plan.h"
#include "topology/topology.h"

namespace ropewalk::plan {

/// How a tree's hops can be had.
enum class HopClass {
  kPeerAccess,    ///< each is what a driver takes between its two GPUs
  kNoPeerAccess,  ///< each is, once peer access between the GPUs of a host is off
  kNone,          ///< some hop is neither: no program can have the tree
};

/// Trees of one class.
struct HopClassShare {
  HopClass hop_class = HopClass::kPeerAccess;
  std::size_t trees = 0;
  Fraction rate;  ///< GB/s of the message
};

/// A link that joins GPUs: NVLink, xGMI.
bool joins_gpus(topology::LinkType type);

/// Whether a driver that is asked for a copy between the two GPUs takes this path, with peer
/// access.
bool driver_takes(const topology::Topology& topology, const Plan& plan, const TreeEdge& edge);

HopClass hop_class(const topology::Topology& topology, const Plan& plan, const Tree& tree);

/// The classes that the plan's trees have, in the order of HopClass.
std::vector<HopClassShare> hop_classes(const topology::Topology& topology, const Plan& plan);

}  // namespace ropewalk::plan
