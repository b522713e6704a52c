// What runs in a simulation: strands of steps that wait for chunks, send chunks along physical
// links, and repeat. Made from a plan or from a schedule.
#pragma once

#include <cstddef>
#include <vector>

#include "plan/plan.h"
#include "schedule/from_plan.h"
#include "schedule/schedule.h"
#include "topology/topology.h"

namespace ropewalk::schedule {

struct Traffic {
  /// A FIFO of `slots` chunks from one strand to another. It carries one chunk at a time, in order.
  struct Pipe {
    int source = 0;       ///< rank
    int destination = 0;  ///< rank
    double gbps = 0;      ///< no faster than this; 0: as fast as its links let it be
  };
  struct Send {
    int pipe = 0;
    int path = 0;  ///< index into paths
  };
  struct Step {
    std::vector<int> receive;  ///< pipes that must have a chunk
    std::vector<Send> send;    ///< pipes that must have a free slot
    double bytes = 0;          ///< of the chunk, per round
  };
  /// Does its steps in order, and that `rounds` times.
  struct Strand {
    int rank = 0;
    int rounds = 1;
    std::vector<Step> steps;
  };

  std::vector<Pipe> pipes;
  std::vector<std::vector<int>> paths;  ///< indices into Topology::links
  std::vector<Strand> strands;
  int slots = 2;
  double wished_messages = 0;  ///< what there would be without a limit on their number

  /// Chunks that will be moved.
  [[nodiscard]] double messages() const;
  /// Bytes.
  [[nodiscard]] double largest_chunk() const;
};

struct TrafficOptions {
  double bytes = 1e9;          ///< of the message, as algbw counts it (topology/plan words)
  double chunk_bytes = 0;      ///< 0: the best for each tree; for schedules 512 KiB
  double most_messages = 4e5;  ///< chunks are made larger until no more than these are moved
  bool paced = true;  ///< plans only: every tree keeps to its planned rate; else links are shared
                      ///< by whoever comes
};

/// Every tree on its own, its edges pipelined: the copies of one edge follow each other, those of
/// different edges and trees do not wait for each other (as with one stream per tree and link). An
/// all-reduce's broadcast starts with each chunk's sum.
Traffic traffic_of(const topology::Topology& topology, const plan::Plan& plan,
                   const TrafficOptions& options);

/// Every rank and channel as a strand, in the order of its step list, through FIFOs of two chunks.
/// Messages take the routes given; where there is none, default_route().
/// @throws Error kInvalidArgument when the topology has fewer GPUs than the schedule ranks, or no
///         path between two ranks that exchange data
Traffic traffic_of(const topology::Topology& topology, const Schedule& schedule,
                   const Routes& routes, const TrafficOptions& options);

/// The path between two ranks' GPUs that a library without a plan would take: within a host
/// NVLink or xGMI, else PCIe; between hosts the path with fewest links, among equals the wider.
/// Other GPUs do not forward. @throws Error kInvalidArgument when there is no path
std::vector<int> default_route(const topology::Topology& topology, int from_rank, int to_rank);

}  // namespace ropewalk::schedule
