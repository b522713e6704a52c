// Provider: what others need to know of a provider before they have made it. Each is a constant in
// its own folder and a line of the registry.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "core/settings.h"
#include "transport/transport.h"

namespace ropewalk::transport {

namespace window {
class Driver;
}

/// How an operation that is split over channels, each of which sends messages of its own, best uses
/// a provider. None promises that lines of 128 bytes arrive whole and in order (NCCL's LL128).
struct ChannelUse {
  /// Of a rank's share: the most for which flags beside the data (NCCL's LL) pay.
  std::size_t flagged_bytes = 0;
  std::size_t channel_bytes = 0;  ///< n channels are best for n * n times as many
  int fewest_channels = 1;
  int most_channels = 0;  ///< 0: the choice of flags and channels is as for any NIC
  /// A message of GPU memory costs a copy that is worth its start from some MiB on only.
  bool long_gpu_messages = false;
};

struct Provider {
  std::string_view name;
  std::unique_ptr<Transport> (*make)(const Config&) = nullptr;
  /// The best size of the pieces into which long data is cut; 0: any.
  std::size_t piece_bytes = 0;
  /// Absent: left to the user.
  std::optional<ChannelUse> channel_use = std::nullopt;
  /// Chooses among the others, for each connection.
  bool chooses = false;
  /// Joins any two processes of one host, with nothing installed.
  bool joins_processes = false;
  /// Is made of others, and there to survive their faults: those of the setting FAULTY are made
  /// below it.
  bool faults_below = false;
  /// Where the other end's stores reach its windows (window::Path, other_window()): their driver.
  std::unique_ptr<window::Driver> (*make_window_driver)(const Config&) = nullptr;
};

}  // namespace ropewalk::transport
