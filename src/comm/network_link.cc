#include "comm/network_link.h"

#include <array>
#include <atomic>
#include <utility>

#include "core/error.h"

namespace ropewalk::comm {
namespace {

using executor::SlotHeader;
using executor::SlotKind;

constexpr std::uint32_t kTag = 1;
constexpr std::size_t kPageBytes = 4096;
// The wire form leaves out the sequence number: it must appear only after the data.
constexpr std::size_t kSkip = sizeof(SlotHeader::sequence);

std::size_t wire_bytes(const SlotHeader& slot) {
  const std::size_t data = slot.kind == SlotKind::kStaged ? slot.bytes : 0;
  return sizeof(SlotHeader) - kSkip + data;
}

// A chunk travels as one piece: header and data must lie together.
executor::FifoShape interleaved(executor::FifoShape shape) {
  shape.interleaved = true;
  shape.headers = shape.slots;
  return shape;
}

template <typename Body>
auto naming_peer(int peer, const char* action, Body&& body) {
  try {
    return body();
  } catch (const Error& error) {
    throw Error(error.code(), "{} rank {}: {}", action, peer, error.what());
  }
}

}  // namespace

FifoMemory::FifoMemory(const executor::FifoShape& shape)
    : storage_(shape.bytes() + kPageBytes), bytes_(shape.bytes()) {
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.data());
  aligned_ = storage_.data() + (kPageBytes - address % kPageBytes) % kPageBytes;
}

NetworkSender::NetworkSender(const executor::FifoShape& shape, int peer,
                             std::unique_ptr<transport::SendConnection> connection)
    : memory_(interleaved(shape)), connection_(std::move(connection)) {
  registration_ =
      connection_->register_memory(memory_.data(), memory_.bytes(), transport::MemoryKind::kHost);
  end_.memory = memory_.data();
  end_.shape = interleaved(shape);
  end_.peer = peer;
  // A rank that returns from a call need not come back soon: what it sent must be on its way.
  end_.drain_all = true;
}

bool NetworkSender::poll() {
  return naming_peer(end_.peer, "sending to", [this] {
    bool moved = false;
    while (started_ < end_.published) {
      SlotHeader* slot = end_.header(started_ + 1);
      std::unique_ptr<transport::Request> request =
          connection_->send(reinterpret_cast<const std::byte*>(slot) + kSkip, wire_bytes(*slot),
                            kTag, registration_.get());
      if (request == nullptr) break;
      requests_.push_back(std::move(request));
      ++started_;
      moved = true;
    }
    while (!requests_.empty() && requests_.front()->test().has_value()) {
      requests_.pop_front();
      const std::uint64_t consumed = started_ - requests_.size();
      std::atomic_ref(*end_.consumed()).store(consumed, std::memory_order_release);
      moved = true;
    }
    return moved;
  });
}

NetworkReceiver::NetworkReceiver(const executor::FifoShape& shape, int peer,
                                 std::unique_ptr<transport::ReceiveConnection> connection)
    : memory_(interleaved(shape)), connection_(std::move(connection)) {
  registration_ =
      connection_->register_memory(memory_.data(), memory_.bytes(), transport::MemoryKind::kHost);
  end_.memory = memory_.data();
  end_.shape = interleaved(shape);
  end_.peer = peer;
}

bool NetworkReceiver::poll() {
  return naming_peer(end_.peer, "receiving from", [this] {
    bool moved = false;
    while (started_ - end_.received < end_.shape.headers) {
      SlotHeader* slot = end_.header(started_ + 1);
      const std::array<transport::ReceiveBuffer, 1> buffer = {
          {{reinterpret_cast<std::byte*>(slot) + kSkip, end_.shape.header_stride() - kSkip, kTag,
            registration_.get()}}};
      std::unique_ptr<transport::Request> request = connection_->receive(buffer);
      if (request == nullptr) break;
      requests_.push_back(std::move(request));
      ++started_;
      moved = true;
    }
    while (!requests_.empty()) {
      const std::optional<std::size_t> bytes = requests_.front()->test();
      if (!bytes.has_value()) break;
      SlotHeader* slot = end_.header(finished_ + 1);
      if (*bytes < sizeof(SlotHeader) - kSkip || *bytes != wire_bytes(*slot) ||
          slot->kind == SlotKind::kAddress) {
        throw Error(Errc::kPeerLost, "a malformed chunk of {} bytes arrived", *bytes);
      }
      requests_.pop_front();
      ++finished_;
      std::atomic_ref(slot->sequence).store(finished_, std::memory_order_release);
      moved = true;
    }
    return moved;
  });
}

}  // namespace ropewalk::comm
