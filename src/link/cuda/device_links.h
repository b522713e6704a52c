// The ends of a rank's links to all others, in every protocol, as kernels see them: made when first
// asked for.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <tuple>
#include <vector>

#include "core/settings.h"
#include "executor/block/launch.h"
#include "executor/block/pack.h"
#include "link/cuda/device_blocks.h"
#include "link/cuda/device_mapped_windows.h"
#include "link/cuda/device_network.h"
#include "link/cuda/device_peers.h"
#include "link/cuda/device_window.h"

namespace ropewalk::link {

/// Threads: one at a time. Its device is current in every call.
class DeviceLinks {
 public:
  static constexpr int kChannels = 64;
  /// Beside those between the GPUs' memories: as many as fill a GPU's link to the host.
  static constexpr int kHybridChannels = 8;

  /// Of the windows that `peers` are to open. Follows from what all ranks know alike.
  static DevicePeers::Layouts layouts(const Config& config, const DevicePeers& peers);

  /// @param peers   with their windows open
  /// @param mapped  windows between hosts; may be null
  /// @param network links to the other ranks of other hosts; null where there are none
  /// @param control pinned
  /// All of them, and `blocks`, outlive this.
  DeviceLinks(const DevicePeers& peers, const DevicePeers::Layouts& layouts,
              const DeviceMappedWindows* mapped, DeviceNetwork* network, executor::Control* control,
              DeviceBlocks& blocks);

  /// The link to a peer is one of `network`: it is on another host, and has no window.
  [[nodiscard]] bool over_network(int peer) const;

  /// For programs. @throws Error kCuda
  executor::SendEnd send_end(executor::Protocol protocol, int channel, int peer);
  executor::ReceiveEnd receive_end(executor::Protocol protocol, int channel, int peer);
  /// The same through the host's memory, of GPUs that have access to each other's: protocol simple,
  /// with channels of their own.
  /// @pre peers.has_hybrid_windows(), channel < kHybridChannels
  executor::SendEnd hybrid_send_end(int channel, int peer);
  executor::ReceiveEnd hybrid_receive_end(int channel, int peer);
  /// The ends of the first `channels` channels to (`sends`) or from a peer, in device memory: for
  /// messages, always with the same number. @throws Error kCuda
  const void* message_ends(executor::Protocol protocol, int peer, bool sends, int channels);

  /// What else a launch needs.
  [[nodiscard]] executor::LaunchLinks others(std::uint64_t timeout_ns) const;
  /// Of a slot. 0: links do not have the protocol. Of protocols other than simple, all links that
  /// have one have slots of one size.
  [[nodiscard]] std::size_t slot_bytes(executor::Protocol protocol) const noexcept {
    return layout_.shapes[static_cast<std::size_t>(protocol)].slot_bytes;
  }
  /// Chunks that each link of protocol simple holds.
  [[nodiscard]] std::uint32_t lag_slots() const noexcept;
  /// Of the links of hybrid_send_end().
  [[nodiscard]] std::size_t hybrid_slot_bytes() const noexcept {
    return hybrid_layout_.shapes[0].slot_bytes;
  }
  /// The same of links between GPUs of a host without access to each other's memory.
  [[nodiscard]] std::size_t host_path_slot_bytes(executor::Protocol protocol) const noexcept {
    return host_layout_.shapes[static_cast<std::size_t>(protocol)].slot_bytes;
  }

 private:
  using Key = std::tuple<executor::Protocol, int, int>;  // channel, peer
  // Room in device memory for counters that are kept between launches, zero at first.
  template <typename Counters>
  class Kept {
   public:
    Counters* find_or_make(const Key& key, DeviceBlocks& blocks);

   private:
    static constexpr std::size_t kPerBlock = 128;
    std::map<Key, Counters*> made_;
    std::vector<std::shared_ptr<DeviceBlock>> blocks_;
    std::size_t used_ = kPerBlock;  // of the last block
  };

  // Where the two ends of a link to or from `peer` lie.
  [[nodiscard]] WindowSides sides(int peer) const;
  [[nodiscard]] WindowSides hybrid_sides(int peer) const;
  // `number`: of the channel among those of both kinds of links.
  executor::SendEnd send_end(const WindowSides& at, executor::Protocol protocol, int channel,
                             int number, int peer);
  executor::ReceiveEnd receive_end(const WindowSides& at, executor::Protocol protocol, int channel,
                                   int number, int peer);

  WindowLayout layout_;
  WindowLayout host_layout_;
  WindowLayout hybrid_layout_;
  const DevicePeers& peers_;
  const DeviceMappedWindows* mapped_;
  DeviceNetwork* network_;
  DeviceBlocks& blocks_;
  int rank_;
  executor::Control* control_;
  Kept<executor::SendCounters> sent_;
  Kept<executor::ReceiveCounters> received_;
  std::map<std::tuple<executor::Protocol, int, bool>, std::shared_ptr<DeviceBlock>> messages_;
  std::shared_ptr<DeviceBlock> boards_;      // addresses of this rank's tags in all windows
  std::shared_ptr<DeviceBlock> far_boards_;  // of the tags of ranks of other hosts in this one's
};

/// The links of one protocol, for programs. Channels from `first_hybrid` on go through the host's
/// memory.
class DeviceEnds final : public executor::BlockEnds {
 public:
  DeviceEnds(DeviceLinks& links, executor::Protocol protocol, int first_hybrid)
      : links_(links), protocol_(protocol), first_hybrid_(first_hybrid) {}
  executor::SendEnd send_end(int channel, int peer) override {
    return channel < first_hybrid_ ? links_.send_end(protocol_, channel, peer)
                                   : links_.hybrid_send_end(channel - first_hybrid_, peer);
  }
  executor::ReceiveEnd receive_end(int channel, int peer) override {
    return channel < first_hybrid_ ? links_.receive_end(protocol_, channel, peer)
                                   : links_.hybrid_receive_end(channel - first_hybrid_, peer);
  }

 private:
  DeviceLinks& links_;
  executor::Protocol protocol_;
  int first_hybrid_;
};

}  // namespace ropewalk::link
