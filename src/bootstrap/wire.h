// Bytes of messages, little-endian, with every read checked against the end.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "core/error.h"
#include "core/socket_address.h"

namespace ropewalk::bootstrap {

class WireWriter {
 public:
  template <typename T>
  requires std::is_integral_v<T>
  void number(T value) {
    auto bits = static_cast<std::make_unsigned_t<T>>(value);
    for (std::size_t i = 0; i < sizeof(T); ++i) {
      bytes_.push_back(static_cast<std::byte>(bits & 0xff));
      bits = static_cast<std::make_unsigned_t<T>>(static_cast<std::uint64_t>(bits) >> 8);
    }
  }
  void raw(std::span<const std::byte> data) {
    if (data.empty()) return;
    const std::size_t before = bytes_.size();
    bytes_.resize(before + data.size());
    std::memcpy(bytes_.data() + before, data.data(), data.size());
  }
  void raw(std::span<const unsigned char> data) { raw(std::as_bytes(data)); }
  /// Length (32 bits) and bytes.
  void text(std::string_view value) {
    number(static_cast<std::uint32_t>(value.size()));
    raw(std::as_bytes(std::span(value)));
  }
  [[nodiscard]] const std::vector<std::byte>& bytes() const noexcept { return bytes_; }
  [[nodiscard]] std::vector<std::byte> take() noexcept { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

/// Throws Error kInvalidArgument "message is too short" past the end.
class WireReader {
 public:
  explicit WireReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_integral_v<T> T number() {
    const std::span<const std::byte> part = raw(sizeof(T));
    std::uint64_t bits = 0;
    for (std::size_t i = sizeof(T); i-- > 0;)
      bits = (bits << 8) | std::to_integer<std::uint64_t>(part[i]);
    return static_cast<T>(bits);
  }
  std::span<const std::byte> raw(std::size_t count) {
    if (count > bytes_.size()) throw Error(Errc::kInvalidArgument, "message is too short");
    const std::span<const std::byte> part = bytes_.first(count);
    bytes_ = bytes_.subspan(count);
    return part;
  }
  template <typename Array>
  void fill(Array& array) {
    const std::span<const std::byte> part = raw(array.size());
    std::copy(part.begin(), part.end(), std::as_writable_bytes(std::span(array)).begin());
  }
  std::string text(std::size_t longest) {
    const auto count = number<std::uint32_t>();
    if (count > longest) throw Error(Errc::kInvalidArgument, "text in message is too long");
    const std::span<const std::byte> part = raw(count);
    return {reinterpret_cast<const char*>(part.data()), part.size()};
  }
  [[nodiscard]] std::span<const std::byte> rest() const noexcept { return bytes_; }
  [[nodiscard]] bool empty() const noexcept { return bytes_.empty(); }

 private:
  std::span<const std::byte> bytes_;
};

/// 28 bytes: family (4 or 6), port, scope, padding, address.
inline constexpr std::size_t kAddressBytes = 28;
void write_address(WireWriter& out, const SocketAddress& address);
SocketAddress read_address(WireReader& in);

}  // namespace ropewalk::bootstrap
