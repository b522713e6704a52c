// GPU memory for the slots of network links (gpu_slot_link.h), where the transport takes it.
//
// Whether it does is found out before any link is made, since kernels may use a link before it is
// connected: memory of the GPU is registered with connections of each device to itself, and a
// pattern goes through them. Where anything of that fails the slots are in pinned memory of the
// host, and a line of the log says why.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/deadline.h"
#include "core/settings.h"
#include "transport/transport.h"
#include "transport/window/device/exported_memory.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::link {

/// The memory of one end's slots.
struct SlotPiece {
  std::byte* data = nullptr;   ///< null: in the end's own memory, which is of the host
  transport::DmaBuf exported;  ///< descriptor -1: none
};

/// Registers GPU memory with a connection, by its descriptor where there is one.
/// @throws Error as register_memory()
template <typename Connection>
std::unique_ptr<transport::Registration> register_piece(Connection& connection,
                                                        const SlotPiece& piece, std::size_t bytes) {
  return piece.exported.descriptor >= 0
             ? connection.register_dma_buf(piece.data, bytes, piece.exported)
             : connection.register_memory(piece.data, bytes, transport::MemoryKind::kCuda);
}

/// Threads: one at a time. Outlives the links.
class GpuSlots {
 public:
  enum class Use : std::uint8_t { kOff, kAuto, kOn };  ///< the setting NET_GPU_SLOTS

  struct Options {
    Use use = Use::kOff;
    bool always_flushes = false;  ///< the setting NET_GPU_FLUSH
    std::size_t end_bytes = 0;    ///< of one end's slots; a multiple of 4 KiB
    std::size_t block_bytes = 0;  ///< taken from CUDA at a time
    /// The rank's GPU. @throws Error in words where CUDA cannot be used
    std::function<transport::window::Gpu&()> gpu;
  };
  static Options options_of(const Config& config);

  /// Collective. Tries `devices` of `transport`.
  /// @return null where links are as ever, with slots in pinned memory and each chunk one message:
  ///         where a rank's setting is off, or no rank's slots are in GPU memory
  static std::unique_ptr<GpuSlots> agree(bootstrap::Bootstrap& bootstrap,
                                         transport::Transport& transport, std::vector<int> devices,
                                         Options options, Deadline deadline);
  GpuSlots(const GpuSlots&) = delete;
  GpuSlots& operator=(const GpuSlots&) = delete;
  ~GpuSlots();

  /// Whether this rank's are; others' may be in pinned memory.
  [[nodiscard]] bool on_gpu() const noexcept { return gpu_ != nullptr; }
  [[nodiscard]] bool flushes() const noexcept { return flushes_; }
  /// Sees to it that take() allocates nothing, which may wait for kernels.
  /// @throws Error kCuda
  void reserve();
  /// Of end_bytes; on the GPU if on_gpu(). It stays this end's as long as this lives.
  /// @throws Error kCuda
  SlotPiece take();
  /// Of the GPU's memory.
  [[nodiscard]] std::size_t memory_bytes() const noexcept;

 private:
  struct Block;

  explicit GpuSlots(Options options);
  // @throws Error where slots cannot be in GPU memory, in words
  void open(transport::Transport& transport, std::vector<int> devices);
  void add_block();
  static SlotPiece piece(const Block& block, std::size_t offset);
  void try_device(transport::Transport& transport, int device);

  Options options_;
  transport::window::Gpu* gpu_ = nullptr;
  bool exports_ = false;
  bool flushes_ = false;
  std::vector<std::unique_ptr<Block>> blocks_;  // the last one has room
};

}  // namespace ropewalk::link
