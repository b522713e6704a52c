// A piece of memory by its address, which another process or GPU may have given.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace ropewalk::link {

/// Memory that a call uses, or that a rank registered; of no bytes when there is none.
struct BufferRange {
  const void* begin = nullptr;
  std::size_t bytes = 0;
};

/// By rank: where this rank reaches its buffer, with what keeps it there; null where it does not.
using MappedBuffers = std::vector<std::shared_ptr<std::byte>>;

}  // namespace ropewalk::link
