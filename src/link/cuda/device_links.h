// The ends of a rank's links to all others, in every protocol, as kernels see them
// (executor/block/links.h).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "core/settings.h"
#include "executor/block/launch.h"
#include "link/cuda/device_blocks.h"
#include "link/cuda/device_peers.h"
#include "link/cuda/device_window.h"

namespace ropewalk::link {

class DeviceLinks {
 public:
  static constexpr int kChannels = 64;
  static constexpr std::uint32_t kSimpleSlots = 4;

  /// Of the windows that `peers` are to open: the links of `ranks` ranks. Follows from what all
  /// ranks know alike.
  static WindowLayout layout(const Config& config, const DevicePeers& peers, int ranks);

  /// @param peers   with their windows open; outlives this
  /// @param control pinned; outlives this
  DeviceLinks(const DevicePeers& peers, const WindowLayout& layout, int rank,
              executor::Control* control, DeviceBlocks& blocks);

  [[nodiscard]] executor::LaunchLinks ends(executor::Protocol protocol,
                                           std::uint64_t timeout_ns) const;
  /// Of a slot. 0: links do not have the protocol.
  [[nodiscard]] std::size_t slot_bytes(executor::Protocol protocol) const noexcept {
    return layout_.shapes[static_cast<std::size_t>(protocol)].slot_bytes;
  }

 private:
  WindowLayout layout_;
  int rank_;
  executor::Control* control_;
  std::byte* own_window_;
  std::array<std::shared_ptr<DeviceBlock>, executor::kNumProtocols> sends_;
  std::array<std::shared_ptr<DeviceBlock>, executor::kNumProtocols> receives_;
  std::shared_ptr<DeviceBlock> boards_;  // addresses of this rank's tags in all windows
};

}  // namespace ropewalk::link
