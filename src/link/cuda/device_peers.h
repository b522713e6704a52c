// How the GPUs of a communicator's ranks reach those of their host: the windows that they write.
//
// Each pair has its own. Two ranks whose GPUs have access to each other's memory (by peer access
// within a process, by CUDA IPC between processes) write windows in device memory. Two that have
// none, or are denied it (settings PEER_ACCESS, PEER_ACCESS_DENY), have two windows for themselves
// in pinned memory of the host, which every GPU reaches. The links in them are the same.
//
// What CUDA says of peer access is tried before use, since data goes wrong without an error where
// PCIe switches or an IOMMU are set up wrongly: each GPU stores a pattern into the window of every
// peer, which finds it there, and loads it back. A pair that fails goes by the host's memory.
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

namespace ropewalk::link {

/// Threads: one at a time.
class DevicePeers {
 public:
  /// Collective: finds out who reaches whom. `process`: a number that the ranks of one process
  /// share with no other (Runtime::token()). @param host_of_rank empty: one host
  /// @throws Error kCuda
  DevicePeers(bootstrap::Bootstrap& bootstrap, const Config& config, std::uint64_t process,
              int device, std::vector<int> host_of_rank);
  ~DevicePeers();
  DevicePeers(const DevicePeers&) = delete;
  DevicePeers& operator=(const DevicePeers&) = delete;

  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return size_; }
  [[nodiscard]] bool on_this_host(int rank) const noexcept {
    return host_of(rank) == host_of(rank_);
  }
  /// Of a rank, among those of its host.
  [[nodiscard]] int number_on_host(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].number_on_host;
  }
  /// Ranks on the host that has most.
  [[nodiscard]] int most_on_a_host() const noexcept { return most_on_a_host_; }
  /// Who has access to whose memory; after open_windows() of what was tried. Alike on all ranks.
  [[nodiscard]] const PeerAccess& access() const noexcept { return access_; }
  /// This rank and a rank of its host have access to each other's memory.
  [[nodiscard]] bool reaches(int rank) const noexcept { return access_.between(rank_, rank); }
  /// Ranks on the GPU that most ranks share; alike on all of them.
  [[nodiscard]] int most_on_one_gpu() const noexcept { return most_on_one_gpu_; }
  [[nodiscard]] bool same_process(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].same_process;
  }

  /// What windows are like: those in device memory, which all links of a rank share, and the two
  /// of a pair in the host's. Alike on all ranks.
  struct Layouts {
    WindowLayout device;
    WindowLayout host;    ///< of two ranks: 0 is the lower one
    WindowLayout hybrid;  ///< as `host`, beside those in device memory
    WindowLayout mapped;  ///< as `host`, of a pair of different hosts (device_mapped_windows.h)
  };
  /// Collective: makes windows, zero at first, opens those of the other ranks of this host, and
  /// tries them. Uses `stream`.
  /// @throws Error kCuda, kSystem; kInvalidUsage when sizes differ between ranks
  void open_windows(bootstrap::Bootstrap& bootstrap, const Layouts& layouts, cudaStream_t stream,
                    Deadline deadline);
  /// A rank's window in device memory, as this rank's GPU sees it; null unless reaches(rank).
  [[nodiscard]] std::byte* window(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].window;
  }
  /// Of the two windows of this rank and `peer` in the host's memory that of `rank`, one of them.
  /// @pre they are on one host and have no access
  [[nodiscard]] std::byte* host_window(int peer, int rank) const noexcept;
  /// Collective: makes two windows in the host's memory for each pair of ranks of one host, which
  /// have access to each other's.
  /// @throws Error kCuda, kSystem
  void open_hybrid_windows(bootstrap::Bootstrap& bootstrap, const Layouts& layouts,
                           Deadline deadline);
  [[nodiscard]] bool has_hybrid_windows() const noexcept { return hybrid_ != nullptr; }
  /// Collective: pinned memory of the host for all ranks, zero at first.
  /// @pre all are on one host; `bytes` is the same on all
  /// @throws Error kCuda, kSystem
  std::unique_ptr<PinnedMemory> share_with_all(bootstrap::Bootstrap& bootstrap, std::size_t bytes,
                                               Deadline deadline);
  /// As host_window(). @pre has_hybrid_windows()
  [[nodiscard]] std::byte* hybrid_window(int peer, int rank) const noexcept;
  /// Where a rank of this host finds the others' tags (executor/block/launch.h), as this rank's
  /// GPU sees it; null for a rank of another host.
  [[nodiscard]] std::byte* board(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].board;
  }
  /// Device memory that this rank's window takes.
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
    std::shared_ptr<DeviceMemory> shared;  // of a rank of this process
    OpenedMemory opened;                   // of another one
  };

  [[nodiscard]] int host_of(int rank) const noexcept {
    return host_of_rank_.empty() ? 0 : host_of_rank_[static_cast<std::size_t>(rank)];
  }
  void open_device_windows(bootstrap::Bootstrap& bootstrap, const WindowLayout& layout,
                           cudaStream_t stream);
  // Tries the windows that are open, and closes what failed.
  void try_windows(bootstrap::Bootstrap& bootstrap, cudaStream_t stream);
  void agree(bootstrap::Bootstrap& bootstrap);
  void open_host_windows(bootstrap::Bootstrap& bootstrap, const Layouts& layouts,
                         Deadline deadline);
  [[nodiscard]] std::vector<int> ranks_of_this_host() const;
  // Collective: memory that the ranks of this host share, zero at first; null for `bytes` of 0.
  // `window_bytes` must be alike on all ranks.
  std::unique_ptr<PinnedMemory> share_on_host(bootstrap::Bootstrap& bootstrap, std::size_t bytes,
                                              std::size_t window_bytes, Deadline deadline);
  // Of two windows of a pair that of `rank`.
  [[nodiscard]] std::byte* of_pair(std::byte* both, std::size_t bytes, int peer,
                                   int rank) const noexcept;

  int rank_;
  int size_;
  int device_;
  std::vector<int> host_of_rank_;
  int most_on_a_host_ = 1;
  ShmBacking backing_;
  int most_on_one_gpu_ = 1;
  std::vector<bool> spoiled_;            // by rank: the check is to find wrong data
  std::vector<PeerAccess::View> views_;  // this rank's, by rank
  PeerAccess access_{{}, {}};
  std::size_t host_window_bytes_ = 0;
  std::size_t hybrid_window_bytes_ = 0;
  std::vector<Peer> peers_;
  std::shared_ptr<DeviceMemory> own_;  // ranks of this process keep it while they use it
  std::unique_ptr<PinnedMemory> host_;
  std::unique_ptr<PinnedMemory> hybrid_;
};

}  // namespace ropewalk::link
