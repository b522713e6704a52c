#include "link/network_link.h"

#include <sys/mman.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <span>
#include <utility>

#include "core/error.h"
#include "link/naming_peer.h"

namespace ropewalk::link {
namespace {

using executor::SlotHeader;
using executor::SlotKind;

constexpr std::uint32_t kTag = 1;
constexpr std::size_t kSkip = kHeaderSkip;
constexpr std::size_t kHeadBytes = kHeaderWireBytes;
static_assert(kHeadBytes <= transport::kMaxHeadBytes);
// After a chunk of this size the receiving rank may say where it wants the next one, before that is
// taken from the connection.
constexpr std::size_t kLongBytes = std::size_t{16} << 10;

std::size_t wire_bytes(const SlotHeader& slot) {
  return kHeadBytes + (slot.kind == SlotKind::kInline ? 0 : slot.bytes);
}

// A chunk travels as one piece: header and data must lie together.
executor::FifoShape interleaved(executor::FifoShape shape) {
  shape.interleaved = true;
  shape.headers = shape.slots;
  shape.short_slots = shape.short_bytes = shape.short_stride = 0;
  return shape;
}

}  // namespace

FifoMemory host_fifo(std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw system_error(errno, "mmap for a network link");
  return {static_cast<std::byte*>(memory), [bytes](std::byte* begin) { munmap(begin, bytes); }};
}

std::size_t network_end_bytes(executor::FifoShape shape) noexcept {
  return interleaved(shape).bytes();
}

template <typename Connection, typename End>
NetworkEnd<Connection, End>::NetworkEnd(FifoMemory memory, std::size_t bytes, int peer,
                                        bool by_blocks)
    : memory_(std::move(memory)), memory_bytes_(bytes), by_blocks_(by_blocks) {
  end_.peer = peer;
}

template <typename Connection, typename End>
void NetworkEnd<Connection, End>::use(std::unique_ptr<Connection> connection) {
  connection_ = std::move(connection);
  registration_ =
      connection_->register_memory(memory_.get(), memory_bytes_, transport::MemoryKind::kHost);
}

template class NetworkEnd<transport::SendConnection, executor::SendEnd>;
template class NetworkEnd<transport::ReceiveConnection, executor::ReceiveEnd>;

NetworkSender::NetworkSender(const executor::FifoShape& shape, int peer,
                             const FifoMaker& make_memory, bool by_blocks)
    : NetworkEnd(make_memory(network_end_bytes(shape)), network_end_bytes(shape), peer, by_blocks) {
  end_.lie_in(memory_.get(), interleaved(shape));
  // A rank that returns from a call may not call again soon, so its messages must be in flight by
  // then.
  end_.drain_all = !by_blocks;
}

void NetworkSender::use(std::unique_ptr<transport::SendConnection> connection) {
  NetworkEnd::use(std::move(connection));
  end_.address_allowed = !by_blocks_ && connection_->splits_messages();
}

std::unique_ptr<transport::Request> NetworkSender::send(SlotHeader& slot) {
  std::byte* const head = reinterpret_cast<std::byte*>(&slot) + kSkip;
  if (slot.kind != SlotKind::kAddress) {
    return connection_->send(head, wire_bytes(slot), kTag, registration_.get());
  }
  // The other end stages the data; the address is meaningless to it.
  SlotHeader sent = slot;
  sent.kind = SlotKind::kStaged;
  sent.address = 0;
  return connection_->send_split(std::as_bytes(std::span(&sent, 1)).subspan(kSkip),
                                 reinterpret_cast<const std::byte*>(slot.address), slot.bytes,
                                 kTag);
}

void NetworkSender::count_published() {
  for (;;) {
    const std::uint64_t next = end_.published + 1;
    const std::atomic_ref sequence(end_.header(next)->sequence);
    if (sequence.load(std::memory_order_acquire) != next) return;
    end_.published = next;
  }
}

bool NetworkSender::drained() {
  if (by_blocks_) count_published();
  return started_ == end_.published && requests_.empty();
}

bool NetworkSender::add_descriptors(std::vector<pollfd>& to) {
  return !by_blocks_ && (drained() || connection_->add_descriptors(to));
}

bool NetworkSender::poll() {
  return naming_peer(end_.peer, "sending to", [this] {
    bool moved = false;
    if (by_blocks_) count_published();
    while (started_ < end_.published) {
      SlotHeader& slot = *end_.header(started_ + 1);
      connection_->more_follow(started_ + 1 < end_.published);
      std::unique_ptr<transport::Request> request = send(slot);
      if (request == nullptr) break;
      // Links of several threads may be over one NIC.
      if (counter_ != nullptr) counter_->add_shared(slot.bytes);
      requests_.push_back(std::move(request));
      ++started_;
      moved = true;
    }
    return take_finished() || moved;
  });
}

bool NetworkSender::take_finished() {
  bool any = false;
  while (!requests_.empty() && requests_.front()->test().has_value()) {
    requests_.pop_front();
    const std::uint64_t consumed = started_ - requests_.size();
    std::atomic_ref(*end_.consumed_at).store(consumed, std::memory_order_release);
    any = true;
  }
  return any;
}

NetworkReceiver::NetworkReceiver(const executor::FifoShape& shape, int peer,
                                 const FifoMaker& make_memory, bool by_blocks)
    : NetworkEnd(make_memory(network_end_bytes(shape)), network_end_bytes(shape), peer, by_blocks) {
  end_.lie_in(memory_.get(), interleaved(shape));
}

bool NetworkReceiver::poll() {
  if (fault_.has_value()) {
    if (starved()) throw Error(*fault_);
    return false;
  }
  const std::uint64_t before = finished_;
  try {
    return take_chunks();
  } catch (const Error& error) {
    if (by_blocks_ || starved()) throw;
    fault_ = error;
    return finished_ != before;
  }
}

bool NetworkReceiver::take_chunks() {
  return naming_peer(end_.peer, "receiving from", [this] {
    bool moved = false;
    if (by_blocks_) {
      end_.received = std::atomic_ref(*end_.consumed_at).load(std::memory_order_acquire);
    }
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
    const std::uint64_t finished_before = finished_;
    while (!requests_.empty()) {
      transport::Request& next = *requests_.front();
      // There is something to go on with: the rank first does that.
      if (finished_ != finished_before && !next.at_hand()) break;
      const bool wanted = end_.received == finished_;
      if (wanted) next.place_rest(kHeadBytes, end_.destination, end_.destination_bytes);
      const std::optional<std::size_t> bytes = next.test();
      if (!bytes.has_value()) break;
      SlotHeader* slot = end_.header(finished_ + 1);
      if (*bytes < kHeadBytes || *bytes != wire_bytes(*slot) || slot->kind == SlotKind::kAddress) {
        throw Error(Errc::kPeerLost, "a malformed chunk of {} bytes arrived", *bytes);
      }
      if (next.placed()) {
        slot->kind = SlotKind::kAddress;
        slot->address = reinterpret_cast<std::uint64_t>(end_.destination);
      }
      end_.destination = nullptr;
      requests_.pop_front();
      ++finished_;
      std::atomic_ref(slot->sequence).store(finished_, std::memory_order_release);
      moved = true;
      if (slot->bytes >= kLongBytes) break;
    }
    return moved;
  });
}

}  // namespace ropewalk::link
