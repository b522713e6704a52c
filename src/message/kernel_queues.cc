#include "message/kernel_queues.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <functional>
#include <new>

#include "core/error.h"
#include "message/window.h"

namespace ropewalk::message {
namespace {

namespace gpus = transport::window;

constexpr std::size_t kLineBytes = 16;
constexpr std::size_t kWordsOfLine = 2;
constexpr std::size_t kDataOfLine = 8;
constexpr std::size_t kCacheLine = 64;
constexpr std::uint64_t kLeastLines = 64;
// A receiver tells of a quarter of the ring at once (device.cuh, Queue::receive).
constexpr std::uint64_t lines_for(std::size_t bytes) {
  const std::uint64_t data = (bytes + kDataOfLine - 1) / kDataOfLine;
  return std::max(kLeastLines, std::bit_ceil(data + (data + 2) / 3));
}
constexpr std::uint64_t kLow = 0xffffffffU;
// A queue in which nothing moved for so many turns is looked at in one turn of so many: each look
// is a line of memory that a GPU may have written.
constexpr unsigned kIdleTurns = 1000;
constexpr unsigned kIdleShare = 8;
// Of one frame: what a link copies to a slot rather than lends from where it lies.
constexpr std::size_t kMostFrame = std::size_t{8} << 10U;

std::uint64_t lap_of(std::uint64_t number, std::uint64_t lines) {
  return (number / lines + 1) & kLow;
}

Error malformed(const char* what) {
  return {Errc::kPeerLost, "a malformed message for queues arrived: {}", what};
}

}  // namespace

QueueLayout::QueueLayout(int ranks, int slots, std::size_t bytes)
    : queues_(static_cast<std::size_t>(ranks) * static_cast<std::size_t>(slots)),
      slots_(slots),
      lines_(lines_for(bytes)) {}

std::size_t QueueLayout::index(int rank, int slot) const noexcept {
  return static_cast<std::size_t>(rank) * static_cast<std::size_t>(slots_) +
         static_cast<std::size_t>(slot);
}

std::size_t QueueLayout::bytes() const noexcept {
  return queues_ * (lines_ * kLineBytes + kCacheLine);
}

std::size_t QueueLayout::lines_offset(int source, int slot) const noexcept {
  return index(source, slot) * lines_ * kLineBytes;
}

std::size_t QueueLayout::taken_offset(int peer, int slot) const noexcept {
  return queues_ * lines_ * kLineBytes + index(peer, slot) * kCacheLine;
}

KernelQueues::KernelQueues(const Window& window, const QueueLayout& layout)
    : layout_(layout), gpu_(window.gpu()), number_(window.number()) {
  const int slots = window.slots();
  std::vector<int> carried;
  const auto at = [](const Part& part, std::size_t offset) {
    return reinterpret_cast<std::uint64_t*>(part.data + offset);
  };
  queues_.reserve(static_cast<std::size_t>(window.size()) * static_cast<std::size_t>(slots));
  for (int peer = 0; peer < window.size(); ++peer) {
    const Part& part = window.part(peer);
    // Both ways, or none: lines go the one way and what was taken the other.
    const bool mapped = part.mapped && !part.served;
    if (!mapped) carried.push_back(peer);
    for (int slot = 0; slot < slots; ++slot) {
      rwDeviceQueue& queue = queues_.emplace_back();
      if (!mapped) continue;
      queue.out =
          reinterpret_cast<std::uint32_t*>(at(part, layout.lines_offset(window.rank(), slot)));
      queue.in_taken = at(part, layout.taken_offset(window.rank(), slot));
      queue.in =
          reinterpret_cast<std::uint32_t*>(at(window.own(), layout.lines_offset(peer, slot)));
      queue.out_taken = at(window.own(), layout.taken_offset(peer, slot));
    }
  }
  if (carried.empty()) return;
  gathered_.resize(kMostFrame / kDataOfLine);
  make_links(carried, slots);
}

KernelQueues::~KernelQueues() { give(); }

void KernelQueues::give() noexcept {
  if (memory_ == nullptr) return;
  if (gpu_ == nullptr) {
    ::operator delete (memory_, std::align_val_t{kCacheLine});
    return;
  }
  try {
    const gpus::CurrentContext current(gpu_->cuda(), gpu_->context());
    gpu_->cuda().warn(gpu_->cuda().host_free(memory_), "cuMemFreeHost");
  } catch (const Error&) {
    // CUDA has ended before this did.
  }
}

void KernelQueues::make_links(const std::vector<int>& peers, int slots) {
  const std::size_t ring = layout_.lines() * kLineBytes;
  const std::size_t each = 2 * ring + 2 * kCacheLine;
  const std::size_t bytes = peers.size() * static_cast<std::size_t>(slots) * each;
  std::uint64_t shift = 0;  // from the host's to the GPU's address
  if (gpu_ == nullptr) {
    memory_ = ::operator new (bytes, std::align_val_t{kCacheLine});
  } else {
    const gpus::CudaApi& cuda = gpu_->cuda();
    const gpus::CurrentContext current(cuda, gpu_->context());
    cuda.check(cuda.host_allocate(&memory_, bytes, gpus::kCuHostPortable | gpus::kCuHostDeviceMap),
               "cuMemHostAlloc");
    gpus::CuPointer device = 0;
    try {
      cuda.check(cuda.host_pointer(&device, memory_, 0), "cuMemHostGetDevicePointer");
    } catch (const Error&) {
      give();
      throw;
    }
    shift = device - reinterpret_cast<std::uint64_t>(memory_);
  }
  std::memset(memory_, 0, bytes);
  auto* next = static_cast<std::byte*>(memory_);
  const auto take = [&](std::size_t size) {
    auto* taken = reinterpret_cast<std::uint64_t*>(next);
    next += size;
    return taken;
  };
  const auto on_gpu = [shift](std::uint64_t* address) {
    // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the GPU
    return reinterpret_cast<std::uint64_t*>(reinterpret_cast<std::uint64_t>(address) + shift);
  };
  for (const int peer : peers) {
    for (int slot = 0; slot < slots; ++slot) {
      Link& made = links_.emplace_back();
      made.peer = peer;
      made.slot = slot;
      made.out = take(ring);
      made.in = take(ring);
      made.out_taken = take(kCacheLine);
      made.in_taken = take(kCacheLine);
      rwDeviceQueue& queue =
          queues_[static_cast<std::size_t>(peer) * static_cast<std::size_t>(slots) +
                  static_cast<std::size_t>(slot)];
      queue.out = reinterpret_cast<std::uint32_t*>(on_gpu(made.out));
      queue.in = reinterpret_cast<std::uint32_t*>(on_gpu(made.in));
      queue.out_taken = on_gpu(made.out_taken);
      queue.in_taken = on_gpu(made.in_taken);
    }
  }
}

bool KernelQueues::is_accessible(const void* memory, std::size_t bytes) const noexcept {
  const auto* const begin = static_cast<const std::byte*>(memory);
  return std::ranges::any_of(accessible_, [&](std::span<const std::byte> range) {
    return !std::less<>()(begin, range.data()) &&
           !std::less<>()(range.data() + range.size(), begin + bytes);
  });
}

void KernelQueues::add_accessible(const void* memory, std::size_t bytes) noexcept {
  accessible_[next_accessible_] = {static_cast<const std::byte*>(memory), bytes};
  next_accessible_ = (next_accessible_ + 1) % accessible_.size();
}

bool KernelQueues::poll(const Post& post) {
  if (stopped_) return false;
  bool moved = false;
  ++turn_;
  for (std::size_t k = 0; k < links_.size(); ++k) {
    Link& each = links_[k];
    if (each.idle >= kIdleTurns && (turn_ + k) % kIdleShare != 0) continue;
    if (poll(each, post)) {
      each.idle = 0;
      moved = true;
    } else if (each.idle < kIdleTurns) {
      ++each.idle;
    }
  }
  return moved;
}

void KernelQueues::drain(const Post& post) {
  if (stopped_) return;
  for (Link& each : links_) {
    while (poll(each, post)) {
    }
  }
}

bool KernelQueues::poll(Link& link, const Post& post) {
  const std::uint64_t lines = layout_.lines();
  std::size_t count = 0;
  for (; count < kMostFrame / kDataOfLine; ++count) {
    const std::uint64_t number = link.sent + count;
    std::uint64_t* const line = link.out + number % lines * kWordsOfLine;
    const std::uint64_t lap = lap_of(number, lines);
    const std::uint64_t low = std::atomic_ref(line[0]).load(std::memory_order_acquire);
    if (low >> 32U != lap) break;
    const std::uint64_t high = std::atomic_ref(line[1]).load(std::memory_order_acquire);
    if (high >> 32U != lap) break;
    gathered_[count] = (low & kLow) | high << 32U;
  }
  const auto slot = static_cast<std::uint16_t>(link.slot);
  bool moved = false;
  if (count > 0) {
    link.sent += count;
    moved = true;
    post(link.peer, {FrameKind::kQueued, slot, number_, 0},
         std::as_bytes(std::span(gathered_).first(count)));
  }
  if (link.brought == link.told) return moved;
  const std::uint64_t taken = std::atomic_ref(*link.in_taken).load(std::memory_order_acquire);
  if (taken == link.told) return moved;
  link.told = taken;
  post(link.peer, {FrameKind::kTaken, slot, number_, taken}, {});
  return true;
}

std::vector<int> KernelQueues::carried_peers() const {
  std::vector<int> peers;
  for (const Link& link : links_) {
    if (link.slot == 0) peers.push_back(link.peer);
  }
  return peers;
}

KernelQueues::Link& KernelQueues::link(int peer, int slot) {
  const auto found = std::ranges::find_if(
      links_, [&](const Link& each) { return each.peer == peer && each.slot == slot; });
  if (found == links_.end()) throw malformed("of no such queue");
  return *found;
}

void KernelQueues::deliver(int source, int slot, std::span<const std::byte> data) {
  Link& its = link(source, slot);
  const std::uint64_t lines = layout_.lines();
  const std::uint64_t count = data.size() / kDataOfLine;
  if (data.size() % kDataOfLine != 0 || its.brought + count - its.told > lines) {
    throw malformed("more than there is room for");
  }
  for (std::uint64_t k = 0; k < count; ++k, ++its.brought) {
    std::uint64_t* const line = its.in + its.brought % lines * kWordsOfLine;
    const std::uint64_t lap = lap_of(its.brought, lines) << 32U;
    std::uint64_t word = 0;
    std::memcpy(&word, data.data() + k * kDataOfLine, sizeof word);
    std::atomic_ref(line[0]).store((word & kLow) | lap, std::memory_order_release);
    std::atomic_ref(line[1]).store(word >> 32U | lap, std::memory_order_release);
  }
}

void KernelQueues::hear_taken(int peer, int slot, std::uint64_t taken) {
  Link& its = link(peer, slot);
  if (taken < its.heard || taken > its.sent) throw malformed("what was taken");
  its.heard = taken;
  std::atomic_ref(*its.out_taken).store(taken, std::memory_order_release);
}

}  // namespace ropewalk::message
