// What the providers over message-passing libraries have in common in taking memory of GPUs: CUDA,
// checksums of what the CPU cannot read, and trials by patterns.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/settings.h"
#include "transport/window/device/driver_cuda.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::transport::messaging {

/// CUDA for the devices of a provider.
struct FoundCuda {
  std::shared_ptr<window::DriverCuda> cuda;  ///< null: no GPU memory is taken
  std::string why_not;
};
/// None also with VERIFY=all where CUDA loads kernels at their first launch: checksums are made
/// after copies by CUDA.
[[nodiscard]] FoundCuda find_cuda(const Config& config);

/// wire_checksum() of a GPU's memory, by a copy to the host. Waits.
/// @throws Error kCuda, kTimeout
[[nodiscard]] std::uint64_t gpu_checksum(window::Gpu& gpu, const void* data, std::size_t bytes);

/// What came of GPU memory on a device.
struct GpuTrials {
  bool taken = false;  ///< by the device
  bool right = true;   ///< of all GPUs that were tried
  std::string words;   ///< by which means of each GPU, or why not
};
/// Calls `try_one`, which gives the means in words or throws an Error, with each GPU of this
/// process, and makes a context on each for that.
[[nodiscard]] GpuTrials try_each_gpu(window::DriverCuda& driver,
                                     const std::function<std::string(window::Gpu&)>& try_one);

/// Memory of a GPU and of the host, between which a provider is to move patterns. A pattern is
/// never drawn twice, so that none has to be removed.
class TrialMemory {
 public:
  /// @param longest bytes of a pattern, at most half of kGpuBytes
  /// @throws Error kCuda
  TrialMemory(window::Gpu& gpu, std::size_t longest);

  /// Blocks of its own, which an adapter may be given.
  static constexpr std::size_t kGpuBytes = std::size_t{2} << 20;
  [[nodiscard]] window::CuPointer gpu_data() const noexcept { return buffer_.data(); }
  [[nodiscard]] std::byte* on_gpu() const noexcept {
    return static_cast<std::byte*>(buffer_.pointer());
  }
  /// All of the host's: sent() and seen().
  [[nodiscard]] std::span<std::byte> host() noexcept { return host_; }
  /// Where patterns leave from the host.
  [[nodiscard]] std::byte* sent() noexcept { return host_.data(); }
  /// Where they come.
  [[nodiscard]] std::byte* seen() noexcept { return host_.data() + host_.size() / 2; }

  /// Draws a pattern, to sent() or to the begin of the GPU's memory.
  void draw_on_host(std::size_t bytes);
  void draw_on_gpu(std::size_t bytes);
  /// Whether the last pattern is there.
  [[nodiscard]] bool is_seen() const;
  [[nodiscard]] bool is_on_gpu(std::size_t offset);

 private:
  void draw(std::size_t bytes);

  window::Gpu& gpu_;
  window::DeviceBuffer buffer_;
  std::vector<std::byte> host_;
  std::vector<std::byte> pattern_;  // the last
};

}  // namespace ropewalk::transport::messaging
