// Network links of blocks whose slots may lie in GPU memory, of protocol simple.
//
// Headers and counters, which kernels and the progress thread poll, stay in pinned memory of the
// host; the data of a chunk that does not fit into its header is in a slot of the GPU's memory,
// which the thread never touches. So on the wire a chunk is its header, and behind it the data as a
// message of its own. Each end's slots are where that end's rank can have them (gpu_slots.h): the
// messages are the same.
//
// The receiver tells the kernel the address of the data in the header (SlotKind::kAddress). So
// slots are filled in the order of the messages, whichever chunks they belong to. Where the GPU
// needs it (gpu_flush.h), what has arrived is flushed before the kernel is told of it, with one
// flush for all chunks that have come meanwhile.
//
// Threads: one at a time, besides the block's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "link/gpu_slots.h"
#include "link/network_link.h"

namespace ropewalk::link {

/// Bytes of the slots of such an end, GpuSlots::Options::end_bytes.
[[nodiscard]] std::size_t gpu_slots_bytes(const executor::FifoShape& shape) noexcept;

class GpuSlotSender final : public NetworkSender {
 public:
  /// `slots` outlives this. @throws Error as `make_memory`, and as GpuSlots::take()
  GpuSlotSender(const executor::FifoShape& shape, int peer, const FifoMaker& make_memory,
                GpuSlots& slots);
  ~GpuSlotSender() override;
  /// @throws Error where the connection does not take the slots' memory: the kernel may have filled
  /// some already
  void use(std::unique_ptr<transport::SendConnection> connection) override;
  bool poll() override;

 private:
  [[nodiscard]] bool start(executor::SlotHeader& slot, bool more_follow);

  SlotPiece piece_;
  std::unique_ptr<transport::Registration> piece_registration_;
  std::unique_ptr<transport::Request> head_;  // of a chunk whose data could not be sent yet
};

class GpuSlotReceiver final : public NetworkReceiver {
 public:
  /// As GpuSlotSender.
  GpuSlotReceiver(const executor::FifoShape& shape, int peer, const FifoMaker& make_memory,
                  GpuSlots& slots);
  /// Where the connection does not take the slots' memory, the link has slots in pinned memory.
  void use(std::unique_ptr<transport::ReceiveConnection> connection) override;
  bool poll() override;

 private:
  bool post_head();
  bool post_data();
  bool take_arrived();
  bool publish();
  // Of message `number` of data, from 1.
  [[nodiscard]] std::byte* slot(std::uint64_t number) const noexcept;
  [[nodiscard]] transport::Registration* slots_registration() const noexcept;

  SlotPiece piece_;
  bool flushes_;
  // Destroyed bottom up: requests before the registration that they use. Heads are requests_,
  // started_ of them.
  std::unique_ptr<transport::Registration> piece_registration_;
  std::deque<std::unique_ptr<transport::Request>> data_requests_;
  std::uint64_t data_started_ = 0;
  std::uint64_t data_arrived_ = 0;
  std::deque<std::uint64_t> chunks_of_data_;  // of messages that have arrived, not yet consumed
  std::uint64_t data_consumed_ = 0;
  bool head_arrived_ = false;  // of chunk arrived_ + 1
  std::uint64_t arrived_ = 0;  // chunks
  std::vector<transport::ReceiveBuffer> unflushed_;
  std::unique_ptr<transport::Request> flush_;
  std::uint64_t flushed_to_ = 0;  // the last chunk that flush_ is for
  std::uint64_t published_ = 0;
};

}  // namespace ropewalk::link
