// Facts that NCCL should know about windows of memory as its network, and cannot find out: it
// models NICs, which take messages at no cost to the processor.
//
// Here the thread that moves NCCL's proxies starts every copy, some 5 us each for those of a GPU.
// Two things follow. The protocol LL, which doubles the data and cuts it into the smallest
// messages, pays for short operations only. And each channel adds messages: n channels cost n times
// what one costs to drive, and give n times its bandwidth, so that the time c * n + bytes / (r * n)
// is least at n = sqrt(bytes / (r * c)). The constants below are measured (two H200, NCCL 2.28.9;
// benchmarks/results/nccl-net-*).
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>

namespace ropewalk::netplugin {

/// How NCCL best uses a network.
struct Tuning {
  std::size_t flagged_bytes = 0;  ///< of a rank's share: the most that LL is good for
  std::size_t channel_bytes = 0;  ///< r * c of above
  int fewest_channels = 1;
  int most_channels = 1;  ///< 0: LL and channels are left to NCCL
};

/// @param network a value of the setting NET; nothing for those that are best left to NCCL
std::optional<Tuning> tuning_of(std::string_view network);

/// Edits a table of times in microseconds, [algorithms][protocols] in one, where negative ones
/// cannot be chosen: afterwards none is chosen that `tuning` speaks against, unless nothing else is
/// left.
/// @return channels to use at most; 0 leaves that to NCCL
int apply(const Tuning& tuning, std::size_t bytes, std::size_t ranks, std::span<float> times,
          std::size_t protocols);

/// Sets those of NCCL's variables that `network` needs and the user has not set. They are read
/// when a communicator is made, after its network.
/// @param without_pci_path the network takes GPU memory, and has no PCI path
void set_variables(std::string_view network, bool without_pci_path);

}  // namespace ropewalk::netplugin
