// What kernels do to windows by themselves (include/ropewalk/device.cuh), as the messenger sees it:
// the handles that they take, the ring in which they ask for links, and the words by which they are
// ended and tell why they stopped.
//
// Kernels count signals in GPU memory. The ring is in pinned memory of the host, and so is the
// number of its entries that are done; an entry needs no order among its words, since each says in
// which lap it was written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "core/error.h"
#include "message/device_batch.h"
#include "message/operation.h"
#include "ropewalk/device_window.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::message {

/// Of one GPU; or of the host, whose threads run the same functions on windows in its memory.
/// Threads: one at a time, except for what kernels do.
class KernelCalls {
 public:
  /// @param gpu null for the host
  /// @throws Error kCuda
  explicit KernelCalls(transport::window::Gpu* gpu);
  /// Waits for what is on the GPU. @pre abort() was called
  ~KernelCalls();
  KernelCalls(const KernelCalls&) = delete;
  KernelCalls& operator=(const KernelCalls&) = delete;

  /// What kernels take for `window`. Counting begins at what the host has counted by now.
  /// @param timeout of their waits; 0: none
  /// @throws Error kCuda
  const rwDeviceWindow& handle(Window& window, std::chrono::nanoseconds timeout);
  /// A batch as kernels launch it; it may outlive this. @pre reason_against_kernels() has none
  /// @throws Error kCuda
  std::shared_ptr<const DeviceBatch> batch(std::span<const OperationSpec> specs,
                                           std::chrono::nanoseconds timeout);
  /// Kernels count from now on what `spec`, a signal or a wait, does; from where the host is.
  /// @pre handle() was called
  void count_on_gpu(const OperationSpec& spec);
  /// No kernel uses `window` any more.
  void forget(const Window& window);

  /// Starts what kernels have asked for by `start`, and tells them of what is done.
  /// @return true when anything moved
  bool poll(const std::function<void(Operation&)>& start);
  [[nodiscard]] bool busy() const noexcept { return !under_way_.empty(); }
  [[nodiscard]] bool busy(const Window& window) const;
  /// Whether kernels may ask for links at any time.
  [[nodiscard]] bool watched() const noexcept { return needs_links_; }
  /// Why a kernel stopped, or what it asked for failed.
  [[nodiscard]] std::optional<Error> fault() const;
  /// Ends the waits of kernels, for good.
  void abort() noexcept;

 private:
  struct Shared;  // with kernels, in pinned memory
  struct Tables;  // of one window, for kernels
  struct Asked {
    std::unique_ptr<Operation> operation;
    std::vector<std::byte> data;  // of a short put
  };

  void* take(std::size_t bytes);
  void fill(void* memory, std::span<const std::byte> image);
  void give(void* memory) noexcept { give(gpu_, memory); }
  static void give(transport::window::Gpu* gpu, void* memory) noexcept;
  rwDeviceBatchCount count_of(const OperationSpec& spec) const;
  std::optional<OperationSpec> read(std::uint64_t ticket, std::vector<std::byte>& data);

  transport::window::Gpu* gpu_;
  void* memory_ = nullptr;  // of shared_
  Shared* shared_ = nullptr;
  std::uint64_t shift_ = 0;         // from the host's to the GPU's address of it
  std::uint64_t* heads_ = nullptr;  // head and done_seen, near the GPU
  std::map<std::uint32_t, std::unique_ptr<Tables>> tables_;
  std::deque<Asked> under_way_;
  std::uint64_t read_ = 0;
  std::uint64_t done_ = 0;
  bool needs_links_ = false;
  std::optional<Error> fault_;
};

}  // namespace ropewalk::message
