// The stand-in for CUDA's library (tests/stand_ins/cuda.cc), and data to send, for tests of drivers
// that take GPU memory.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

namespace ropewalk::transport::window::testing {

/// The stand-in's own functions.
class StandIn {
 public:
  StandIn() : library_(dlopen(RW_STAND_IN_CUDA, RTLD_NOW)) {
    if (library_ == nullptr) std::abort();
  }
  void configure(const char* text) const {
    reinterpret_cast<void (*)(const char*)>(find("stand_in_cuda_configure"))(text);
  }
  [[nodiscard]] int ranges() const {
    return reinterpret_cast<int (*)()>(find("stand_in_cuda_ranges"))();
  }
  /// What this process has of the driver now, in words.
  [[nodiscard]] std::string held() const {
    return reinterpret_cast<const char* (*)()>(find("stand_in_cuda_held"))();
  }
  void restart() const { reinterpret_cast<void (*)()>(find("stand_in_cuda_restart"))(); }

 private:
  void* find(const char* name) const { return dlsym(library_, name); }
  void* library_;
};

/// Bytes that tell locations and seeds apart.
inline std::vector<char> numbered(std::size_t bytes, std::size_t seed) {
  std::vector<char> data(bytes);
  for (std::size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 7 + i / 251 + seed);
  return data;
}

}  // namespace ropewalk::transport::window::testing
