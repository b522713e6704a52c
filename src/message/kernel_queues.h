// Queues of messages from kernels of one rank to kernels of another (send() and receive() of
// include/ropewalk/device.cuh): a window whose memory they are.
//
// A queue is a ring of lines that carry their own numbers, as protocol LL of collectives does
// (NCCL's LL: eight bytes of data and two flags in a store of 16; Hu et al., Demystifying NCCL,
// 2025, section III-B), and a word in which the receiver tells how many it has taken. Each rank's
// part of the window has the lines that the others write, and the words by which they tell. So
// where ranks reach each other's parts, kernels do all by themselves.
//
// Where a link carries, both ends of a queue are in the rank's own pinned memory instead. There the
// messenger's thread finds lines that kernels wrote, hands their data to the link, and writes what
// links bring into lines for the kernels; it tells the other rank what was taken, too. Kernels do
// not know the difference.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "message/device_kernels.h"
#include "message/frame.h"
#include "ropewalk/device_window.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::message {

class Window;

/// Where things are in a rank's part.
class QueueLayout {
 public:
  /// The most that one queue has room for.
  static constexpr std::size_t kMostBytes = std::size_t{16} << 20U;

  [[nodiscard]] static bool is_size(std::size_t bytes) noexcept {
    return bytes >= 1 && bytes <= kMostBytes;
  }

  /// @param bytes may be sent before the peer has received any. A queue has a third more lines at
  ///   least, a power of two and 64 in all: a receiver tells what it took by quarters of the ring.
  QueueLayout(int ranks, int slots, std::size_t bytes);

  [[nodiscard]] std::uint64_t lines() const noexcept { return lines_; }
  /// Of the whole part.
  [[nodiscard]] std::size_t bytes() const noexcept;
  /// The lines that `source` writes.
  [[nodiscard]] std::size_t lines_offset(int source, int slot) const noexcept;
  /// The word in which `peer` tells what it took of this part's owner.
  [[nodiscard]] std::size_t taken_offset(int peer, int slot) const noexcept;

 private:
  [[nodiscard]] std::size_t index(int rank, int slot) const noexcept;
  std::size_t queues_;
  int slots_;
  std::uint64_t lines_;
};

/// What a message of a queue by a stream needs.
struct QueueCall {
  DeviceCall call;
  const LoadedKernels* kernels = nullptr;
};

/// As one rank has them. Threads: one at a time, except for what kernels do.
class KernelQueues {
 public:
  /// Sends a frame with data over the link to a rank.
  using Post = std::function<void(int, const Frame&, std::span<const std::byte>)>;

  /// @param window has its memory, of that layout
  /// @throws Error kCuda
  KernelQueues(const Window& window, const QueueLayout& layout);
  /// No kernel uses them any more.
  ~KernelQueues();
  KernelQueues(const KernelQueues&) = delete;
  KernelQueues& operator=(const KernelQueues&) = delete;

  [[nodiscard]] std::uint64_t lines() const noexcept { return layout_.lines(); }
  /// As kernels take them, by peer and slot.
  [[nodiscard]] const std::vector<rwDeviceQueue>& queues() const noexcept { return queues_; }
  /// Whether a link carries any.
  [[nodiscard]] bool carried() const noexcept { return !links_.empty(); }

  /// What its messages by streams need, from the first on. Threads: who enqueues them, as below.
  std::optional<QueueCall>& call() noexcept { return call_; }
  /// Whether the GPU was found to reach this memory. Not whether it was freed since.
  [[nodiscard]] bool is_accessible(const void* memory, std::size_t bytes) const noexcept;
  void add_accessible(const void* memory, std::size_t bytes) noexcept;

  /// Hands to links what kernels wrote, and tell; nothing any more after stop().
  /// @return true when anything moved
  bool poll(const Post& post);
  /// Hands on all that kernels which have ended wrote.
  void drain(const Post& post);
  void stop() noexcept { stopped_ = true; }
  /// The ranks that links carry.
  [[nodiscard]] std::vector<int> carried_peers() const;
  /// Of what a link brought. @throws Error kPeerLost for what cannot be right
  void deliver(int source, int slot, std::span<const std::byte> data);
  void hear_taken(int peer, int slot, std::uint64_t taken);

 private:
  // To and from one rank on one slot, in pinned memory.
  struct Link {
    int peer = 0;
    int slot = 0;
    std::uint64_t* out = nullptr;  // two words a line
    std::uint64_t* in = nullptr;
    std::uint64_t* out_taken = nullptr;
    std::uint64_t* in_taken = nullptr;
    std::uint64_t sent = 0;     // lines handed to the link,
    std::uint64_t brought = 0;  // and brought by it
    std::uint64_t heard = 0;    // of `sent`, as the peer told
    std::uint64_t told = 0;     // of `brought`, to the peer
    unsigned idle = 0;          // turns in which nothing moved
  };

  Link& link(int peer, int slot);
  bool poll(Link& link, const Post& post);
  void make_links(const std::vector<int>& peers, int slots);
  void give() noexcept;

  QueueLayout layout_;
  transport::window::Gpu* gpu_;
  std::uint32_t number_;
  void* memory_ = nullptr;   // pinned, of links_
  std::vector<Link> links_;  // by peer and slot
  std::vector<rwDeviceQueue> queues_;
  std::vector<std::uint64_t> gathered_;
  unsigned turn_ = 0;
  bool stopped_ = false;
  std::optional<QueueCall> call_;
  std::array<std::span<const std::byte>, 8> accessible_{};  // the last ones
  std::size_t next_accessible_ = 0;
};

}  // namespace ropewalk::message
