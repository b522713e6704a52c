// The network links of a rank's GPU: FIFOs in pinned memory of the host, which kernels write and
// read and a thread moves over a transport.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "executor/cuda/owned.h"
#include "executor/link_end.h"
#include "link/network_links.h"
#include "link/progress_thread.h"

namespace ropewalk::link {

/// Pinned memory that all GPUs see at its own address, in pieces that are never given back. Taken
/// in large blocks, the first at once: taking more later may wait for a kernel.
///
/// Threads: one at a time.
class PinnedPool {
 public:
  /// @throws Error kCuda
  explicit PinnedPool(std::size_t block_bytes);
  /// Page-aligned, zero.
  std::byte* take(std::size_t bytes);
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }

 private:
  void add_block(std::size_t bytes);

  std::size_t block_bytes_;
  std::size_t bytes_ = 0;
  std::vector<std::unique_ptr<executor::PinnedBuffer>> blocks_;
  std::byte* next_ = nullptr;
  std::size_t left_ = 0;
};

/// Threads: one at a time. Its device is current in every call.
class DeviceNetwork {
 public:
  static constexpr int kChannels = 16;
  static executor::FifoShape shape();

  /// Links over `transport`. `bootstrap` outlives this.
  /// @param traffic  where links count what they send; null: nowhere
  /// @param cpus     for the thread; empty: any
  /// @param on_error as of ProgressThread
  /// @throws Error kCuda
  DeviceNetwork(bootstrap::Bootstrap& bootstrap, std::unique_ptr<transport::Transport> transport,
                const Rails& rails, bool seals, executor::Traffic* traffic, std::vector<int> cpus,
                std::function<void(const Error&)> on_error);

  /// The ends of the link to (from) a rank of another host; they may be used at once, and connect
  /// meanwhile. @throws Error kCuda, kSystem, kPeerLost
  executor::SendEnd send_end(int channel, int peer);
  executor::ReceiveEnd receive_end(int channel, int peer);

  /// Waits until all that kernels have published has gone. @return false when it has not in time
  bool drain(Deadline deadline);

  /// Kernels that use links are about to start.
  void wake() noexcept { thread_->wake(); }
  [[nodiscard]] std::optional<Error> failure() const { return thread_->failure(); }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Pinned memory of the host.
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return pool_.bytes(); }

 private:
  PinnedPool pool_;
  std::string name_;
  std::unique_ptr<ProgressThread> thread_;  // uses the pool's memory
};

}  // namespace ropewalk::link
