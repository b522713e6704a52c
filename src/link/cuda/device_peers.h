// The windows through which the GPUs of one host write to each other.
//
// Two ranks whose GPUs have access to each other's memory (by peer access within a process, by CUDA
// IPC between processes) write windows in device memory. A pair without access, or with access
// denied by the settings PEER_ACCESS and PEER_ACCESS_DENY, has two windows of its own in pinned
// host memory, which every GPU can access. The layout of the links is the same in both.
//
// Peer access that CUDA reports is tried before use, since misconfigured PCIe switches or an IOMMU
// corrupt data without an error: each GPU stores a pattern into the window of every peer, which
// checks it, and loads it back. A pair that fails uses host memory.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/settings.h"
#include "link/cuda/device_window.h"
#include "link/peer_access.h"
#include "link/window_layout.h"
#include "transport/window/device/ipc_memory.h"

namespace ropewalk::link {

/// Threads: one at a time.
class DevicePeers {
 public:
  /// Collective: determines which pairs have access. `process`: a number that is the same on all
  /// ranks of one process and differs between processes (Runtime::token()). @param gpu this rank's,
  /// which is current in every call; it outlives this. @param host_of_rank empty: one host
  /// @throws Error kCuda
  DevicePeers(bootstrap::Bootstrap& bootstrap, const Config& config, std::uint64_t process,
              const transport::window::Gpu& gpu, std::vector<int> host_of_rank);
  ~DevicePeers();
  DevicePeers(const DevicePeers&) = delete;
  DevicePeers& operator=(const DevicePeers&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] bool on_this_host(int rank) const noexcept {
    return host_of(rank) == host_of(rank_);
  }
  /// Index of a rank among those of its host.
  [[nodiscard]] int number_on_host(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].number_on_host;
  }
  /// The largest number of ranks on one host.
  [[nodiscard]] int most_on_a_host() const noexcept { return most_on_a_host_; }
  /// Which ranks access whose memory; after open_windows(), without pairs whose trial failed. The
  /// same on all ranks.
  [[nodiscard]] const PeerAccess& access() const noexcept { return access_; }
  /// Whether this rank and a rank of its host have access to each other's memory.
  [[nodiscard]] bool reaches(int rank) const noexcept { return access_.between(rank_, rank); }
  /// The largest number of ranks on one GPU; the same on all ranks.
  [[nodiscard]] int most_on_one_gpu() const noexcept { return most_on_one_gpu_; }
  [[nodiscard]] bool same_process(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].same_process;
  }

  /// Layouts of the windows: those in device memory, which all links of a rank share, and the two
  /// windows of a pair in host memory. The same on all ranks.
  struct Layouts {
    WindowLayout device;
    WindowLayout host;    ///< of a pair: 0 is the lower rank
    WindowLayout hybrid;  ///< as `host`, for pairs with access, beside `device`
    WindowLayout mapped;  ///< as `host`, of a pair of different hosts (device_mapped_windows.h)
  };
  /// Collective: allocates zeroed windows, opens those of the other ranks of this host, and tries
  /// them. Uses `stream`.
  /// @throws Error kCuda, kSystem; kInvalidUsage when sizes differ between ranks
  void open_windows(bootstrap::Bootstrap& bootstrap, const Layouts& layouts, cudaStream_t stream,
                    Deadline deadline);
  /// A rank's window in device memory, at this GPU's address; null unless reaches(rank).
  [[nodiscard]] std::byte* window(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].window;
  }
  /// The window that `rank`, this rank or `peer`, reads: one of the pair's two in host memory.
  /// @pre both are on one host and have no access to each other's memory
  [[nodiscard]] std::byte* host_window(int peer, int rank) const noexcept;
  /// Collective: allocates two windows in host memory for each pair of ranks of one host with
  /// access to each other's memory.
  /// @throws Error kCuda, kSystem
  void open_hybrid_windows(bootstrap::Bootstrap& bootstrap, const Layouts& layouts,
                           Deadline deadline);
  [[nodiscard]] bool has_hybrid_windows() const noexcept { return hybrid_ != nullptr; }
  /// Collective: zeroed pinned memory that all ranks share.
  /// @pre all are on one host; `bytes` is the same on all
  /// @throws Error kCuda, kSystem
  std::unique_ptr<PinnedMemory> share_with_all(bootstrap::Bootstrap& bootstrap, std::size_t bytes,
                                               Deadline deadline);
  /// As host_window(). @pre has_hybrid_windows()
  [[nodiscard]] std::byte* hybrid_window(int peer, int rank) const noexcept;
  /// Where a rank of this host reads the others' tags (executor/block/launch.h), at this GPU's
  /// address; null for a rank of another host.
  [[nodiscard]] std::byte* board(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].board;
  }
  /// Bytes of this rank's window in device memory.
  [[nodiscard]] std::size_t device_bytes() const noexcept {
    return own_ == nullptr ? 0 : own_->bytes();
  }

 private:
  struct Peer {
    bool same_process = false;
    int number_on_host = 0;
    std::byte* window = nullptr;
    std::byte* board = nullptr;
    std::byte* host_windows = nullptr;     // two
    std::byte* hybrid_windows = nullptr;   // two
    std::shared_ptr<DeviceMemory> shared;  // if the rank is in this process
    transport::window::IpcMemory opened;   // if it is in another process
  };

  [[nodiscard]] int host_of(int rank) const noexcept {
    return host_of_rank_.empty() ? 0 : host_of_rank_[static_cast<std::size_t>(rank)];
  }
  void open_device_windows(bootstrap::Bootstrap& bootstrap, const WindowLayout& layout,
                           cudaStream_t stream);
  // Tries the open windows, and closes those that fail.
  void try_windows(bootstrap::Bootstrap& bootstrap, cudaStream_t stream);
  void agree(bootstrap::Bootstrap& bootstrap);
  void open_host_windows(bootstrap::Bootstrap& bootstrap, const Layouts& layouts,
                         Deadline deadline);
  [[nodiscard]] std::vector<int> ranks_of_this_host() const;
  // Collective: zeroed memory that the ranks of this host share; null for `bytes` of 0.
  // `window_bytes` must be the same on all ranks.
  std::unique_ptr<PinnedMemory> share_on_host(bootstrap::Bootstrap& bootstrap, std::size_t bytes,
                                              std::size_t window_bytes, Deadline deadline);
  // Of a pair's two windows, the one that `rank` reads.
  [[nodiscard]] std::byte* of_pair(std::byte* both, std::size_t bytes, int peer,
                                   int rank) const noexcept;

  int rank_;
  int size_;
  const transport::window::Gpu& gpu_;
  std::vector<int> host_of_rank_;
  int most_on_a_host_ = 1;
  ShmBacking backing_;
  int most_on_one_gpu_ = 1;
  std::vector<bool> spoiled_;            // by rank: a test makes the trial find wrong data
  std::vector<PeerAccess::View> views_;  // this rank's, by rank
  PeerAccess access_{{}, {}};
  std::size_t host_window_bytes_ = 0;
  std::size_t hybrid_window_bytes_ = 0;
  std::vector<Peer> peers_;
  std::shared_ptr<DeviceMemory> own_;  // shared with the ranks of this process that write it
  std::unique_ptr<PinnedMemory> host_;
  std::unique_ptr<PinnedMemory> hybrid_;
};

}  // namespace ropewalk::link
