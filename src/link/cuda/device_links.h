// The ends of a rank's links to all other ranks, in every protocol, as kernels use them. They are
// made at first use.
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
  /// Channels through host memory beside those between GPUs: as many as fill a GPU's link to the
  /// host.
  static constexpr int kHybridChannels = 8;

  /// Layouts of the windows that `peers` will open. Computed from values that all ranks share.
  static DevicePeers::Layouts layouts(const Config& config, const DevicePeers& peers);

  /// @param peers   with their windows open
  /// @param mapped  windows between hosts; may be null
  /// @param network links to the other ranks of other hosts; null where there are none
  /// @param control pinned
  /// All of these, and `blocks`, outlive this.
  DeviceLinks(const DevicePeers& peers, const DevicePeers::Layouts& layouts,
              const DeviceMappedWindows* mapped, DeviceNetwork* network, executor::Control* control,
              DeviceBlocks& blocks);

  /// Whether the link to a peer is one of `network`: the peer is on another host and maps no
  /// window.
  [[nodiscard]] bool over_network(int peer) const;

  /// For programs. @throws Error kCuda
  executor::SendEnd send_end(executor::Protocol protocol, int channel, int peer);
  executor::ReceiveEnd receive_end(executor::Protocol protocol, int channel, int peer);
  /// The same for links through host memory between GPUs with peer access: protocol simple, with
  /// channels of their own.
  /// @pre peers.has_hybrid_windows(), channel < kHybridChannels
  executor::SendEnd hybrid_send_end(int channel, int peer);
  executor::ReceiveEnd hybrid_receive_end(int channel, int peer);
  /// The ends of the first `channels` channels to (`sends`) or from a peer, in device memory, for
  /// messages. `channels` is the same in all calls. @throws Error kCuda
  const void* message_ends(executor::Protocol protocol, int peer, bool sends, int channels);

  /// The other fields of LaunchLinks that a launch needs.
  [[nodiscard]] executor::LaunchLinks others(std::uint64_t timeout_ns) const;
  /// Bytes of a slot; 0: links do not have the protocol. Except in protocol simple, all links of a
  /// protocol have slots of the same size.
  [[nodiscard]] std::size_t slot_bytes(executor::Protocol protocol) const noexcept {
    return layout_.shapes[static_cast<std::size_t>(protocol)].slot_bytes;
  }
  /// Slots of each link of protocol simple.
  [[nodiscard]] std::uint32_t lag_slots() const noexcept;
  /// As slots(), of the links of hybrid_send_end().
  [[nodiscard]] std::size_t hybrid_slot_bytes() const noexcept {
    return hybrid_layout_.shapes[0].slot_bytes;
  }
  /// The same, of links between GPUs of a host without peer access.
  [[nodiscard]] std::size_t host_path_slot_bytes(executor::Protocol protocol) const noexcept {
    return host_layout_.shapes[static_cast<std::size_t>(protocol)].slot_bytes;
  }

 private:
  using Key = std::tuple<executor::Protocol, int, int>;  // channel, peer
  // Counters in device memory that live between launches, zero at first.
  template <typename Counters>
  class Kept {
   public:
    Counters* find_or_make(const Key& key, DeviceBlocks& blocks);

   private:
    static constexpr std::size_t kPerBlock = 128;
    std::map<Key, Counters*> made_;
    std::vector<std::shared_ptr<DeviceBlock>> blocks_;
    std::size_t used_ = kPerBlock;  // counters taken of the last block
  };

  // Addresses of the two ends of a link to or from `peer`.
  [[nodiscard]] WindowSides sides(int peer) const;
  [[nodiscard]] WindowSides hybrid_sides(int peer) const;
  // `number`: index of the channel, counted over both kinds of links.
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
  std::shared_ptr<DeviceBlock> boards_;      // where this rank's tags go in all windows
  std::shared_ptr<DeviceBlock> far_boards_;  // tags from other hosts, in this rank's windows
};

/// The links of one protocol, for programs. Channels from `first_hybrid` on go through host memory.
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
