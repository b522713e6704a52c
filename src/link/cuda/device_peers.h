// How the GPUs of a communicator's ranks reach those of their host: the windows that they write.
//
// A window lies in its rank's device memory, where all GPUs have access to each other's: by peer
// access within a process, by CUDA IPC between processes. Where one pair has none, or the setting
// PEER_ACCESS is off, all windows lie in pinned memory of the host, which every GPU reaches. The
// links in them are the same.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/settings.h"
#include "link/cuda/device_window.h"

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
  /// GPUs of each host reach each other's memory; else windows are on the host. Alike on all ranks.
  [[nodiscard]] bool peer_access() const noexcept { return peer_access_; }
  /// Every two ranks' GPUs of a host write each other lines of 128 bytes whole. Alike on all.
  [[nodiscard]] bool whole_lines() const noexcept { return whole_lines_; }
  /// Ranks on the GPU that most ranks share; alike on all of them.
  [[nodiscard]] int most_on_one_gpu() const noexcept { return most_on_one_gpu_; }
  [[nodiscard]] bool same_process(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].same_process;
  }

  /// Collective: a window of `bytes`, zero at first, for every rank, which those of its host see.
  /// It is cleared on `stream`.
  /// @throws Error kCuda, kSystem; kInvalidUsage when `bytes` differs between ranks
  void open_windows(bootstrap::Bootstrap& bootstrap, std::size_t bytes, cudaStream_t stream,
                    Deadline deadline);
  /// A rank's window, as this rank's GPU sees it; null for a rank of another host.
  [[nodiscard]] std::byte* window(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].window;
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
    std::shared_ptr<DeviceMemory> shared;  // of a rank of this process
    OpenedMemory opened;                   // of another one
  };

  [[nodiscard]] int host_of(int rank) const noexcept {
    return host_of_rank_.empty() ? 0 : host_of_rank_[static_cast<std::size_t>(rank)];
  }
  void open_device_windows(bootstrap::Bootstrap& bootstrap, std::size_t bytes, cudaStream_t stream);
  void open_host_windows(bootstrap::Bootstrap& bootstrap, std::size_t bytes, Deadline deadline);

  int rank_;
  int size_;
  int device_;
  std::vector<int> host_of_rank_;
  int most_on_a_host_ = 1;
  ShmBacking backing_;
  bool peer_access_ = true;
  bool whole_lines_ = true;
  int most_on_one_gpu_ = 1;
  std::vector<Peer> peers_;
  std::shared_ptr<DeviceMemory> own_;  // ranks of this process keep it while they use it
  std::unique_ptr<PinnedMemory> host_;
};

}  // namespace ropewalk::link
