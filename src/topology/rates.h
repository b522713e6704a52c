// Rates of links whose description has only generation, lanes or model.
//
// `capacity` of a PCIe link is the planning figure of NCCL's graph model (gen 3 x16: 12 GB/s, gen
// 4: 24, gen 5: 48), since the raw rate is never reached; of an NVLink it is the signalling rate.
// Sources: NCCL 2.30 (src/graph/topo.h, xml.cc) for planning figures; PCIe and NVLink data sheets
// for raw rates.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "topology/topology.h"

namespace ropewalk::topology {

/// GB/s for planning. Unknown generations (0) count as 3, unknown widths (0) as 16.
double pcie_capacity(int gen, int width) noexcept;
/// GB/s on the wire after encoding.
double pcie_nominal(int gen, int width) noexcept;

/// "16.0 GT/s PCIe", also the older "16 GT/s" -> 4; empty for anything else.
std::optional<int> pcie_gen(std::string_view link_speed) noexcept;
/// 4 -> "16.0 GT/s PCIe". Unknown generations count as 3.
std::string_view pcie_link_speed(int gen) noexcept;
/// The generation and width whose raw rate is closest to `gbps`.
struct PcieShape {
  int gen;
  int width;
};
PcieShape pcie_shape(double gbps) noexcept;

/// GB/s of one NVLink lane and direction, by compute capability times ten (90 is 9.0).
struct LaneRates {
  double capacity;   ///< signalling rate
  double effective;  ///< NCCL's planning figure
};
LaneRates nvlink_lane(int compute_capability) noexcept;

/// 90 for "H100", "NVIDIA H200", ...; empty for names that are not in the table.
std::optional<int> compute_capability(std::string_view model) noexcept;

/// GB/s between NUMA nodes by the rules of NCCL's graph model.
struct CpuIdentity {
  std::string arch;    ///< "x86_64", "arm64", "ppc64"
  std::string vendor;  ///< "GenuineIntel", "AuthenticAMD", ...
  int family = 0;
  int model = 0;
};
double smp_capacity(const CpuIdentity& cpu) noexcept;
/// A CPU for which smp_capacity() is as near as may be.
CpuIdentity cpu_with_smp(double gbps);

}  // namespace ropewalk::topology
