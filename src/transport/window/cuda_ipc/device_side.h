// The device-memory part of one end of a connection.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/mutex.h"
#include "transport/window/cuda_ipc/device_memory.h"
#include "transport/window/cuda_ipc/offers.h"
#include "transport/window/cuda_ipc/opened_memory.h"
#include "transport/window/cuda_ipc/openings.h"
#include "transport/window/cuda_ipc/worker.h"
#include "transport/window/device/copy_queue.h"
#include "transport/window/device/driver_cuda.h"
#include "transport/window/device/gpu.h"
#include "transport/window/driver.h"
#include "transport/window/shm/shm.h"

namespace ropewalk::transport::window {

/// A random pattern, and device memory for verification: at each location one that holds it, and on
/// each GPU one that it is copied to. Threads: any.
class Patterns {
 public:
  Patterns(Registrations& registrations, Gpus& gpus);
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return bytes_; }
  const DeviceRegistration& at(const DeviceMemory& like);
  /// Takes the memory that copies to that GPU will need.
  void prepare(Gpu& gpu);
  /// Runs `copy(destination)` and fetches the copied data. One at a time.
  template <typename Copy>
  void try_copy(Gpu& gpu, std::span<std::byte> seen, Copy copy) {
    const Lock lock(mutex_);
    const CuPointer destination = destination_on(gpu);
    clear(gpu, destination);
    copy(destination);
    gpu.fetch(seen.data(), destination, seen.size());
  }

 private:
  struct Source {
    std::unique_ptr<DeviceBuffer> buffer;
    std::unique_ptr<DeviceRegistration> registration;
  };
  CuPointer destination_on(Gpu& gpu) RW_REQUIRES(mutex_);
  void clear(Gpu& gpu, CuPointer destination) const;

  Registrations& registrations_;
  Gpus& gpus_;
  std::vector<std::byte> bytes_;
  Mutex mutex_;
  std::map<std::uint32_t, Source> sources_ RW_GUARDED_BY(mutex_);
  std::map<Gpu*, std::unique_ptr<DeviceBuffer>> destinations_ RW_GUARDED_BY(mutex_);
};

/// What the connections of a driver share. Threads: any.
struct CudaShared : DriverCuda {
  using DriverCuda::DriverCuda;
  Registrations registrations;
  Patterns patterns{registrations, gpus};
  Worker worker;  // ends first: its errands close memory of the GPUs
};

class DeviceSide final : public DeviceCopies, private DevicePulls {
 public:
  DeviceSide(CudaShared& shared, HostPath& host, WindowSizes sizes);
  ~DeviceSide() override;
  DeviceSide(const DeviceSide&) = delete;
  DeviceSide& operator=(const DeviceSide&) = delete;

  void prepare(const Registration& registration, bool receives) noexcept override;
  [[nodiscard]] int queues() const override { return kQueues; }
  [[nodiscard]] std::uint32_t location(const Registration& registration, const void* data,
                                       std::size_t bytes) const override;
  void start_write(int queue, std::size_t offset, const void* source,
                   const Registration& registration, std::size_t bytes) override;
  void start_read(int queue, void* destination, const Registration& registration,
                  std::size_t offset, std::size_t bytes) override;
  bool done(int queue) override;
  DevicePulls* pulls() override { return this; }
  [[nodiscard]] std::span<const std::byte> pattern() const override;
  const Registration& pattern_memory(const Registration& like) override;
  void write_pattern(const Registration& pattern_memory, std::size_t offset) override;
  void read_pattern(std::size_t offset, std::uint32_t location, std::span<std::byte> seen) override;
  void fetch(void* destination, const void* source, const Registration& registration,
             std::size_t bytes) override;

  /// Closes what the other end has withdrawn.
  void close_withdrawn();

 private:
  // Two copies for each of four engines: one moves while the next waits for it.
  static constexpr int kQueues = 8;
  // NVLink is full well below that, and giving up a message waits for no longer than a piece.
  static constexpr std::size_t kPieceBytes = std::size_t{4} << 20;

  // DevicePulls
  [[nodiscard]] std::size_t piece_bytes() const override { return kPieceBytes; }
  [[nodiscard]] std::uint64_t key(const Registration& registration) const override;
  [[nodiscard]] std::uint64_t offset(const Registration& registration,
                                     const void* data) const override;
  void start_pull(int queue, void* destination, const Registration& registration, std::uint64_t key,
                  std::uint64_t offset, std::size_t bytes) override;
  std::optional<std::string> offer(const Registration& registration) override;
  [[nodiscard]] bool ended(std::uint64_t key) const override;
  std::optional<std::string> open(std::uint64_t key, std::uint32_t location) override;
  [[nodiscard]] std::optional<std::uint64_t> opened(std::uint64_t key,
                                                    std::uint32_t location) const override;
  void pull_pattern(std::uint64_t key, std::uint32_t location, std::span<std::byte> seen) override;

  struct Slot {
    CopyQueue* busy = nullptr;
    std::shared_ptr<const OpenedMemory> source;  // of the copy in progress
  };
  OfferLine& line() RW_REQUIRES(mutex_);
  Openings& openings() RW_REQUIRES(mutex_);
  void offer_early(const Registration& registration);
  CopyQueue& start(int queue, Gpu& gpu);
  std::shared_ptr<const OpenedMemory> find_opened(std::uint64_t key, std::uint32_t location) const;
  // This end's window and the other's, which copy engines read and write, are pinned at first use.
  std::byte* pinned_own(Gpu& gpu);
  std::byte* pinned_other(Gpu& gpu);
  void pin(std::byte* window, std::size_t bytes, Gpu& gpu) RW_REQUIRES(mutex_);

  CudaShared& shared_;
  HostPath& host_;
  const WindowSizes sizes_;
  CopyQueues queues_;
  std::array<Slot, kQueues> slots_;
  mutable Mutex mutex_;  // of what prepare() makes
  bool own_pinned_ RW_GUARDED_BY(mutex_) = false;
  bool other_pinned_ RW_GUARDED_BY(mutex_) = false;
  Gpu* pinning_ RW_GUARDED_BY(mutex_) = nullptr;
  std::shared_ptr<OfferLine> line_ RW_GUARDED_BY(mutex_);     // of a sender
  std::shared_ptr<Openings> openings_ RW_GUARDED_BY(mutex_);  // of a receiver
};

}  // namespace ropewalk::transport::window
