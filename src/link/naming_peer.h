// Errors of a transport know no ranks: the links add them.
#pragma once

#include <string_view>
#include <utility>

#include "core/error.h"

namespace ropewalk::link {

/// What `body` returns. @throws Error as it does, the text beginning with "`action` rank `peer`: "
template <typename Body>
auto naming_peer(int peer, std::string_view action, Body&& body) {
  try {
    return std::forward<Body>(body)();
  } catch (const Error& error) {
    throw Error(error.code(), "{} rank {}: {}", action, peer, error.what());
  }
}

}  // namespace ropewalk::link
