// Handles of window drivers: a magic that says which driver's, and where its acceptor is.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <type_traits>

#include "transport/transport.h"

namespace ropewalk::transport::window {

/// `Address` without gaps whose bytes would travel unset.
template <typename Address, std::size_t kMagicBytes>
struct HandleOf {
  std::array<char, kMagicBytes> magic;
  Address address;
  static_assert(std::is_trivially_copyable_v<Address> &&
                kMagicBytes + sizeof(Address) <= kHandleBytes);
};

template <typename Address, std::size_t kMagicBytes>
Handle encode_handle(const std::array<char, kMagicBytes>& magic, const Address& address) {
  const HandleOf<Address, kMagicBytes> layout{magic, address};
  Handle handle{};
  std::memcpy(handle.data(), &layout, sizeof layout);
  return handle;
}

/// @return nothing for another driver's handle
template <typename Address, std::size_t kMagicBytes>
std::optional<Address> decode_handle(const std::array<char, kMagicBytes>& magic,
                                     const Handle& handle) {
  HandleOf<Address, kMagicBytes> layout{};
  std::memcpy(&layout, handle.data(), sizeof layout);
  if (layout.magic != magic) return std::nullopt;
  return layout.address;
}

}  // namespace ropewalk::transport::window
