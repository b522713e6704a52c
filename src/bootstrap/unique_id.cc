#include "bootstrap/unique_id.h"

#include <sodium.h>

#include <algorithm>
#include <cstring>
#include <string_view>

#include "bootstrap/handshake.h"
#include "bootstrap/wire.h"
#include "core/error.h"

namespace ropewalk::bootstrap {
namespace {

constexpr std::array<unsigned char, 8> kMagic = {'R', 'W', 'u', 'i', 'd', 0, 0, 1};
constexpr std::size_t kChecksumBytes = 16;
constexpr std::size_t kChecksummedBytes = kUniqueIdBytes - kChecksumBytes;

static_assert(kChecksumBytes >= crypto_generichash_BYTES_MIN);

std::array<unsigned char, kChecksumBytes> checksum(std::span<const std::byte> bytes) {
  std::array<unsigned char, kChecksumBytes> sum{};
  crypto_generichash(sum.data(), sum.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                     kChecksummedBytes, nullptr, 0);
  return sum;
}

[[noreturn]] void refuse(std::string_view why) {
  throw Error(Errc::kInvalidArgument, "not a Ropewalk unique id: {}", why);
}

}  // namespace

void write_address(WireWriter& out, const SocketAddress& address) {
  out.number(static_cast<std::uint16_t>(address.family() == AF_INET6 ? 6 : 4));
  out.number(address.port());
  out.number(address.scope());
  out.number(std::uint32_t{0});
  out.raw(address.host_bytes());
}

SocketAddress read_address(WireReader& in) {
  const auto family = in.number<std::uint16_t>();
  const auto port = in.number<std::uint16_t>();
  const auto scope = in.number<std::uint32_t>();
  (void)in.number<std::uint32_t>();
  SocketAddress::HostBytes host{};
  in.fill(host);
  if (family != 4 && family != 6) {
    throw Error(Errc::kInvalidArgument, "address family {} is neither 4 nor 6", family);
  }
  return SocketAddress::of(family == 6 ? AF_INET6 : AF_INET, host, port, scope);
}

UniqueId encode_unique_id(const UniqueIdParts& parts) {
  require_sodium();
  WireWriter out;
  out.raw(kMagic);
  out.raw(parts.service);
  write_address(out, parts.address);
  out.raw(parts.secret);
  UniqueId id{};
  std::copy(out.bytes().begin(), out.bytes().end(), id.begin());
  const auto sum = checksum(id);
  std::copy_n(reinterpret_cast<const std::byte*>(sum.data()), sum.size(),
              id.begin() + kChecksummedBytes);
  return id;
}

UniqueIdParts decode_unique_id(std::span<const std::byte> bytes) {
  require_sodium();
  if (bytes.size() != kUniqueIdBytes) {
    refuse(fmt::format("it has {} bytes instead of {}", bytes.size(), kUniqueIdBytes));
  }
  if (std::all_of(bytes.begin(), bytes.end(), [](std::byte b) { return b == std::byte{0}; })) {
    refuse("all bytes are zero; was it received from the rank that made it?");
  }
  WireReader in(bytes);
  std::array<unsigned char, 8> magic{};
  in.fill(magic);
  if (!std::equal(magic.begin(), magic.begin() + 5, kMagic.begin())) {
    refuse("it does not begin as one");
  }
  if (magic != kMagic) refuse("it was made by another version of Ropewalk");
  const auto sum = checksum(bytes);
  if (std::memcmp(sum.data(), bytes.data() + kChecksummedBytes, sum.size()) != 0) {
    refuse("its checksum is wrong, it was damaged or truncated in transit");
  }
  UniqueIdParts parts;
  in.fill(parts.service);
  parts.address = read_address(in);
  in.fill(parts.secret);
  return parts;
}

}  // namespace ropewalk::bootstrap
