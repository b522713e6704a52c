// A piece of memory by its address, which another process or GPU may have given.
#pragma once

#include <cstddef>

namespace ropewalk::link {

/// Memory that a call uses, or that a rank registered; of no bytes when there is none.
struct BufferRange {
  const void* begin = nullptr;
  std::size_t bytes = 0;
};

}  // namespace ropewalk::link
