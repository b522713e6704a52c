// The messages between a joining rank and the root service.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bootstrap/wire.h"
#include "core/error.h"
#include "core/socket_address.h"

namespace ropewalk::bootstrap {

/// Largest size of a communicator; bounds the memory that a wrong number can cause.
inline constexpr int kMaxRanks = 1 << 20;

/// First byte of each message.
enum class JoinMessage : std::uint8_t {
  kRecord = 1,   ///< rank -> root: RankRecord, then milliseconds until its deadline (64 bits)
  kTable = 2,    ///< root -> ranks: RankRecord of every rank
  kReady = 3,    ///< rank -> root: linked with both neighbours
  kCannot = 4,   ///< rank -> root: text; it cannot link
  kGo = 5,       ///< root -> ranks: all are linked
  kFailure = 6,  ///< root -> ranks: Errc (8 bits), text
};

/// What every rank knows of every other one.
struct RankRecord {
  SocketAddress address;                      ///< its listener
  std::array<unsigned char, 16> service{};    ///< token of its Service: equal in one process
  std::array<unsigned char, 16> pid_space{};  ///< equal where process ids mean the same
  std::int32_t pid = 0;
  std::uint64_t start_time = 0;  ///< of the process, in the system's clock ticks; 0: not known

  static constexpr std::size_t kBytes = kAddressBytes + 16 + 16 + 4 + 8;
  void write(WireWriter& out) const;
  static RankRecord read(WireReader& in);
};

/// This process' record, without an address.
RankRecord own_record(const std::array<unsigned char, 16>& service_token);

/// The process of `record` is known to have ended: it is of this host and process-id space, and
/// its id is free, a zombie's, or another process'.
bool process_ended(const RankRecord& record);

/// "rank 3", "ranks 1, 4-7".
std::string rank_list(const std::vector<int>& ranks);

}  // namespace ropewalk::bootstrap
