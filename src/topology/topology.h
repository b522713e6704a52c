// The machine as a directed graph: GPUs, switches, CPUs (NUMA nodes), NICs, networks, and the links
// between them. Everything that plans, draws or simulates starts from a Topology.
//
// Capacities are GB/s (10^9 bytes per second) of one direction, latencies microseconds. A full
// duplex cable is two links. Files (topology/json.h, topology/nccl_xml.h), short strings
// (topology/synthetic.h) and discovery (topology/discover.h) make Topologies; from then on all is
// pure.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace ropewalk::topology {

enum class NodeKind {
  kGpu,         ///< a rank: holds data, copies and adds; one GPU or one die of a package
  kNvSwitch,    ///< a switch chip (or an ideal crossbar) of an NVLink fabric
  kPcieSwitch,  ///< a PCIe switch, or a bridge that several devices share
  kCpu,         ///< a NUMA node with its memory and root ports
  kNic,         ///< one port of a network adapter
  kNetwork,     ///< a network fabric between hosts
};

enum class LinkType {
  kNvlink,
  kXgmi,
  kC2c,  ///< chip-to-chip between a CPU and a GPU of one package
  kPcie,
  kSmp,  ///< between NUMA nodes: UPI, QPI, Infinity Fabric
  kNet,  ///< between a NIC and a network
  kNtb,  ///< PCIe non-transparent bridge between hosts
  kEthernet,
};

/// The word for it in files: "gpu", "nvswitch", "pcie_switch", "cpu", "nic", "network".
std::string_view name(NodeKind kind) noexcept;
/// The word for it in files: "nvlink", "xgmi", "c2c", "pcie", "smp", "net", "ntb", "ethernet".
std::string_view name(LinkType type) noexcept;
std::optional<NodeKind> parse_node_kind(std::string_view word) noexcept;
std::optional<LinkType> parse_link_type(std::string_view word) noexcept;
/// All values, in the order of the enumerations.
const std::vector<NodeKind>& all_node_kinds();
const std::vector<LinkType>& all_link_types();

/// Indices into Topology::nodes() and Topology::links().
using NodeIndex = std::size_t;
using LinkIndex = std::size_t;

/// What another program's form says of a node and this model has no field for, by name. Kept so
/// that reading and writing that form loses nothing.
using Attributes = std::vector<std::pair<std::string, std::string>>;

struct Node {
  std::string id{};  ///< unique; printable, without spaces, at most 128 bytes
  NodeKind kind = NodeKind::kGpu;
  int host = 0;                      ///< 0 to hosts - 1; -1: a network that belongs to no host
  int rank = -1;                     ///< GPUs: 0 to N - 1 over all hosts, each once; others: -1
  std::optional<int> numa{};         ///< NUMA node on its host
  std::string model{};               ///< "H100", "" when not known
  std::optional<int> package{};      ///< GPUs that are dies of one package share this
  std::optional<int> board{};        ///< devices of one baseboard share this
  std::optional<double> net_gbps{};  ///< NIC: line rate in GB/s
  std::string device{};              ///< what the system calls it: "mlx5_0", "eth0"
  std::string bus_id{};              ///< PCI address "dddd:bb:dd.f", "" when there is none
  std::string cpus{};                ///< CPU list of a NUMA node, as "0-15,32-47"
  Attributes attributes{};

  bool operator==(const Node&) const = default;
};

struct Link {
  NodeIndex source = 0;
  NodeIndex destination = 0;
  LinkType type = LinkType::kPcie;
  double capacity = 0;                    ///< what plans may use, GB/s
  std::optional<double> latency_us{};     ///< of one small message over this link
  std::optional<double> nominal{};        ///< raw link rate, GB/s
  std::optional<double> effective{};      ///< what copies reach in practice, GB/s
  std::optional<double> nccl_model{};     ///< NCCL's planning figure where `capacity` is another
  std::optional<int> lanes{};             ///< NVLink, xGMI: parallel lanes
  std::optional<int> gen{};               ///< PCIe generation
  std::optional<int> width{};             ///< PCIe lanes
  std::optional<std::string> measured{};  ///< how `capacity` was measured
  std::optional<bool> assumed{};          ///< true: nobody read this off a machine
  Attributes attributes{};

  bool operator==(const Link&) const = default;
};

/// A named sub-graph: the links of some types.
struct Plane {
  std::string name{};
  std::vector<LinkType> types{};

  bool operator==(const Plane&) const = default;
};

/// All that a Topology says, not yet validated.
struct Description {
  std::string name{};
  std::string title{};
  int hosts = 1;
  std::optional<double> lane_gbps{};  ///< capacity of one NVLink or xGMI lane
  std::vector<Plane> planes{};
  std::vector<std::string> sources{};      ///< where the numbers come from
  std::vector<std::string> assumptions{};  ///< what was assumed, or could not be discovered
  std::vector<Node> nodes{};
  std::vector<Link> links{};

  bool operator==(const Description&) const = default;
};

/// Limits that keep a file from taking all memory.
inline constexpr std::size_t kMaxNodes = 65536;
inline constexpr std::size_t kMaxLinks = std::size_t{1} << 20;
inline constexpr std::size_t kMaxIdBytes = 128;
inline constexpr double kMaxCapacity = 1e6;   ///< GB/s
inline constexpr double kMinCapacity = 1e-6;  ///< GB/s
inline constexpr double kMaxLatencyUs = 1e9;

/// A validated machine. A value: copies are equal and independent; all members are const, so any
/// number of threads may read one.
class Topology {
 public:
  /// @throws Error kInvalidArgument naming the element as in JSON ("links[3].capacity: ..."): ids
  ///         that are duplicate or malformed, links to themselves, out of range, or twice (same
  ///         ends and type), capacities that are not finite or outside the limits, ranks that are
  ///         not 0 to N - 1, hosts out of range, planes without types or with the same name.
  ///         No GPU, and GPUs that cannot reach each other, are no errors: see require_connected
  explicit Topology(Description description);

  [[nodiscard]] const Description& description() const noexcept { return description_; }
  [[nodiscard]] const std::string& name() const noexcept { return description_.name; }
  [[nodiscard]] int hosts() const noexcept { return description_.hosts; }
  [[nodiscard]] const std::vector<Node>& nodes() const noexcept { return description_.nodes; }
  [[nodiscard]] const std::vector<Link>& links() const noexcept { return description_.links; }
  [[nodiscard]] const std::vector<Plane>& planes() const noexcept { return description_.planes; }

  [[nodiscard]] const Node& node(NodeIndex index) const { return description_.nodes.at(index); }
  [[nodiscard]] const Link& link(LinkIndex index) const { return description_.links.at(index); }

  /// GPUs by rank: gpus()[r] has rank r.
  [[nodiscard]] const std::vector<NodeIndex>& gpus() const noexcept { return gpus_; }
  /// All nodes of a kind, in the order of nodes().
  [[nodiscard]] std::vector<NodeIndex> nodes_of(NodeKind kind) const;
  [[nodiscard]] std::optional<NodeIndex> find(std::string_view id) const;
  /// @throws Error kInvalidArgument naming the id
  [[nodiscard]] NodeIndex at(std::string_view id) const;

  /// Links that leave or enter a node, in the order of links().
  [[nodiscard]] const std::vector<LinkIndex>& links_from(NodeIndex node) const {
    return out_.at(node);
  }
  [[nodiscard]] const std::vector<LinkIndex>& links_to(NodeIndex node) const {
    return in_.at(node);
  }
  [[nodiscard]] std::optional<LinkIndex> find_link(NodeIndex source, NodeIndex destination,
                                                   LinkType type) const;

  /// Whether every link has a twin in the other direction with the same type and capacity.
  [[nodiscard]] bool symmetric() const noexcept { return symmetric_; }

  /// The machine with the links of one plane only; nodes keep their indices.
  /// @throws Error kInvalidArgument naming the planes that there are
  [[nodiscard]] Topology plane(std::string_view plane_name) const;

  /// The machine without the GPUs that are not in `ranks`; ranks[i] becomes rank i. What is no GPU
  /// stays.
  /// @throws Error kInvalidArgument for an empty list, a rank twice, or one that is not there
  [[nodiscard]] Topology with_gpus(const std::vector<int>& ranks) const;

  /// The machine without nodes that are on no path between GPUs: repeatedly removes nodes, other
  /// than GPUs, with at most one neighbour. Indices change.
  [[nodiscard]] Topology without_dead_ends() const;

  /// Ids of GPUs that rank 0 cannot reach, or that cannot reach rank 0, by rank.
  [[nodiscard]] std::vector<std::string> unreachable_gpus() const;

  bool operator==(const Topology& other) const { return description_ == other.description_; }

 private:
  Description description_;
  std::unordered_map<std::string, NodeIndex> by_id_;
  std::vector<NodeIndex> gpus_;
  std::vector<std::vector<LinkIndex>> out_;
  std::vector<std::vector<LinkIndex>> in_;
  bool symmetric_ = false;
};

/// Checks the requirements of a collective: at least two GPUs, and a path between any two.
///
/// @throws Error kInvalidArgument saying how many GPUs there are, or naming those that rank 0 has
/// no
///         path to or from
void require_connected(const Topology& topology);

/// Latency of a link where its file gives none: rough figures for one small message (NVLink 0.7,
/// xGMI 0.8, C2C 0.6, PCIe 0.6, between sockets 0.3, NTB 0.7, network 2.5, Ethernet 20).
double default_latency_us(LinkType type) noexcept;
double latency_us(const Link& link) noexcept;

}  // namespace ropewalk::topology
