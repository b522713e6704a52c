// This process's use of system resources, to find what a plugin leaves behind.
#pragma once

#include <cstddef>
#include <string>

namespace ropewalk::check_plugin {

struct Usage {
  std::size_t descriptors = 0;
  std::size_t threads = 0;
  std::size_t mappings = 0;
  std::size_t heap_bytes = 0;      ///< in use, of malloc
  std::size_t resident_bytes = 0;  ///< anonymous and shared memory that was touched
  std::size_t segments = 0;        ///< names in /dev/shm, of all processes
};

Usage usage_now();

}  // namespace ropewalk::check_plugin
