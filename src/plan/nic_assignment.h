// Which NIC serves which end of which channel.
//
// A ring over several hosts enters each host through a NIC at its first GPU and leaves through one
// at its last. Libraries have chosen these NICs greedily, or copied one ring's choice to all
// channels, so that NICs idled (RCCL multi-NIC paper: two of four). Three rules stand here:
//
//   balanced    the smallest possible largest load per unit of NIC speed, then the smallest sum of
//               distances GPU-NIC, then the fewest channels that change rails, by exact
//               assignment: for a load t a NIC of speed v takes floor(t v) ends in each direction;
//               the least t among the j/v that gives every end a port is searched, a min-cost
//               flow then finds the nearest ports (successive shortest paths; Ahuja, Magnanti,
//               Orlin, "Network Flows", 1993, ch. 9). Rails are then put right by exchanges that
//               cost no distance: a local search, so the third aim is not proven to be least
//   least-used  the published rewrite for RCCL 2.18: for channel after channel the NIC with the
//               lowest count to the entry, the next to the exit; distance and speed do not matter
//   first-ring  what that rewrite replaces: all channels do as the first one, whose ends take the
//               NICs nearest to them
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "topology/distance.h"
#include "topology/topology.h"

namespace ropewalk::plan {

/// A NIC of a host.
struct NicPort {
  topology::NodeIndex node = 0;
  double gbps = 0;  ///< GB/s in each direction: measured, else line rate, else its widest link away
                    ///< from the host
  int rail = 0;     ///< its index among the NICs of its host: rail r meets rail r of other hosts
};

/// Rates measured on NICs, by id; they replace nominal ones.
using MeasuredNics = std::map<std::string, double>;

/// The NICs of a host that a GPU of it can reach, in the order of nodes.
/// @throws Error kInvalidArgument for a NIC in `measured` that is not there, or a rate that is not
///         positive and finite; for a NIC without any rate
std::vector<NicPort> nic_ports(const topology::Topology& topology, int host,
                               const MeasuredNics& measured = {});

/// A channel's GPUs at its two ends on a host: data comes in at `first` and leaves at `last`.
struct ChannelEnds {
  topology::NodeIndex first = 0;
  topology::NodeIndex last = 0;
};

struct ChannelNics {
  std::size_t entry = 0;  ///< index into the ports
  std::size_t exit = 0;
  friend bool operator==(const ChannelNics&, const ChannelNics&) = default;
};

struct NicAssignment {
  std::vector<ChannelNics> channels;
  double largest_load = 0;  ///< channels on a NIC in one direction, per GB/s of its speed
  int distance = 0;         ///< sum over all ends (device_path.h has the measure)
  int rail_changes = 0;     ///< channels whose two ends are on different rails
  topology::PathClass worst_path = topology::PathClass::kSelf;  ///< of an end to its NIC
};

enum class NicRule { kBalanced, kLeastUsed, kFirstRing };
std::string_view name(NicRule rule) noexcept;  ///< "balanced", "least-used", "first-ring"

struct NicProblem {
  std::vector<ChannelEnds> channels;
  std::vector<NicPort> ports;
  bool one_rail = false;  ///< balanced only: both ends of a channel take the same NIC
};

/// With a single NIC, least-used gives it both ends (the published rule needs two).
/// @throws Error kInvalidArgument without ports or channels, and when an end's GPU reaches no NIC
NicAssignment assign_nics(const topology::Topology& topology, const NicProblem& problem,
                          NicRule rule);

/// The same figures for a choice that somebody else made.
/// @throws as assign_nics()
NicAssignment judge_nics(const topology::Topology& topology, const NicProblem& problem,
                         std::vector<ChannelNics> channels);

}  // namespace ropewalk::plan
