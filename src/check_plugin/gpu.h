// GPU memory through NVIDIA's driver library, opened at run time.
#pragma once

#include <cstddef>
#include <string>

namespace ropewalk::check_plugin {

/// The GPUs of this process. CUDA does not survive a fork: for children only.
class Gpus {
 public:
  /// Opens libcuda.so.1 once. @return the reason when there is no GPU to use, else empty
  static const std::string& why_none();
  [[nodiscard]] static int count();
  /// Makes the primary context of a GPU current in this thread. @throws Error kCuda
  static void use(int gpu);
  /// Memory of the current GPU. @throws Error kCuda
  static void* allocate(std::size_t bytes);
  static void free(void* memory);
  /// Copies that have ended when they return. @throws Error kCuda
  static void to_gpu(void* to, const void* from, std::size_t bytes);
  static void to_host(void* to, const void* from, std::size_t bytes);
};

}  // namespace ropewalk::check_plugin
