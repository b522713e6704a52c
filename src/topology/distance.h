// How far devices are from each other, in the classes of `nvidia-smi topo -m`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "topology/topology.h"

namespace ropewalk::topology {

/// Best first. Source of the classes: the legend of `nvidia-smi topo -m`; NCCL's path types agree
/// where both have one.
enum class PathClass {
  kSelf,    ///< X: itself
  kFabric,  ///< NV#, XG#: NVLink or xGMI, direct or through NVSwitches; # lanes
  kPix,     ///< at most one PCIe bridge
  kPxb,     ///< several PCIe bridges, no CPU
  kPhb,     ///< a PCIe host bridge, typically the CPU
  kNode,    ///< two host bridges of one NUMA node (known for discovered machines only, else PHB)
  kSys,     ///< between NUMA nodes
  kNet,     ///< another host
  kNone,    ///< no path, or through other GPUs only
};

/// "X", "NV" (without lanes), "PIX", ..., "NET", "-".
std::string_view name(PathClass path) noexcept;

struct Path {
  PathClass path = PathClass::kNone;
  int lanes = 0;                        ///< kFabric: of the narrower end
  LinkType fabric = LinkType::kNvlink;  ///< kFabric
  int hops = 0;                         ///< links on the path; 0 where none is known

  /// The matrix's cell: "X", "NV18", "XG4", "PIX", ..., "-".
  [[nodiscard]] std::string text() const;
  bool operator==(const Path&) const = default;
};

/// What keeps a description from taking all memory.
inline constexpr std::size_t kMaxPairs = std::size_t{1} << 24;
inline constexpr std::size_t kMaxMatrixDevices = 2048;

/// Distances of one machine. Computed when made; keeps no reference to the Topology.
///
/// Only NVLink and xGMI hops without another GPU between count as fabric, as in nvidia-smi: a GPU
/// that must relay does not make two GPUs near.
class Distances {
 public:
  /// @throws Error kInvalidArgument when the pairs of nodes of a host are more than kMaxPairs, over
  ///         all hosts
  explicit Distances(const Topology& topology);

  /// From one node to another, GPU fabric first.
  [[nodiscard]] Path between(NodeIndex from, NodeIndex to) const;
  /// The same without the GPU fabric: what a NIC, or a copy through PCIe, sees.
  [[nodiscard]] Path over_pcie(NodeIndex from, NodeIndex to) const;

  /// The CPU (NUMA node) nearest to a device; empty where none is reached.
  [[nodiscard]] std::optional<NodeIndex> nearest_cpu(NodeIndex device) const;

 private:
  struct Row {
    std::vector<Path> to;  ///< by the index of a node within its host
    std::optional<NodeIndex> cpu;
  };
  [[nodiscard]] std::vector<Path> walk(const Topology& topology, NodeIndex from,
                                       std::size_t host_size) const;
  void find_fabric(const Topology& topology);

  std::vector<int> host_;
  std::vector<std::size_t> position_;  ///< of a node within its host
  std::vector<std::size_t> component_;
  std::vector<Row> rows_;
  struct Direct {
    NodeIndex to;
    int lanes;
    LinkType type;
  };
  std::vector<std::vector<Direct>> direct_;  ///< GPU to GPU
  std::vector<std::size_t> crossbar_;  ///< GPUs with the same number share NVSwitches; 0: none
  std::vector<int> switch_lanes_;      ///< of a GPU to its NVSwitches
  std::vector<LinkType> switch_type_;
};

/// The matrix of `nvidia-smi topo -m`.
struct DistanceMatrix {
  struct Device {
    NodeIndex node;
    std::string label;  ///< "GPU0", "NIC3": by rank, and in the order of nodes()
    std::string cpus;   ///< CPU affinity as a list, "" when not known
    std::optional<int> numa;
  };
  std::vector<Device> devices;                  ///< GPUs by rank, then NICs
  std::vector<std::vector<std::string>> cells;  ///< by row, by column
};
/// @param host only its devices; -1: of all hosts
/// @throws Error kInvalidArgument for more than kMaxMatrixDevices devices
DistanceMatrix distance_matrix(const Topology& topology, const Distances& distances, int host = -1);

}  // namespace ropewalk::topology
