// The machine as it is found.
//
// One rank of each host finds its host's graph, or has it kept (topology/kept_host.h), for all of
// its host. Ranks of one host do so when the first of them needs it, through the memory that they
// share: joining waits for nothing. (Broadcasting it while joining made joining of 8 local ranks 8%
// to 15% longer.) Of several hosts the first ranks do it while joining and send it to rank 0, which
// sends all to every rank: later, those that do not need it would have to answer those that do.
//
// A rank makes the graphs into a Machine when it first needs it. That is pure, and every rank has
// the same bytes, which their digest shows: so all have the same.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "bootstrap/bootstrap.h"
#include "core/settings.h"
#include "link/host_segment.h"
#include "machine/host_graphs.h"
#include "machine/machine.h"
#include "machine/placement.h"
#include "machine/shared_text.h"
#include "topology/kept_host.h"

namespace ropewalk::machine {

class FoundHosts {
 public:
  /// Collective over all ranks. `seats` is the same on all; `segment` is that of this host's ranks.
  /// `config` and `kept` must outlive it.
  /// @throws Error kInternal, naming the rank, for bytes that are not those which rank 0 sent;
  ///         as Bootstrap's collectives
  FoundHosts(bootstrap::Bootstrap& bootstrap, const Config& config, topology::KeptHost& kept,
             Seats seats, std::shared_ptr<link::HostSegment> segment, Deadline deadline);

  /// The ranks at their cores; equal on all ranks. Local. Takes some milliseconds; at the first
  /// discovery since the host booted some hundreds.
  /// @param waiting called while another rank of the host finds it; may throw
  /// @throws Error as SharedText::get(), and as topology::merge() for more than a Topology may have
  [[nodiscard]] Machine machine(const std::function<void()>& waiting);

 private:
  void tell_all(bootstrap::Bootstrap& bootstrap, int hosts, Deadline deadline);

  const Config& config_;
  topology::KeptHost& kept_;
  Seats seats_;
  SharedText on_host_;
  std::string told_;  // of several hosts: graphs, as written
};

/// Where hosts are kept: the setting TOPOLOGY_CACHE, else below $XDG_CACHE_HOME or ~/.cache; empty
/// for nowhere.
std::filesystem::path topology_cache(const Config& config);

/// This host: from the file that the environment's NCCL_TOPO_FILE names, else from the cache or by
/// discovery. Never throws for a host that cannot be discovered: it is then described with little
/// detail, and the log says so.
struct ThisHost {
  topology::HostGraph graph;
  bool described = false;
};
ThisHost this_host(const Config& config, topology::KeptHost& kept);

}  // namespace ropewalk::machine
