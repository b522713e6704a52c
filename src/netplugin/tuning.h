// Facts that NCCL should know about windows of memory as its network, and cannot find out: it
// models NICs, which take messages at no cost to the processor.
//
// Here the thread that moves NCCL's proxies starts every copy, some 5 us each for those of a GPU.
// Two things follow. The protocol LL, which doubles the data and cuts it into the smallest
// messages, pays for short operations only. And each channel adds messages: n channels cost n times
// what one costs to drive, and give n times its bandwidth, so that the time c * n + bytes / (r * n)
// is least at n = sqrt(bytes / (r * c)). Each provider states these (transport::ChannelUse).
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "transport/provider.h"

namespace ropewalk::netplugin {

/// Edits a table of times in microseconds, [algorithms][protocols] in one, where negative ones
/// cannot be chosen: afterwards none is chosen that `use` speaks against, unless nothing else is
/// left.
/// @return channels to use at most; 0 leaves that to NCCL
int apply(const transport::ChannelUse& use, std::size_t bytes, std::size_t ranks,
          std::span<float> times, std::size_t protocols);

/// Sets those of NCCL's variables that the network needs and the user has not set. They are read
/// when a communicator is made, after its network.
/// @param use absent: channels are left to NCCL
/// @param without_pci_path the network takes GPU memory, and has no PCI path
void set_variables(const std::optional<transport::ChannelUse>& use, bool without_pci_path);

}  // namespace ropewalk::netplugin
