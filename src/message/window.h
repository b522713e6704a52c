// A window of a communicator: memory of each rank that the others put to and get from, and counters
// of their signals.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "message/host_parts.h"
#include "message/kernel_queues.h"
#include "message/window_memory.h"

namespace ropewalk::message {

/// As one rank has it. Made and used by its Messenger (messenger.h).
class Window {
 public:
  /// The highest that a counter counts to.
  static constexpr std::uint64_t kMostSignals = (std::uint64_t{1} << 63U) - 1;

  /// `gpu`: in whose memory it is; null: the host's.
  Window(std::uint32_t number, int rank, int slots, transport::window::Gpu* gpu,
         WindowMemory memory)
      : number_(number),
        rank_(rank),
        slots_(slots),
        gpu_(gpu),
        memory_(std::move(memory)),
        sent_(memory_->parts().size() * static_cast<std::size_t>(slots)),
        awaited_(sent_.size()),
        sent_on_gpu_(sent_.size()),
        awaited_on_gpu_(sent_.size()),
        carried_(sent_.size()) {}

  /// Why this rank does not have its memory; nothing when it has.
  [[nodiscard]] std::optional<Error> failure() const { return memory_->failure(); }
  /// Lets go of the other ranks' GPU memory, before they free it.
  void close_reached() noexcept { memory_->close_reached(); }
  /// Gives the memory back; nothing else may be asked of a closed window.
  void close() noexcept {
    closed_ = true;
    queues_.reset();
    host_parts_.reset();
    memory_.reset();
  }
  [[nodiscard]] bool closed() const noexcept { return closed_; }

  /// From 1; the same on all ranks.
  [[nodiscard]] std::uint32_t number() const noexcept { return number_; }
  [[nodiscard]] int rank() const noexcept { return rank_; }
  [[nodiscard]] int size() const noexcept { return static_cast<int>(memory_->parts().size()); }
  [[nodiscard]] int slots() const noexcept { return slots_; }
  [[nodiscard]] const Part& part(int rank) const noexcept {
    return memory_->parts()[static_cast<std::size_t>(rank)];
  }
  [[nodiscard]] std::optional<WindowMemory::Location> location(int rank) const {
    return memory_->location(rank);
  }
  [[nodiscard]] const Part& own() const noexcept { return part(rank_); }
  /// Null where the memory is the host's.
  [[nodiscard]] transport::window::Gpu* gpu() const noexcept { return gpu_; }
  /// Of a window in the host's memory: from now on streams of `gpu` may use it.
  /// @pre streams_gpu() is null @throws Error kCuda
  void let_streams_use(transport::window::Gpu& gpu) {
    host_parts_ = std::make_unique<HostParts>(gpu, *memory_->segment(), memory_->parts());
  }
  /// Whose streams may use it; null before let_streams_use().
  [[nodiscard]] transport::window::Gpu* streams_gpu() const noexcept {
    return host_parts_ == nullptr ? gpu_ : &host_parts_->gpu();
  }

  /// The counter at `owner` of what `source` has signalled on `slot`. @pre part(owner).signals
  [[nodiscard]] std::uint64_t& counter(int owner, int source, int slot) const noexcept {
    return part(owner).signals[index(source, slot)].count;
  }
  /// As streams of streams_gpu() address it: the first byte of a part. Null of memory of the user's
  /// in the host that is not pinned. @pre part(owner).mapped
  [[nodiscard]] std::byte* data_on_gpu(int owner) const {
    return host_parts_ == nullptr ? part(owner).data : host_parts_->data(owner);
  }
  /// Of a window in GPU memory, as this rank's GPU addresses it: that counter's home on the owner's
  /// GPU. @pre part(owner).mapped
  [[nodiscard]] std::uint64_t counter_on_gpu(int owner, int source, int slot) const noexcept {
    return reinterpret_cast<std::uint64_t>(&part(owner).device_signals[index(source, slot)].count);
  }
  /// As streams_gpu() addresses it: the counter above. @pre part(owner).mapped
  [[nodiscard]] std::uint64_t counter_in_host(int owner, int source, int slot) const {
    const SignalLine* const lines =
        host_parts_ == nullptr ? part(owner).signals_on_device : host_parts_->signals(owner);
    return reinterpret_cast<std::uint64_t>(&lines[index(source, slot)].count);
  }
  /// Where kernels and streams of this rank wait for signals of `source`, by slot, a line each:
  /// on its GPU, or in the host's memory where a link carries them. @pre slots() > 0
  [[nodiscard]] const std::uint64_t* arrivals(int source) const noexcept;
  [[nodiscard]] std::uint64_t arrivals_on_gpu(int source, int slot) const {
    if (host_parts_ != nullptr) return counter_in_host(rank_, source, slot);
    return reinterpret_cast<std::uint64_t>(arrivals(source)) +
           static_cast<std::size_t>(slot) * sizeof(SignalLine);
  }
  /// The memory is queues of kernels: nothing else is put to it or got from it.
  /// @throws Error kCuda
  void make_queues(const QueueLayout& layout) {
    queues_ = std::make_unique<KernelQueues>(*this, layout);
    memory_->hide();
  }
  /// Null without.
  [[nodiscard]] KernelQueues* queues() const noexcept { return queues_.get(); }
  /// Copies, whatever memory it is, and returns when it is done; while kernels wait, too.
  void copy(void* to, const void* from, std::size_t bytes) const;
  /// Sets the counter, with release. Only who raises it calls. @pre part(owner).mapped
  void set_counter(int owner, int source, int slot, std::uint64_t value) const;
  /// Of what `source` signals by a link; only the thread that serves the link calls. Counts: the
  /// counter's next value.
  std::uint64_t count_carried(int source, int slot, std::uint64_t count) noexcept {
    return carried_[index(source, slot)] += count;
  }
  /// Sets the counter here to it, with release.
  void set_carried(int source, int slot, std::uint64_t value) const noexcept {
    std::atomic_ref(counter(rank_, source, slot)).store(value, std::memory_order_release);
  }
  /// How many signals of `source` have arrived here.
  [[nodiscard]] std::uint64_t arrived(int source, int slot) const noexcept {
    return std::atomic_ref(counter(rank_, source, slot)).load(std::memory_order_acquire);
  }
  /// What this rank has signalled to `peer`, and waited for from it, so far.
  std::uint64_t& sent(int peer, int slot) noexcept { return sent_[index(peer, slot)]; }
  std::uint64_t& awaited(int peer, int slot) noexcept { return awaited_[index(peer, slot)]; }
  /// Whether kernels count these, since a captured call did it first: then the host's calls do not
  /// change its counts, above, any more.
  std::uint8_t& sent_on_gpu(int peer, int slot) noexcept { return sent_on_gpu_[index(peer, slot)]; }
  std::uint8_t& awaited_on_gpu(int peer, int slot) noexcept {
    return awaited_on_gpu_[index(peer, slot)];
  }

 private:
  [[nodiscard]] std::size_t index(int rank, int slot) const noexcept {
    return static_cast<std::size_t>(rank) * static_cast<std::size_t>(slots_) +
           static_cast<std::size_t>(slot);
  }

  std::uint32_t number_;
  int rank_;
  int slots_;
  transport::window::Gpu* gpu_;
  bool closed_ = false;
  std::optional<WindowMemory> memory_;
  std::unique_ptr<HostParts> host_parts_;
  std::unique_ptr<KernelQueues> queues_;
  std::vector<std::uint64_t> sent_;
  std::vector<std::uint64_t> awaited_;
  std::vector<std::uint8_t> sent_on_gpu_;
  std::vector<std::uint8_t> awaited_on_gpu_;
  std::vector<std::uint64_t> carried_;
};

}  // namespace ropewalk::message
