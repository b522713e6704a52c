// The network links of a rank's GPU: FIFOs in pinned host memory, of protocol simple with slots in
// the GPU's where the transport takes that and a setting wants it. Kernels write and read them, and
// threads move the data over a transport. The threads divide the channels among them, since one
// core copies less than a GPU's link to the host carries.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/deadline.h"
#include "executor/link_end.h"
#include "link/gpu_slots.h"
#include "link/memory_pool.h"
#include "link/network_links.h"
#include "link/progress_thread.h"

namespace ropewalk::link {

/// Threads: one at a time. Its device is current in every call.
class DeviceNetwork {
 public:
  static constexpr int kChannels = 16;
  /// Options of the links between so many ranks.
  static executor::FifoShape shape_for(int ranks);
  [[nodiscard]] executor::FifoShape shape() const { return shape_for(ranks_); }

  struct Options {
    /// Called once for each thread: only one thread uses a transport.
    std::function<std::unique_ptr<transport::Transport>()> make_transport;
    bool seals = false;
    bool has_ll = false;                   ///< links also have the protocol ll
    executor::Traffic* traffic = nullptr;  ///< counts what links send; null: not counted
    int threads = 1;                       ///< for long data, at least 1; may differ between ranks
    /// For the threads, as the transport's devices are placed; empty: any.
    std::function<std::vector<int>(const transport::Transport&)> cpus;
    /// Of slots in GPU memory, and the transport's devices that links may take. Sizes are set here.
    GpuSlots::Options gpu_slots;
    std::vector<int> nics;
    Deadline deadline = kNoDeadline;  ///< of what ranks tell each other of that
  };

  /// Collective. `bootstrap` outlives this.
  /// @param on_error as of ProgressThread; called once at most for each thread
  /// @throws Error kCuda, and as make_transport
  DeviceNetwork(bootstrap::Bootstrap& bootstrap, const Rails& rails, const Options& options,
                const std::function<void(const Error&)>& on_error);

  /// The ends of the link to (from) a rank of another host, of protocol simple or ll. They may be
  /// used before they are connected. @throws Error kCuda, kSystem, kPeerLost
  executor::SendEnd send_end(executor::Protocol protocol, int channel, int peer);
  executor::ReceiveEnd receive_end(executor::Protocol protocol, int channel, int peer);
  /// For launches: LaunchLinks::network_tag and network_board; null without ll.
  [[nodiscard]] executor::CallTag* own_tag() const noexcept { return own_tag_; }
  [[nodiscard]] const executor::CallTag* board() const noexcept { return board_; }

  /// Waits until everything that kernels published has been sent. @return false at the deadline
  bool drain(Deadline deadline);

  /// Whether kernels must not start before connected(): slots are in GPU memory, and the transport
  /// calls CUDA for it. CUDA may wait for a kernel when that memory is registered, and the kernel
  /// for the link.
  [[nodiscard]] bool connects_first() const noexcept { return connects_first_; }
  /// Every link that was asked for is connected. Keeps no thread from its links once it is so.
  [[nodiscard]] bool connected();
  /// Kernels that use links are about to start.
  void wake() noexcept {
    for (auto& thread : threads_) thread->wake();
  }
  /// The first thread's error that stopped a link.
  [[nodiscard]] std::optional<Error> failure() const;
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  /// Whether this rank's slots of protocol simple are in its GPU's memory.
  [[nodiscard]] bool slots_on_gpu() const noexcept { return slots_ != nullptr && slots_->on_gpu(); }
  /// Bytes of pinned host memory.
  [[nodiscard]] std::size_t memory_bytes() const noexcept { return pool_.bytes(); }
  /// Bytes of the GPU's memory.
  [[nodiscard]] std::size_t gpu_memory_bytes() const noexcept {
    return slots_ != nullptr ? slots_->memory_bytes() : 0;
  }

 private:
  // The last thread serves the links of ll alone, so that long chunks do not delay them.
  ProgressThread& thread_of(executor::Protocol protocol, int channel) {
    if (protocol == executor::Protocol::kLl) return *threads_.back();
    return *threads_[static_cast<std::size_t>(channel % simple_threads_)];
  }

  template <typename Condition>
  bool all_links(Condition&& condition);

  // Its memory is reserved before the thread's lock is taken, which the thread needs for what a
  // kernel waits for.
  template <typename Function>
  auto with_links_of(executor::Protocol protocol, int channel, Function&& function);

  int ranks_;
  MemoryPool pool_;                  // pinned memory that all GPUs see at its own address
  std::unique_ptr<GpuSlots> slots_;  // null: all slots in the pool
  bool connects_first_ = false;
  bool connected_ = true;  // since a link was last asked for
  executor::CallTag* own_tag_ = nullptr;
  executor::CallTag* board_ = nullptr;
  std::string name_;
  int simple_threads_;
  std::vector<std::unique_ptr<ProgressThread>> threads_;  // use the memory
};

}  // namespace ropewalk::link
