// The contents of a handle of `auto`: the handles of several providers, the best first.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "transport/transport.h"

namespace ropewalk::transport {

/// Providers by the numbers that handles carry.
enum class PathKind : std::uint8_t { kShm = 1, kSisci, kTcp, kOfi, kPsm2 };
std::string_view name(PathKind kind) noexcept;

struct Offer {
  PathKind kind;
  Handle handle;
};

/// As many of the offers as fit, in their order.
Handle encode(const std::vector<Offer>& offers);
/// @return nothing when this is not a handle of `auto`
std::optional<std::vector<Offer>> decode_offers(const Handle& handle);

}  // namespace ropewalk::transport
