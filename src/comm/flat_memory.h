// Buffers of a communicator's ranks, mapped side by side: rank r's at `base + r * stride` in one
// range of addresses, so that a kernel finds every rank's by arithmetic. What NCCL's device API
// calls the flat range of a load/store (LSA) team.
//
// Only memory of CUDA's virtual memory functions can be mapped so, with handles that are file
// descriptors; all ranks are on one host, in any processes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::comm {

/// What one rank has mapped, until this is destroyed. Then no work of the GPU may use it; what the
/// other ranks have mapped stays. Threads: one at a time.
class FlatMemory {
 public:
  /// Addresses are reserved in steps of this size, and `stride` is a multiple.
  static constexpr std::uint64_t kStep = std::uint64_t{1} << 32U;

  struct Made {
    std::unique_ptr<FlatMemory> memory;  ///< null on all ranks or on none
    std::string why_not;                 ///< of this rank, or the first rank that could not
  };
  /// Collective. The buffer lies in one allocation, at the same offset in it on all ranks; sizes
  /// may differ.
  /// @throws Error as Communicator::exchange, where a rank died
  static Made map(Communicator& comm, transport::window::Gpu& gpu, void* buffer, std::size_t bytes);
  ~FlatMemory();
  FlatMemory(const FlatMemory&) = delete;
  FlatMemory& operator=(const FlatMemory&) = delete;

  [[nodiscard]] transport::window::Gpu& gpu() const noexcept { return gpu_; }
  /// Where rank 0's buffer begins.
  [[nodiscard]] std::uint64_t base() const noexcept { return range_ + offset_; }
  [[nodiscard]] std::uint64_t stride() const noexcept { return stride_; }
  /// By rank: the bytes of its buffer.
  [[nodiscard]] const std::vector<std::uint64_t>& bytes() const noexcept { return bytes_; }
  /// Where this rank reaches that of `rank`.
  [[nodiscard]] void* at(int rank) const noexcept {
    return reinterpret_cast<void*>(  // NOLINT(performance-no-int-to-ptr): the GPU's
        base() + static_cast<std::uint64_t>(rank) * stride_);
  }

 private:
  explicit FlatMemory(transport::window::Gpu& gpu) : gpu_(gpu) {}
  void map_at(int rank, transport::window::CuAllocation allocation, std::uint64_t bytes);

  transport::window::Gpu& gpu_;
  std::uint64_t range_ = 0;
  std::uint64_t range_bytes_ = 0;
  std::uint64_t stride_ = 0;
  std::uint64_t offset_ = 0;  // of the buffers in their allocations
  std::vector<std::uint64_t> bytes_;
  struct Mapping {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };
  std::vector<Mapping> mapped_;
};

}  // namespace ropewalk::comm
