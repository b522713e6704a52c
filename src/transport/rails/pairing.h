// Which devices of the two ends are joined to rails.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ropewalk::transport::rails {

struct PairedDevices {
  int own = 0;
  int peers = 0;
  friend bool operator==(const PairedDevices&, const PairedDevices&) = default;
};

/// What counts of a device.
struct Pairable {
  std::uint8_t provider = 0;
  std::uint16_t fabric = 0;  ///< 0: not known
  double speed_mbps = 0;
};

/// Devices of one provider, one to one: within fabrics that both ends are on first, the fastest
/// first; devices of different fabrics only where the two have no other partner, as routers may
/// join them. Devices that are left over then take the best partner again (with `each_once`: none),
/// so that each is in a rail: two slow ports may face a fast one.
/// @return the best first, at most `most`
std::vector<PairedDevices> pair_up(std::span<const Pairable> own, std::span<const Pairable> peers,
                                   std::size_t most, bool each_once);

}  // namespace ropewalk::transport::rails
