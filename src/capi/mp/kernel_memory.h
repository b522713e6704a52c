// Memory of the host that kernels of this rank's GPU reach, too.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace ropewalk::mp {

/// Gives memory at addresses that are the same for the host and for the GPU. Of a rank without a
/// GPU, where threads of the host run what kernels do, it is any memory.
///
/// Lifetime: what it gave is freed with it. Threads: one at a time.
class KernelMemory {
 public:
  /// `gpu` negative: none.
  explicit KernelMemory(int gpu) : gpu_(gpu) {}
  ~KernelMemory();
  KernelMemory(const KernelMemory&) = delete;
  KernelMemory& operator=(const KernelMemory&) = delete;

  /// Zeroed, and aligned to 4,096 bytes. CUDA may wait for all kernels of the GPU meanwhile.
  /// @throws Failure
  void* allocate(std::size_t bytes);
  /// The address of `word` for kernels. Memory of the host that CUDA does not know is registered
  /// with CUDA, by the page. @throws Failure
  std::uint32_t* reach(std::uint32_t* word);

 private:
  int gpu_;
  std::vector<void*> allocated_;
  std::vector<void*> registered_;
};

}  // namespace ropewalk::mp
