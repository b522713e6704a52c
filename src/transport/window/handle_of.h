// Handles of window drivers: a magic that says which driver's, and where its acceptor is.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <optional>
#include <type_traits>

#include "transport/transport.h"

namespace ropewalk::transport::window {

/// `Place` without gaps whose bytes would travel unset.
template <typename Place, std::size_t kMagicBytes>
struct HandleOf {
  std::array<char, kMagicBytes> magic;
  Place location;
  static_assert(std::is_trivially_copyable_v<Place> && kMagicBytes + sizeof(Place) <= kHandleBytes);
};

template <typename Place, std::size_t kMagicBytes>
Handle encode_handle(const std::array<char, kMagicBytes>& magic, const Place& location) {
  const HandleOf<Place, kMagicBytes> layout{magic, location};
  Handle handle{};
  std::memcpy(handle.data(), &layout, sizeof layout);
  return handle;
}

/// @return nothing for another driver's handle
template <typename Place, std::size_t kMagicBytes>
std::optional<Place> decode_handle(const std::array<char, kMagicBytes>& magic,
                                   const Handle& handle) {
  HandleOf<Place, kMagicBytes> layout{};
  std::memcpy(&layout, handle.data(), sizeof layout);
  if (layout.magic != magic) return std::nullopt;
  return layout.location;
}

}  // namespace ropewalk::transport::window
