// The result of discovery on one host, before it is a graph. hwloc, sysfs and NVML each fill in
// what they see; assemble() makes the machine.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "topology/rates.h"
#include "topology/topology.h"

namespace ropewalk::topology {

struct ScannedCpu {
  int numa = 0;
  std::string cpus{};  ///< list
  CpuIdentity identity{};
};

struct ScannedBridge {
  std::string bus_id{};
  int gen = 0;    ///< of the link above it; 0: not known
  int width = 0;  ///< the same
  Attributes attributes{};
};

struct ScannedDevice {
  NodeKind kind = NodeKind::kGpu;  ///< or kNic
  std::string bus_id{};            ///< "0000:3b:00.0"; "" for devices on no PCI bus
  std::string vendor{};            ///< "10de"
  std::string host_bridge{};       ///< "0000:00"; "" when not known
  std::optional<int> numa{};
  std::vector<ScannedBridge> bridges{};  ///< all above it, root port first
  int gen = 0;
  int width = 0;
  std::string model{};
  std::string device{};  ///< NIC: "mlx5_0"
  std::optional<double> net_gbps{};
  std::optional<int> index{};  ///< GPU: NVML's number
  int compute_capability = 0;
  struct Nvlink {
    std::string remote{};  ///< bus id of the other end; "" if unknown
    bool to_switch = false;
  };
  std::vector<Nvlink> nvlinks{};  ///< one per active lane
  Attributes attributes{};
};

struct Scan {
  std::string name{};
  std::vector<ScannedCpu> cpus{};
  std::vector<ScannedDevice> devices{};
  std::vector<std::string> sources{};
  std::vector<std::string> notes{};  ///< what could not be seen
};

/// "00000000:3B:00.0" -> "0000:3b:00.0". Other texts come back in lower case.
std::string normal_bus_id(std::string_view bus_id);

/// Whether a PCI function is a GPU or a NIC, by class ("0302") and vendor ("10de").
///
/// Display controllers of others than NVIDIA and AMD are no GPUs here: they cannot compute.
std::optional<NodeKind> kind_of_pci(std::string_view pci_class, std::string_view vendor);

/// The machine. PCIe switches are counted as NCCL does: of the bridges above a device the nearest
/// is a switch's downstream port or a root port, the next the switch, and so on in turn.
Topology assemble(Scan scan);

}  // namespace ropewalk::topology
