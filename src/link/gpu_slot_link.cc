#include "link/gpu_slot_link.h"

#include <array>
#include <atomic>
#include <optional>
#include <span>
#include <utility>

#include "core/error.h"
#include "core/log.h"
#include "link/naming_peer.h"

namespace ropewalk::link {
namespace {

using executor::SlotHeader;
using executor::SlotKind;
using transport::ReceiveBuffer;

constexpr std::uint32_t kHeadTag = 1;
constexpr std::uint32_t kDataTag = 2;

std::byte* wire_head(SlotHeader& slot) { return reinterpret_cast<std::byte*>(&slot) + kHeaderSkip; }

/// Both messages of a chunk.
class ChunkRequest final : public transport::Request {
 public:
  ChunkRequest(std::unique_ptr<Request> head, std::unique_ptr<Request> data)
      : head_(std::move(head)), data_(std::move(data)) {}
  std::optional<std::size_t> test() override {
    if (head_ != nullptr && head_->test().has_value()) head_.reset();
    if (data_ != nullptr && data_->test().has_value()) data_.reset();
    return head_ == nullptr && data_ == nullptr ? std::optional<std::size_t>(0) : std::nullopt;
  }
  [[nodiscard]] std::span<const std::size_t> sizes() const override { return {}; }

 private:
  std::unique_ptr<Request> head_;  // null once it is done
  std::unique_ptr<Request> data_;
};

}  // namespace

std::size_t gpu_slots_bytes(const executor::FifoShape& shape) noexcept {
  constexpr std::size_t kPage = 4096;
  return (std::size_t{shape.slots} * shape.slot_bytes + kPage - 1) / kPage * kPage;
}

// ---- sending ------------------------------------------------------------------------------

GpuSlotSender::GpuSlotSender(const executor::FifoShape& shape, int peer,
                             const FifoMaker& make_memory, GpuSlots& slots)
    : NetworkSender(shape, peer, make_memory, true), piece_(slots.take()) {
  end_.slots = piece_.data;
}

GpuSlotSender::~GpuSlotSender() {
  // Before the registration that they use.
  head_.reset();
  requests_.clear();
}

void GpuSlotSender::use(std::unique_ptr<transport::SendConnection> connection) {
  NetworkSender::use(std::move(connection));
  if (piece_.data == nullptr) return;
  try {
    piece_registration_ = register_piece(*connection_, piece_, gpu_slots_bytes(end_.shape));
  } catch (const Error& error) {
    throw Error(error.code(),
                "slots in GPU memory of the link to rank {}: {} (without them: NET_GPU_SLOTS=off)",
                end_.peer, error.what());
  }
}

bool GpuSlotSender::start(SlotHeader& slot, bool more_follow) {
  const bool has_data = slot.kind == SlotKind::kStaged;
  if (head_ == nullptr) {
    connection_->more_follow(has_data || more_follow);
    head_ = connection_->send(wire_head(slot), kHeaderWireBytes, kHeadTag, registration_.get());
    if (head_ == nullptr) return false;
  }
  std::unique_ptr<transport::Request> data;
  if (has_data) {
    connection_->more_follow(more_follow);
    data =
        connection_->send(end_.data(started_ + 1, slot.bytes), slot.bytes, kDataTag,
                          piece_.data != nullptr ? piece_registration_.get() : registration_.get());
    if (data == nullptr) return false;
  }
  // Links of several threads may be over one NIC.
  if (counter_ != nullptr) counter_->add_shared(slot.bytes);
  requests_.push_back(std::make_unique<ChunkRequest>(std::move(head_), std::move(data)));
  ++started_;
  return true;
}

bool GpuSlotSender::poll() {
  return naming_peer(end_.peer, "sending to", [this] {
    bool moved = false;
    count_published();
    while (started_ < end_.published) {
      if (!start(*end_.header(started_ + 1), started_ + 1 < end_.published)) break;
      moved = true;
    }
    return take_finished() || moved;
  });
}

// ---- receiving ----------------------------------------------------------------------------

GpuSlotReceiver::GpuSlotReceiver(const executor::FifoShape& shape, int peer,
                                 const FifoMaker& make_memory, GpuSlots& slots)
    : NetworkReceiver(shape, peer, make_memory, true),
      piece_(slots.take()),
      flushes_(slots.flushes()) {}

void GpuSlotReceiver::use(std::unique_ptr<transport::ReceiveConnection> connection) {
  NetworkReceiver::use(std::move(connection));
  if (piece_.data == nullptr) return;
  try {
    piece_registration_ = register_piece(*connection_, piece_, gpu_slots_bytes(end_.shape));
  } catch (const Error& error) {
    log::warn("slots of the link from rank {} are in pinned memory, not in the GPU's: {}",
              end_.peer, error.what());
    piece_.data = nullptr;
  }
}

std::byte* GpuSlotReceiver::slot(std::uint64_t number) const noexcept {
  if (piece_.data == nullptr) return end_.data(number, end_.shape.slot_bytes);
  return piece_.data + (number - 1) % end_.shape.slots * end_.shape.slot_bytes;
}

transport::Registration* GpuSlotReceiver::slots_registration() const noexcept {
  return piece_.data != nullptr ? piece_registration_.get() : registration_.get();
}

bool GpuSlotReceiver::post_head() {
  if (started_ - end_.received >= end_.shape.headers) return false;
  const ReceiveBuffer buffer{wire_head(*end_.header(started_ + 1)), kHeaderWireBytes, kHeadTag,
                             registration_.get()};
  std::unique_ptr<transport::Request> request = connection_->receive({&buffer, 1});
  if (request == nullptr) return false;
  requests_.push_back(std::move(request));
  ++started_;
  return true;
}

bool GpuSlotReceiver::post_data() {
  if (data_started_ - data_consumed_ >= end_.shape.slots) return false;
  const ReceiveBuffer buffer{slot(data_started_ + 1), end_.shape.slot_bytes, kDataTag,
                             slots_registration()};
  std::unique_ptr<transport::Request> request = connection_->receive({&buffer, 1});
  if (request == nullptr) return false;
  data_requests_.push_back(std::move(request));
  ++data_started_;
  return true;
}

bool GpuSlotReceiver::take_arrived() {
  bool moved = false;
  while (!requests_.empty()) {
    SlotHeader& head = *end_.header(arrived_ + 1);
    if (!head_arrived_) {
      const std::optional<std::size_t> bytes = requests_.front()->test();
      if (!bytes.has_value()) break;
      const bool staged = head.kind == SlotKind::kStaged;
      if (*bytes != kHeaderWireBytes || (!staged && head.kind != SlotKind::kInline) ||
          head.bytes > (staged ? end_.shape.slot_bytes : executor::kInlineBytes)) {
        throw Error(Errc::kPeerLost, "a malformed header of {} bytes arrived", *bytes);
      }
      head_arrived_ = true;
    }
    if (head.kind == SlotKind::kStaged) {
      if (data_requests_.empty()) break;
      const std::optional<std::size_t> bytes = data_requests_.front()->test();
      if (!bytes.has_value()) break;
      if (*bytes != head.bytes) {
        throw Error(Errc::kPeerLost, "{} bytes arrived of a chunk of {}", *bytes, head.bytes);
      }
      std::byte* const data = slot(++data_arrived_);
      data_requests_.pop_front();
      chunks_of_data_.push_back(arrived_ + 1);
      head.kind = SlotKind::kAddress;
      head.address = reinterpret_cast<std::uint64_t>(data);
      if (flushes_ && piece_.data != nullptr) {
        unflushed_.push_back({data, *bytes, kDataTag, slots_registration()});
      }
    }
    requests_.pop_front();
    head_arrived_ = false;
    ++arrived_;
    moved = true;
  }
  return moved;
}

bool GpuSlotReceiver::publish() {
  if (flush_ == nullptr) {
    if (arrived_ == published_) return false;
    if (!unflushed_.empty()) {
      flush_ = connection_->flush(unflushed_);
      if (flush_ == nullptr) return false;
      unflushed_.clear();
    }
    flushed_to_ = arrived_;
  }
  if (flush_ != nullptr) {
    if (!flush_->test().has_value()) return false;
    flush_.reset();
  }
  while (published_ < flushed_to_) {
    SlotHeader& head = *end_.header(++published_);
    std::atomic_ref(head.sequence).store(published_, std::memory_order_release);
  }
  return true;
}

bool GpuSlotReceiver::poll() {
  return naming_peer(end_.peer, "receiving from", [this] {
    end_.received = std::atomic_ref(*end_.consumed_at).load(std::memory_order_acquire);
    while (!chunks_of_data_.empty() && chunks_of_data_.front() <= end_.received) {
      chunks_of_data_.pop_front();
      ++data_consumed_;
    }
    bool moved = false;
    // In turn, so that the requests of a connection are enough for both.
    for (bool posts = true; posts;) {
      const bool head = post_head();
      const bool data = post_data();
      posts = head || data;
      moved = moved || posts;
    }
    moved = take_arrived() || moved;
    return publish() || moved;
  });
}

}  // namespace ropewalk::link
