// Numbers of ranks, GPUs and nodes are int, as in the C API; containers are indexed by std::size_t.

#pragma once

#include <cstddef>

namespace ropewalk {

/// @param index not negative
constexpr std::size_t at(int index) { return static_cast<std::size_t>(index); }

}  // namespace ropewalk
