// NCCL's graph files: what NCCL_GRAPH_DUMP_FILE writes and NCCL_GRAPH_FILE reads.
//
// graphs (version="1") > graph > channel > net, gpu ..., net. Numbers of GPUs are NVML indices,
// those of NICs the network plugin's device indices. The forms and rules are those of NCCL 2.8 to
// 2.30 and RCCL (src/graph/search.cc, xml.cc), restated in docs/nic-balance.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ropewalk::plan {

/// NCCL's path types as graph files name them, best first.
inline constexpr std::string_view kNcclPathTypes[] = {"LOC", "NVL", "NVB", "C2C", "PIX",
                                                      "PXB", "P2C", "PXN", "PHB", "SYS"};

struct NcclGpu {
  std::uint64_t dev = 0;               ///< host number << 56 | NVML index
  std::optional<std::int64_t> rank{};  ///< 2.30.3 and later; written in dumps
  friend bool operator==(const NcclGpu&, const NcclGpu&) = default;
};

/// A channel on one host. In a ring data comes in by nets[0], goes from GPU to GPU and leaves by
/// nets[1]; inside one host there are no nets.
struct NcclChannel {
  std::vector<std::uint64_t> nets{};  ///< at the first GPU, at the last
  std::vector<NcclGpu> gpus{};
  friend bool operator==(const NcclChannel&, const NcclChannel&) = default;
};

struct NcclGraph {
  int id = 0;         ///< 0 ring, 1 tree, 2 CollNet chain, 3 NVLS, 4 CollNet direct
  int pattern = 4;    ///< 1 balanced tree, 2 split tree, 3 tree, 4 ring, 5 NVLS, 6 CollNet direct
  int crossnic = 0;   ///< 0 both ends of a ring on one rail, 1 any, 2 rings in mirrored pairs
  int nchannels = 0;  ///< that count; `channels` may hold others
  double speedintra = 0;                 ///< GB/s per channel
  double speedinter = 0;                 ///< GB/s per channel
  std::optional<double> latencyinter{};  ///< microseconds; 2.12 and later
  std::string typeintra = "LOC";         ///< worst path type between GPUs
  std::string typeinter = "LOC";         ///< worst path type between GPU and NIC
  bool samechannels = false;             ///< all channels have the same order of GPUs
  std::vector<NcclChannel> channels{};
  friend bool operator==(const NcclGraph&, const NcclGraph&) = default;
};

using NcclGraphs = std::vector<NcclGraph>;

/// Reads `dev` as hexadecimal with or without 0x, as NCCL does from 2.21 on. Speeds have at most 8
/// significant digits when written, so read(write(read(x))) == read(x).
///
/// @throws Error kInvalidArgument "ORIGIN: line 3: what is wrong": what NCCL's readers refuse,
/// crash
///         on or misread silently: no `graphs`, another version, missing typeintra or typeinter
///         (NCCL crashes), unknown path types (read as LOC), fewer channels than nchannels, a
///         channel without GPUs, a GPU twice in a channel, one net alone (the second silently
///         becomes device 0) or more than two, numbers that are none, more than 1024 elements
NcclGraphs read_nccl_graph(std::string_view text, std::string_view origin);

/// The text that every NCCL release reads equally: no header, `0x` before every dev, nchannels as
/// many as there are channels.
///
/// @throws Error kInvalidArgument for what read_nccl_graph() would refuse
std::string write_nccl_graph(const NcclGraphs& graphs);

}  // namespace ropewalk::plan
