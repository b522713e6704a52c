// A path over an adapter: two windows, stores of the CPU, DMA queues, and writes straight into
// memory that the other end registered.
//
// Meeting. The listener's handle names its node, a data interrupt and a secret. The connecting end
// makes its window and triggers the interrupt with the secret and its window's segment. The
// accepting end connects to that, makes its own window, and writes its segment into the other's.
//
// Trials (setting VERIFY). A transfer that reports success has not always moved something: without
// a working IOMMU, registered memory is not reached. So the connecting end writes a pattern into
// the other window by DMA and reads it back, and writes patterns into registered memory of the
// other end, from registered memory and from plain memory, which the other end compares. What
// failed is not used: stores of the CPU replace DMA, the window replaces registered memory. The log
// says so once, with the likely cause.
//
// Stores or DMA. Which is faster for how many bytes is timed after the trials, by the connecting
// end of the first connection over an adapter (setting SISCI_PIO_BYTES). The accepting end names
// its memory for all that could be a transfer.
//
// GPU memory. Where its pages are attached (memory.h), the sending end writes it, and writes from
// it, as it does registered host memory. Stores and copies into a GPU and into host memory take
// different paths, so that the notice of a message could overtake its data: after each piece the
// sending end reads the last bytes back, on the same queue, and that read pushes all writes before
// it into the GPU (PCI Express's order). The trials are the engine's (DirectWrites), for each pair
// of host and GPU memory on its own, before its first message: the transfer must bring a pattern
// there, and the read must bring it back. All else is staged (gpu_side.h).
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "transport/window/driver.h"
#include "transport/window/sisci/crossover.h"
#include "transport/window/sisci/gpu_side.h"
#include "transport/window/sisci/gpu_trials.h"
#include "transport/window/sisci/memory.h"
#include "transport/window/sisci/queue.h"
#include "transport/window/sisci/segment.h"
#include "transport/window/sisci/trial.h"

namespace ropewalk::transport::window::sisci {

using Secret = std::array<std::byte, 16>;

/// The contents of a handle.
struct ListenerAddress {
  std::uint32_t node = 0;
  std::uint32_t interrupt = 0;
  Secret secret{};
  std::uint32_t adapter = 0;  ///< last, as it is small: `auto` leaves zeros at the end out
};
Handle encode(const ListenerAddress& address);
std::optional<ListenerAddress> decode_listener_address(const Handle& handle);

/// What the connecting end says first, through the data interrupt.
struct Greeting {
  std::uint32_t magic = 0;
  std::uint32_t node = 0;
  std::uint32_t segment = 0;
  std::uint32_t checksum = 0;  ///< of the rest, against a foreign sender's bytes
  std::uint64_t nonce = 0;     ///< comes back with the answer
  Secret secret{};
};
static_assert(sizeof(Greeting) <= 64);  // what any library takes
Greeting make_greeting(unsigned node, unsigned segment, std::uint64_t nonce, const Secret& secret);
bool is_greeting(const Greeting& greeting);

/// The common data of a driver's paths.
struct PathOptions {
  unsigned adapter = 0;
  unsigned node = 0;  ///< this end's
  std::size_t queues = 4;
  std::size_t pio_bytes = 0;  ///< copies below are made by the CPU; 0: as measured
  std::size_t alignment = 1;  ///< of transfers
  bool verify = true;
};

/// The data that a device's connections share for registered memory. Outlives them.
struct Memory {
  Memory(Context& context, unsigned adapter, DriverCuda* cuda_or_null)
      : cuda(cuda_or_null), regions(context, adapter, cuda), trials(cuda, regions) {}
  DriverCuda* const cuda;
  Regions regions;
  GpuTrials trials;
  /// From which size on transfers are faster than stores, as the first connection found; 0 before.
  std::atomic<std::size_t> crossover{0};
};

class SisciPath final : public Path, private DirectWrites {
 public:
  /// The connecting end.
  SisciPath(Context& context, Memory& memory, const PathOptions& options,
            const ListenerAddress& listener, WindowSizes sizes);
  /// The accepting end, of which the greeting came and `peer` is connected.
  SisciPath(Context& context, Memory& memory, const PathOptions& options,
            std::shared_ptr<OpenDescriptor> descriptor, std::unique_ptr<PeerWindow> peer,
            const Greeting& greeting, WindowSizes sizes);
  ~SisciPath() override;
  SisciPath(const SisciPath&) = delete;
  SisciPath& operator=(const SisciPath&) = delete;

  bool ready() override;
  [[nodiscard]] const Capabilities& capabilities() const override { return capabilities_; }
  [[nodiscard]] std::byte* window() const override { return own_->data() + kHeaderBytes; }
  [[nodiscard]] std::byte* other_window() const override;
  void put(std::size_t offset, const void* data, std::size_t bytes) override;
  void put_word(std::size_t offset, std::uint64_t value) override;
  [[nodiscard]] std::uint64_t read_word(std::size_t offset) const override;
  void order_puts_before_reads() override;
  std::uint64_t address_of(const void* data, Registration* registration) const override;
  void start_write(int queue, std::size_t offset, const void* source, std::size_t bytes) override;
  void start_pull(int queue, void* destination, std::uint64_t source, std::size_t bytes) override;
  bool copy_done(int queue) override;
  DirectWrites* direct_writes() override { return this; }
  DeviceCopies* device_copies() override { return &gpu_side_; }
  std::optional<std::string> peer_lost() override;
  std::optional<std::string> stores_lost() override { return peer_->stores_lost(); }
  void disconnect() noexcept override;

 private:
  // DirectWrites (path_direct.cc)
  [[nodiscard]] std::size_t direct_piece_bytes() const override;
  [[nodiscard]] std::size_t smallest_direct() const override { return transfer_from_; }
  [[nodiscard]] Target target_of(const void* data, std::size_t bytes,
                                 const Registration& registration) override;
  bool reach(const Target& target, const void* source, std::size_t bytes,
             const Registration* registration) override;
  void start_direct(int queue, const Target& target, const void* source,
                    const Registration* registration, std::size_t bytes) override;
  void revoke(Registration& registration) override;
  Target trial_target(std::uint64_t locations) override;
  std::string try_direct(int queue, const Target& target, std::uint64_t locations) override;
  void fetch_trial(std::uint64_t locations, std::span<std::byte> seen) override;
  void tried(std::uint64_t locations, const std::string& why_not) override;

  // Of the connecting end, in order.
  enum class State { kCalling, kAwaitingAnswer, kJoining, kTryingWindow, kTryingMemory, kReady };
  bool step();
  bool call();
  bool answered();
  bool join();
  bool try_window();
  bool try_memory();
  bool start_memory_trial(unsigned source);
  Status start_from_trial(unsigned source, std::span<const std::byte> part);
  void tell_trial();
  // path_timing.cc: sets transfer_from_ at the connecting end.
  [[nodiscard]] bool times_copies() const;
  void time_copies();
  double time_transfer(std::size_t bytes, unsigned source);
  double time_stores(std::size_t window_offset, std::span<const std::byte> source);
  // While the other end has not answered: whether it still listens.
  void look_at_listener();
  // Of the accepting end: the result of the other end's trial, once it is known.
  unsigned judge_trial();
  [[nodiscard]] std::uint64_t own_word(std::size_t offset) const;
  void check_deadline(Status status, const char* what) const;
  void make_queues();
  [[nodiscard]] bool aligned(std::size_t offset, const void* source, std::size_t bytes) const;
  [[nodiscard]] std::string to_peer() const;

  struct Copy {
    std::unique_ptr<Queue> queue;  // null: none left, the CPU copies
    bool posted = false;
    bool direct = false;
    // Of a direct write into GPU memory: its last bytes, which are read back when it is done.
    std::shared_ptr<const RemoteRegion> read_back;
    std::size_t read_back_offset = 0;
    std::size_t read_back_bytes = 0;
    // To be made again by the CPU, if the transfer fails.
    std::size_t offset = 0;
    const void* source = nullptr;
    std::size_t bytes = 0;
  };

  // A region of the other end that this end writes.
  struct Reached {
    std::uint32_t id = 0;
    std::shared_ptr<const RemoteRegion> region;  // null: it cannot be connected
  };
  std::shared_ptr<const RemoteRegion> reached(std::uint32_t id);
  Copy& copy_of(int queue);
  bool start_read_back(int queue, Copy& copy);
  [[nodiscard]] std::byte* read_back_line(int queue) const;
  [[nodiscard]] std::size_t read_back_bytes() const;
  std::string post_direct(int queue, const Target& target, const void* source,
                          const Registration* registration, std::size_t bytes);
  std::string try_direct_from(int queue, const Target& target, const void* data,
                              const Registration& registration);
  unsigned usable_at(std::uint32_t location);

  Context& context_;
  Memory& memory_;
  const PathOptions options_;
  std::shared_ptr<OpenDescriptor> descriptor_;
  unsigned peer_node_ = 0;
  std::unique_ptr<OwnWindow> own_;
  std::unique_ptr<PeerWindow> peer_;
  Capabilities capabilities_;
  State state_ = State::kReady;
  std::chrono::steady_clock::time_point deadline_;
  std::chrono::steady_clock::time_point next_look_;
  ListenerAddress listener_;
  std::uint64_t nonce_ = 0;
  std::uint32_t answer_segment_ = 0;
  std::uint32_t answer_trial_ = 0;
  bool use_dma_ = true;
  std::size_t window_bytes_;   // of the other end's window
  std::size_t transfer_from_;  // copies of fewer bytes are made by the CPU
  std::vector<Copy> copies_;
  std::vector<Copy> staged_copies_;  // of GpuSide
  std::list<Reached> reached_;       // the latest used first
  // The trial of registered memory: at the accepting end what is written, until it is judged; at
  // the connecting end what it is written from.
  std::unique_ptr<Trial> trial_;
  std::unique_ptr<RemoteRegion> trial_region_;
  std::uint64_t trial_seed_ = 0;
  unsigned trial_source_ = 0;  // of the write under way
  unsigned tried_ = 0;         // sources whose write ran
  std::optional<unsigned>
      usable_;  // from where the other end may write registered memory, once known
  std::unique_ptr<Trial> host_trial_;  // of host memory, from GPU memory of the other end
  bool disconnected_ = false;
  GpuSide gpu_side_;
};

}  // namespace ropewalk::transport::window::sisci
