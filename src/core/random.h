// Random bytes from the system, for secrets, unguessable names and test patterns.
#pragma once

#include <cstddef>
#include <span>

namespace ropewalk {

/// Fills `bytes` from getrandom(2). @throws Error kSystem
void fill_random(std::span<std::byte> bytes);

}  // namespace ropewalk
