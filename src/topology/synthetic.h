// A machine from a short string, in the spirit of hwloc's synthetic topologies.
//
//   machine := [HOSTS "x(" parts ")"] parts
//   parts   := part part ...                        separated by spaces
//   part    := [COUNT] word [":" MODEL] ["@" RATE]  as 8gpu:H100, 2cpu@22, nic@200Gb
//
// Every part describes one host; those behind the brackets belong to each host too, so that
// "2x(8gpu nvswitch) 8nic" is two hosts of eight GPUs behind a switch, with eight NICs each.
//
//   gpu       GPUs; MODEL (P100, V100, A100, H100, H200, B200, ...) says how many NVLink lanes
//   nvswitch  every GPU joined to every switch; RATE: GB/s of a GPU per direction, all switches
//   together nvmesh    every pair of GPUs joined; RATE of each pair (default: the lanes of a GPU,
//   divided) nvring    each GPU with the next; RATE of each pair nvcube    8 GPUs as a hybrid cube
//   mesh, the wiring of the DGX-1; RATE of a lane cpu       NUMA nodes (default 1), each pair
//   joined; RATE between two (default 22) pcie      PCIe switches; twice: a second level below the
//   first (default: none) nic       NICs; RATE of each (default 50, that is 400Gb) gen3 ...  gen1
//   to gen6: generation of all PCIe links, 16 lanes each (default 5) rails     a network for each
//   NIC index, instead of one network between the hosts net       one network even for a single
//   host NAME      a known machine, for the parts of it: presets()
//
// Rates are GB/s, or Gbit/s with "Gb" behind the number. Devices are spread evenly, in order: GPU i
// of n hangs on switch floor(i * switches / n), and so on up.
#pragma once

#include <string_view>
#include <vector>

#include "topology/topology.h"

namespace ropewalk::topology {

/// @throws Error kInvalidArgument naming the column: unknown words, counts of 0 or beyond 65536,
///         rates that are none, parts that do not fit each other (an NVSwitch without GPUs, nvcube
///         of other than 8, several hosts without NICs)
Topology synthetic(std::string_view text);

struct Preset {
  std::string_view name;
  std::string_view parts;
  std::string_view help;
};
/// Machines by name. Their facts are those of the machine files that tests compare them with.
const std::vector<Preset>& presets();

}  // namespace ropewalk::topology
