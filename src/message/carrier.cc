#include "message/carrier.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "link/naming_peer.h"

namespace ropewalk::message {
namespace {

using executor::SlotHeader;
using executor::SlotKind;

// Beside the links of host memory's collectives (0) and of GPUs (1).
constexpr std::uint32_t kLinkTag = 2;
constexpr std::uint32_t kSlots = 8;
// A put's chunk. On loopback TCP 128 KiB reach the rate of larger ones.
constexpr std::uint32_t kSlotBytes = std::uint32_t{128} << 10U;
static_assert(kSlotBytes <= GpuInbox::kMostBytes);
// From here on a chunk is sent from where it lies: below, a copy costs less than a second buffer.
constexpr std::uint64_t kAddressBytes = std::uint64_t{16} << 10U;
// Chunks that are served before the links are moved again.
constexpr int kServedAtOnce = static_cast<int>(kSlots);

Error malformed(std::string_view what) {
  return {Errc::kPeerLost, "a malformed message for windows arrived: {}", what};
}

}  // namespace

link::NetworkLinks::Options Carrier::link_options() {
  link::NetworkLinks::Options options;
  options.shape.headers = kSlots;
  options.shape.slots = kSlots;
  options.shape.slot_bytes = kSlotBytes;
  options.tag = kLinkTag;
  return options;
}

void Carrier::connect(int peer) {
  Peer& made = peers_[peer];
  if (made.sender != nullptr) return;
  made.receiver = &links_->receiver(0, peer);
  // Whether a chunk is wanted is not known: the link is asked at each turn.
  made.receiver->end().waited = true;
  made.sender = &links_->sender(0, peer);
}

void Carrier::add(Window& window) {
  if (transport::window::Gpu* gpu = window.gpu(); gpu != nullptr && inboxes_[gpu] == nullptr) {
    inboxes_[gpu] = std::make_unique<GpuInbox>(*gpu);
  }
  windows_[window.number()] = &window;
}

void Carrier::remove(const Window& window) {
  settle();
  windows_.erase(window.number());
}

GpuInbox* Carrier::inbox_of(const Window& window) const {
  return window.gpu() == nullptr ? nullptr : inboxes_.at(window.gpu()).get();
}

void Carrier::settle() {
  for (const auto& [gpu, inbox] : inboxes_) inbox->settle();
}

void Carrier::start(Operation& operation) {
  const OperationSpec& spec = operation.spec;
  const auto found = peers_.find(spec.peer);
  if (found == peers_.end()) {
    operation.fail(Error(Errc::kPeerLost, "{}: rank {} left the communicator",
                         describe(operation.spec), spec.peer),
                   true);
    return;
  }
  Peer& peer = found->second;
  Item item;
  item.operation = &operation;
  item.frame.number = spec.window->number();
  switch (spec.kind) {
    case OperationKind::kPut:
      item.frame.kind = FrameKind::kPut;
      item.frame.value = spec.offset;
      item.data = spec.source;
      item.bytes = spec.bytes;
      if (spec.on_gpu) item.window = spec.window;
      break;
    case OperationKind::kSignal:
      item.frame.kind = FrameKind::kSignal;
      item.frame.value = spec.count;
      item.frame.slot = static_cast<std::uint16_t>(spec.slot);
      break;
    case OperationKind::kGet:
      operation.number = ++peer.last_number;
      item.frame.kind = FrameKind::kGet;
      item.frame.value = spec.offset;
      item.request = {spec.bytes, operation.number, 0};
      item.bytes = sizeof(GetRequest);
      peer.asked[operation.number] = &operation;
      break;
    case OperationKind::kFlush:
      operation.number = ++peer.last_number;
      item.frame.kind = FrameKind::kFlush;
      item.frame.number = operation.number;
      peer.asked[operation.number] = &operation;
      break;
    case OperationKind::kWaitSignal: RW_ASSERT(false);
  }
  peer.items.push_back(item);
  (void)hand_on(peer);
}

void Carrier::post(int peer, const Frame& frame, std::span<const std::byte> data) {
  RW_ASSERT(data.size() < kAddressBytes);
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;  // it left, and its kernels with it
  Item& item = found->second.items.emplace_back();
  item.frame = frame;
  item.copied.assign(data.begin(), data.end());
  item.data = item.copied.data();
  item.bytes = data.size();
  (void)hand_on(found->second);
}

// ---- writing ------------------------------------------------------------------------------

bool Carrier::write(Peer& peer, Item& item) {
  executor::SendEnd& end = peer.sender->end();
  if (end.published - end.consumed_seen >= end.shape.slots) {
    end.consumed_seen = std::atomic_ref(*end.consumed_at).load(std::memory_order_acquire);
    if (end.published - end.consumed_seen >= end.shape.slots) return false;
  }
  const std::uint64_t next = end.published + 1;
  const std::uint64_t bytes = std::min<std::uint64_t>(item.bytes - item.moved, kSlotBytes);
  Frame frame = item.frame;
  if (frame.kind == FrameKind::kPut || frame.kind == FrameKind::kAnswer) frame.value += item.moved;
  const std::byte* const data =
      (item.frame.kind == FrameKind::kGet ? reinterpret_cast<const std::byte*>(&item.request)
                                          : item.data) +
      item.moved;
  SlotHeader& header = *end.header(next);
  header.tag = to_tag(frame);
  header.bytes = static_cast<std::uint32_t>(bytes);
  const auto copy = [&](void* to) {
    if (item.window != nullptr) {
      item.window->copy(to, data, bytes);
    } else if (bytes > 0) {
      std::memcpy(to, data, bytes);
    }
  };
  if (bytes <= executor::kInlineBytes) {
    header.kind = SlotKind::kInline;
    copy(header.inline_data);
  } else if (bytes >= kAddressBytes && end.address_allowed && item.window == nullptr) {
    header.kind = SlotKind::kAddress;
    header.address = reinterpret_cast<std::uint64_t>(data);
    item.lent = true;
  } else {
    header.kind = SlotKind::kStaged;
    copy(end.data(next, bytes));
  }
  item.moved += bytes;
  end.published = next;
  const bool last = item.moved == item.bytes;
  // Those that are asked for end with their answer.
  if (!last || item.operation == nullptr || item.frame.kind == FrameKind::kGet ||
      item.frame.kind == FrameKind::kFlush) {
    return true;
  }
  if (item.lent) {
    peer.lent.push_back({item.operation, next});
  } else {
    item.operation->end();
  }
  return true;
}

bool Carrier::hand_on(Peer& peer) {
  bool moved = false;
  while (!peer.items.empty() && write(peer, peer.items.front())) {
    moved = true;
    Item& item = peer.items.front();
    if (item.moved == item.bytes) peer.items.pop_front();
  }
  return moved;
}

bool Carrier::end_lent(Peer& peer) {
  if (peer.lent.empty()) return false;
  executor::SendEnd& end = peer.sender->end();
  end.consumed_seen = std::atomic_ref(*end.consumed_at).load(std::memory_order_acquire);
  bool moved = false;
  while (!peer.lent.empty() && peer.lent.front().last <= end.consumed_seen) {
    Operation* operation = peer.lent.front().operation;
    peer.lent.pop_front();
    operation->end();
    moved = true;
  }
  return moved;
}

// ---- serving ------------------------------------------------------------------------------

Window& Carrier::window_of(const Frame& frame) const {
  const auto found = windows_.find(frame.number);
  if (found == windows_.end()) throw malformed("no such window");
  return *found->second;
}

KernelQueues& Carrier::queues_of(const Frame& frame) const {
  KernelQueues* queues = window_of(frame).queues();
  if (queues == nullptr) throw malformed("for no queue");
  return *queues;
}

void Carrier::handle(int rank, Peer& peer, const Frame& frame, const SlotHeader& header,
                     const std::byte* data) {
  const std::uint64_t bytes = header.bytes;
  switch (frame.kind) {
    case FrameKind::kPut: {
      const Window& window = window_of(frame);
      const Part& own = window.own();
      if (frame.value > own.bytes || bytes > own.bytes - frame.value) throw malformed("a put");
      if (bytes == 0) return;
      std::byte* const to = own.data + frame.value;
      if (GpuInbox* inbox = inbox_of(window)) {
        inbox->put(reinterpret_cast<std::uint64_t>(to), data, bytes);
      } else {
        std::memcpy(to, data, bytes);
      }
      return;
    }
    case FrameKind::kSignal: {
      Window& window = window_of(frame);
      if (frame.slot >= window.slots()) throw malformed("a signal");
      const std::uint64_t counted = window.count_carried(rank, frame.slot, frame.value);
      GpuInbox* inbox = inbox_of(window);
      if (inbox != nullptr && !inbox->idle()) {
        // After the puts before it.
        inbox->raise(window.counter_in_host(window.rank(), rank, frame.slot), counted);
      } else {
        window.set_carried(rank, frame.slot, counted);
      }
      return;
    }
    case FrameKind::kQueued: queues_of(frame).deliver(rank, frame.slot, {data, bytes}); return;
    case FrameKind::kTaken: queues_of(frame).hear_taken(rank, frame.slot, frame.value); return;
    case FrameKind::kGet: {
      GetRequest request;
      if (bytes != sizeof request) throw malformed("a get");
      std::memcpy(&request, data, sizeof request);
      const Window& window = window_of(frame);
      const Part& own = window.own();
      if (frame.value > own.bytes || request.bytes > own.bytes - frame.value) {
        throw malformed("a get");
      }
      Item answer;
      answer.frame = {FrameKind::kAnswer, 0, request.operation, 0};
      answer.data = own.data + frame.value;
      answer.bytes = request.bytes;
      if (window.gpu() != nullptr) {
        answer.window = &window;
        settle();
      }
      peer.items.push_back(answer);
      return;
    }
    case FrameKind::kFlush: {
      Item answer;
      answer.frame = {FrameKind::kFlushed, 0, frame.number, 0};
      settle();
      peer.items.push_back(answer);
      return;
    }
    case FrameKind::kAnswer:
    case FrameKind::kFlushed: {
      const auto found = peer.asked.find(frame.number);
      if (found == peer.asked.end()) throw malformed("an answer");
      Operation& operation = *found->second;
      if (frame.kind == FrameKind::kAnswer) {
        const OperationSpec& spec = operation.spec;
        if (spec.kind != OperationKind::kGet || frame.value != operation.moved ||
            bytes > spec.bytes - operation.moved) {
          throw malformed("an answer");
        }
        if (spec.on_gpu) {
          spec.window->copy(spec.destination + operation.moved, data, bytes);
        } else if (bytes > 0) {
          std::memcpy(spec.destination + operation.moved, data, bytes);
        }
        operation.moved += bytes;
        if (operation.moved < spec.bytes) return;
      }
      peer.asked.erase(found);
      operation.end();
      return;
    }
  }
}

bool Carrier::serve(int rank, Peer& peer) {
  return link::naming_peer(rank, "serving", [&] {
    executor::ReceiveEnd& end = peer.receiver->end();
    bool moved = false;
    for (int k = 0; k < kServedAtOnce; ++k) {
      const std::uint64_t next = end.received + 1;
      const SlotHeader& header = *end.header(next);
      if (std::atomic_ref(end.header(next)->sequence).load(std::memory_order_acquire) != next) {
        break;
      }
      const std::optional<Frame> frame = frame_of(header.tag);
      if (!frame.has_value()) throw malformed("unknown kind");
      handle(rank, peer, *frame, header,
             header.kind == SlotKind::kInline ? header.inline_data : end.data(next, header.bytes));
      end.received = next;
      moved = true;
    }
    return moved;
  });
}

bool Carrier::poll() {
  bool moved = links_->poll();
  if (left_) return moved;
  for (auto& [rank, peer] : peers_) {
    moved |= serve(rank, peer);
    moved |= end_lent(peer);
    moved |= hand_on(peer);
  }
  return moved;
}

// ---- ends ---------------------------------------------------------------------------------

template <typename Function>
void Carrier::for_each_operation(const Peer& peer, Function&& function) {
  // One that asks is in two lists.
  std::set<Operation*> all;
  for (const Item& item : peer.items) {
    if (item.operation != nullptr) all.insert(item.operation);
  }
  for (const Lent& lent : peer.lent) all.insert(lent.operation);
  for (const auto& [number, operation] : peer.asked) all.insert(operation);
  for (Operation* operation : all) function(*operation);
}

void Carrier::drop(int peer, const Error& error) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  for_each_operation(found->second, [&](Operation& operation) { operation.fail(error, true); });
  peers_.erase(found);
  links_->forget(peer);
}

bool Carrier::drained() {
  return links_->drained() && std::ranges::all_of(peers_, [](const auto& entry) {
           return entry.second.items.empty() && entry.second.lent.empty();
         });
}

void Carrier::leave() {
  left_ = true;
  for (auto& [rank, peer] : peers_) peer.sender = nullptr;
  links_->close_senders();
}

void Carrier::fail_all(const Error& error) {
  for (auto& [rank, peer] : peers_) {
    for_each_operation(peer, [&](Operation& operation) { operation.fail(error, false); });
    peer.items.clear();
    peer.lent.clear();
    peer.asked.clear();
  }
}

bool Carrier::busy(const Window& window) const {
  bool found = false;
  for (const auto& [rank, peer] : peers_) {
    for_each_operation(
        peer, [&](const Operation& operation) { found |= operation.spec.window == &window; });
  }
  return found;
}

}  // namespace ropewalk::message
