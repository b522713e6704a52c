// How the GPUs of a communicator's ranks, all of one host, reach each other: the windows that they
// write.
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
  /// share with no other (Runtime::token()). @throws Error kCuda
  DevicePeers(bootstrap::Bootstrap& bootstrap, const Config& config, std::uint64_t process,
              int device);
  ~DevicePeers();
  DevicePeers(const DevicePeers&) = delete;
  DevicePeers& operator=(const DevicePeers&) = delete;

  /// GPUs reach each other's memory; else windows are on the host.
  [[nodiscard]] bool peer_access() const noexcept { return peer_access_; }
  /// Every two ranks' GPUs write each other lines of 128 bytes whole.
  [[nodiscard]] bool whole_lines() const noexcept { return whole_lines_; }
  /// Ranks on the GPU that most ranks share; alike on all of them.
  [[nodiscard]] int most_on_one_gpu() const noexcept { return most_on_one_gpu_; }
  [[nodiscard]] bool same_process(int rank) const noexcept {
    return peers_[static_cast<std::size_t>(rank)].same_process;
  }

  /// Collective: a window of `bytes`, zero at first, for every rank. It is cleared on `stream`.
  /// @throws Error kCuda, kSystem; kInvalidUsage when `bytes` differs between ranks
  void open_windows(bootstrap::Bootstrap& bootstrap, std::size_t bytes, cudaStream_t stream,
                    Deadline deadline);
  /// A rank's window, as this rank's GPU sees it.
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
    std::byte* window = nullptr;
    std::shared_ptr<DeviceMemory> shared;  // of a rank of this process
    OpenedMemory opened;                   // of another one
  };

  void open_device_windows(bootstrap::Bootstrap& bootstrap, std::size_t bytes, cudaStream_t stream);
  void open_host_windows(bootstrap::Bootstrap& bootstrap, std::size_t bytes, Deadline deadline);

  int rank_;
  int size_;
  int device_;
  ShmBacking backing_;
  bool peer_access_ = true;
  bool whole_lines_ = true;
  int most_on_one_gpu_ = 1;
  std::vector<Peer> peers_;
  std::shared_ptr<DeviceMemory> own_;  // ranks of this process keep it while they use it
  std::unique_ptr<PinnedMemory> host_;
};

}  // namespace ropewalk::link
