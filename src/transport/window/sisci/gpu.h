// What registering a GPU's memory with an adapter needs of CUDA: the allocation around an address.
//
// CUDA's driver library is found at run time.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace ropewalk::transport::window::sisci {

/// Threads: any.
class Gpu {
 public:
  /// GPUs map memory for other devices in pages of this size.
  static constexpr std::size_t kPage = 64 << 10;

  virtual ~Gpu() = default;
  struct Allocation {
    std::byte* begin = nullptr;
    std::size_t bytes = 0;
  };
  /// The allocation that holds `data`, made ready for access by other devices: what CUDA writes to
  /// it synchronously is there when the call returns.
  /// @return nothing, with the reason in words, when it is no memory of a GPU
  virtual std::optional<Allocation> allocation(const void* data, std::string& why_not) const = 0;

  // For the trial that decides whether GPU memory is offered at all.
  /// Memory of the current GPU, of whole pages; null when there is none.
  virtual std::byte* allocate(std::size_t bytes) const = 0;
  virtual void release(std::byte* data) const = 0;
  virtual bool write(std::byte* device, const void* host, std::size_t bytes) const = 0;
  virtual bool read(void* host, const std::byte* device, std::size_t bytes) const = 0;
};

/// Over libcuda. @return null, with the reason in words, without GPUs
std::unique_ptr<Gpu> open_gpu(const std::string& library, std::string& why_not);

}  // namespace ropewalk::transport::window::sisci
