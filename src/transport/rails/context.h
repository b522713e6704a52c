// What all connections of a Transport of rails share.
#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "transport/rails/keeper.h"
#include "transport/rails/wire.h"
#include "transport/transport.h"

namespace ropewalk::transport::rails {

/// A device under the rails.
struct Device {
  Transport* transport = nullptr;
  int number = 0;  ///< of the transport's
  DeviceProperties properties;
  std::uint8_t provider = 0;

  /// "tcp eth0"
  [[nodiscard]] std::string name() const { return transport->name() + " " + properties.name; }
};

struct Context {
  std::vector<Device> devices;
  bool verifies = true;  ///< patterns before a rail is used
  bool sums = false;     ///< checksums of all pieces
  std::chrono::nanoseconds loss_time{};
  Keeper* keeper = nullptr;
};

/// Messages of the providers have one tag.
inline constexpr std::uint32_t kTag = 0x7261696c;
/// A try to make a rail takes no longer: to connect (a packet that is lost meanwhile is repeated
/// after a second, which a new try is sooner than), and then to be verified.
inline constexpr auto kConnectTime = std::chrono::seconds(1);
inline constexpr auto kTryTime = std::chrono::seconds(3);

}  // namespace ropewalk::transport::rails
