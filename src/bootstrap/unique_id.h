// The unique id of a communicator: where its ranks meet, and the secret that they prove to hold.
//
// 128 bytes, the size of rwUniqueId and ncclUniqueId:
//   0   8  "RWuid" and version 1
//   8   8  service id: public, random; tells a stale id from a lost connection
//  16  28  address of the root service: family, port, scope, 16 bytes of IPv4 or IPv6 address
//  44  32  secret
//  76  36  zero
// 112  16  BLAKE2b over the bytes before (recognises damage, proves nothing)
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "core/settings.h"
#include "core/socket_address.h"

namespace ropewalk::bootstrap {

class Context;

inline constexpr std::size_t kUniqueIdBytes = 128;
inline constexpr std::size_t kSecretBytes = 32;

using UniqueId = std::array<std::byte, kUniqueIdBytes>;
using Secret = std::array<unsigned char, kSecretBytes>;
/// Public random number of one root service.
using ServiceId = std::array<unsigned char, 8>;

struct UniqueIdParts {
  ServiceId service{};
  SocketAddress address;
  Secret secret{};
};

UniqueId encode_unique_id(const UniqueIdParts& parts);

/// @throws Error kInvalidArgument "not a Ropewalk unique id: ..." for wrong length, random bytes,
///         another version or damage
UniqueIdParts decode_unique_id(std::span<const std::byte> bytes);

/// Starts a root service in this process and returns the id that leads to it. The service ends when
/// all ranks of one communicator have joined, when joining failed, or after TIMEOUT. One id serves
/// one communicator.
///
/// @throws Error kInvalidArgument when no interface matches SOCKET_IFNAME, kSystem when it cannot
/// be
///         listened on
UniqueId make_unique_id(const Config& config);
UniqueId make_unique_id(const Config& config, Context& context);

}  // namespace ropewalk::bootstrap
