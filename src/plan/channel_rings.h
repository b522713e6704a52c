// Rings over several hosts with a NIC at either end of each host's part: what NCCL calls the
// channels of a ring graph. The same for every host, as in graph files.
#pragma once

#include <string>
#include <vector>

#include "plan/nccl_graph.h"
#include "plan/nic_assignment.h"
#include "plan/plan.h"
#include "topology/topology.h"

namespace ropewalk::plan {

/// A channel on one host: its GPUs by their index among the host's GPUs (by rank), and its NICs by
/// their index in `ports`.
struct HostChannel {
  std::vector<int> order;
  ChannelNics nics;
};

struct HostChannels {
  int host = 0;
  NicRule rule = NicRule::kBalanced;
  std::vector<topology::NodeIndex> gpus;  ///< of the host, by rank
  std::vector<NicPort> ports;             ///< of the host
  std::vector<HostChannel> channels;
  NicAssignment assignment;
  /// Channels 2i and 2i+1 are one ring and its mirror image, with entry and exit exchanged.
  bool mirrored = false;
};

struct ChannelRequest {
  int host = 0;
  NicRule rule = NicRule::kBalanced;
  MeasuredNics measured;
  int channels = 0;       ///< 0: as many as let every NIC have its share, at most 16
  bool one_rail = false;  ///< both ends of a channel on the same NIC (rails that never meet)
};

/// Chooses ends, orders and NICs.
///
/// The ends: for the balanced rule every NIC gets channels in proportion to its speed, each with
/// its first GPU near that NIC and its last near the NIC where it leaves; channels come in mirrored
/// pairs where the ends are on two NICs. The published rules take GPUs in the order of their
/// numbers, as a first ring would, in all channels. The order between the ends: of all orders (8
/// GPUs and fewer; else those that rotate the order of numbers) the one that adds least to the
/// busiest link, then has the nearest neighbours.
///
/// @throws Error kInvalidArgument when the host is not there, has no GPU, or no NIC that its GPUs
///         reach
HostChannels make_channels(const topology::Topology& topology, const ChannelRequest& request);

/// One channel as a ring over all hosts.
struct ChannelRing {
  std::vector<topology::NodeIndex> gpus;
  std::vector<std::vector<int>> hops;  ///< hops[i]: links from gpus[i] to the next one, around
};

/// The rings of all channels: hosts follow each other by number; with mirrored channels, hosts with
/// odd numbers exchange the two of a pair, as NCCL does, so that a NIC sends to the same NIC of the
/// next host.
///
/// @throws Error kInvalidArgument for fewer than two hosts, hosts that differ, and NICs of
///         different hosts without a path to each other
std::vector<ChannelRing> rings_of_channels(const topology::Topology& topology,
                                           const HostChannels& channels);

/// The plan of an all-gather over these rings on all hosts of the topology, every channel with the
/// same weight: as fast as the busiest link lets it be. NIC rates count as link rates where they
/// are lower. The plan's bound is left at its own rate: these rings are compared with each other.
///
/// @throws as rings_of_channels()
Plan plan_of_channels(const topology::Topology& topology, const HostChannels& channels);

/// The graph file of that host: a ring graph and a tree graph with the same channels (trees enter
/// and leave at their first GPU's NIC). Speeds are what the plan of one channel can carry.
/// Device numbers: a GPU's `gpu.dev` and a NIC's `net.dev` attribute where the topology came from
/// NCCL's XML, else their index on the host.
NcclGraphs graph_of_channels(const topology::Topology& topology, const HostChannels& channels,
                             double channel_gbps);

/// Channels as a graph file has them, for judging any file; rings (id 0) only.
/// @throws Error kInvalidArgument for devices that the host does not have, and without a ring graph
HostChannels channels_of_graph(const topology::Topology& topology, int host,
                               const NcclGraphs& graphs, const MeasuredNics& measured = {});

}  // namespace ropewalk::plan
