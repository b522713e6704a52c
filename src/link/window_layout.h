// Where things lie in a window: memory of one rank that the other ranks of a communicator write.
//
// It holds, for every peer and channel, the link from that peer in each protocol, for every link to
// a peer the counter of what the peer has consumed (executor/block/links.h), and the peers' tags
// (executor/block/launch.h). The layout is arithmetic, so ranks exchange nothing but the window's
// address.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "executor/block/links.h"
#include "executor/link_end.h"

namespace ropewalk::link {

struct WindowLayout {
  int ranks = 1;  ///< of the host that has most; they are named here by their numbers on a host
  int channels = 1;
  int all_ranks = 1;  ///< of all hosts
  std::array<executor::FifoShape, executor::kNumProtocols> shapes;

  /// Of the link from `source` in the window of `rank`.
  [[nodiscard]] std::size_t link_offset(executor::Protocol protocol, int channel, int rank,
                                        int source) const noexcept;
  /// Of the counter of the link to `destination` in the window of `rank`.
  [[nodiscard]] std::size_t counter_offset(executor::Protocol protocol, int channel,
                                           int destination) const noexcept;
  /// Of the tags that `rank`, of all, leaves.
  [[nodiscard]] std::size_t board_offset(int rank) const noexcept;
  [[nodiscard]] std::size_t bytes() const noexcept;
  /// Of all ranks' tags for one rank.
  [[nodiscard]] std::size_t bytes_of_boards() const noexcept { return boards_bytes(); }

 private:
  [[nodiscard]] std::size_t stride(executor::Protocol protocol) const noexcept;
  [[nodiscard]] std::size_t counters_bytes() const noexcept;
  [[nodiscard]] std::size_t boards_bytes() const noexcept;
};

/// Chunks that links of protocol simple hold between GPUs of so many ranks: a ring all-reduce has
/// 2 (n - 1) of them in a round on each link, and its steps run on rounds of their own where there
/// is room for two more (schedule/lags.h). At least 8, and at most 32, which is right for 16 ranks.
[[nodiscard]] std::uint32_t device_link_slots(int ranks) noexcept;

/// A window as two of its writers know it: the ends of their links in it and in the other's window.
struct WindowSides {
  const WindowLayout& layout;
  std::byte* own_window;
  std::byte* their_window;
  int own;  ///< numbers of the ranks in the layout
  int theirs;

  /// Without the counters that are kept between launches (executor/link_end.h).
  [[nodiscard]] executor::SendEnd send_end(executor::Protocol protocol, int channel,
                                           int peer) const noexcept;
  [[nodiscard]] executor::ReceiveEnd receive_end(executor::Protocol protocol, int channel,
                                                 int peer) const noexcept;
};

}  // namespace ropewalk::link
