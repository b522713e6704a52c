#include "capi/mp/peer_channel.h"

#include <algorithm>

#include "capi/mp/failure.h"

namespace ropewalk::mp {
namespace {

constexpr std::size_t kMostPartBytes = std::size_t{32} << 20U;
constexpr std::size_t kLeastChunk = std::size_t{4} << 10U;
constexpr std::size_t kMostChunk = std::size_t{64} << 10U;
// The peer is told of consumed chunks when so many are; it has as many left meanwhile.
constexpr std::uint64_t kAnnounced = RingLayout::kChunks / 2;

// Calls `each(data, bytes, offset in the range)` for the pieces of `blocks` in [begin, end).
template <typename Each>
void for_each_piece(const std::vector<Block>& blocks, std::size_t begin, std::size_t end,
                    Each&& each) {
  std::size_t at = 0;
  for (const Block& block : blocks) {
    const std::size_t from = std::max(at, begin);
    const std::size_t to = std::min(at + block.bytes, end);
    if (from < to) each(block.data + (from - at), to - from, from - begin);
    at += block.bytes;
    if (at >= end) return;
  }
}

}  // namespace

RingLayout RingLayout::for_ranks(int size) {
  RingLayout layout;
  const std::size_t fits = kMostPartBytes / kChunks / static_cast<std::size_t>(size) / 4096 * 4096;
  layout.chunk_bytes = std::clamp(fits, kLeastChunk, kMostChunk);
  return layout;
}

void PeerChannel::send(mp_request& request) { sends_.push_back(&request); }

bool PeerChannel::poll() {
  const bool sent = !sends_.empty() && poll_sends();
  const bool received = !receives_.empty() && poll_receives();
  return sent || received;
}

// A send follows the puts before it: they must be complete at the peer, since the ring may be
// shared memory while a link carries the puts.
bool PeerChannel::flushed() {
  for (;;) {
    if (flush_ != nullptr) {
      const rwResult_t result = rwRequestWait(flush_, 0);
      if (result == rwInProgress) return false;
      check(rwRequestFree(flush_));
      flush_ = nullptr;
      check(result);
    }
    if (unflushed_.empty()) return true;
    const rwMessageWindow_t window = *unflushed_.begin();
    unflushed_.erase(unflushed_.begin());
    check(rwFlush(peer_, window, nullptr, &flush_));
  }
}

bool PeerChannel::poll_sends() {
  bool moved = false;
  for (std::size_t chunks = 0; !sends_.empty() && chunks < RingLayout::kChunks; ++chunks) {
    mp_request& request = *sends_.front();
    if (!request.begun && !flushed()) return moved;
    if (put_ - consumed_ == RingLayout::kChunks) {
      check(rwSignalCount(peer_, kSlotConsumed, window_, &consumed_));
      if (put_ - consumed_ == RingLayout::kChunks) return moved;
    }
    put_chunk(request);
    moved = true;
    if (request.moved < request.bytes) continue;
    sends_.pop_front();
    request.end();
  }
  return moved;
}

void PeerChannel::put_chunk(mp_request& request) {
  const std::size_t offset = layout_.offset(self_, put_);
  const std::size_t end = std::min(request.moved + layout_.chunk_bytes, request.bytes);
  if (!request.begun) {
    const std::uint64_t bytes = request.bytes;
    check(rwPut(&bytes, sizeof bytes, peer_, offset, window_, nullptr, nullptr));
    request.begun = true;
  }
  for_each_piece(request.blocks, request.moved, end,
                 [&](const std::byte* data, std::size_t bytes, std::size_t at) {
                   check(rwPut(data, bytes, peer_, offset + RingLayout::kLine + at, window_,
                               nullptr, nullptr));
                 });
  check(rwSignal(peer_, kSlotArrived, 1, window_, nullptr, nullptr));
  ++put_;
  request.moved = end;
}

bool PeerChannel::poll_receives() {
  if (arrived_ == taken_) check(rwSignalCount(peer_, kSlotArrived, window_, &arrived_));
  bool moved = false;
  while (!receives_.empty() && taken_ < arrived_) {
    mp_request& request = *receives_.front();
    take_chunk(request);
    moved = true;
    if (request.moved < request.message_bytes) continue;
    receives_.pop_front();
    if (request.message_bytes <= request.bytes) {
      request.end();
    } else {
      request.end("a message of " + std::to_string(request.message_bytes) + " bytes from rank " +
                  std::to_string(peer_) + " came for a receive of " +
                  std::to_string(request.bytes) + ", and was dropped");
    }
  }
  return moved;
}

void PeerChannel::take_chunk(mp_request& request) {
  const std::size_t offset = layout_.offset(peer_, taken_);
  if (!request.begun) {
    std::uint64_t bytes = 0;
    check(rwGet(&bytes, sizeof bytes, self_, offset, window_, nullptr, nullptr));
    request.message_bytes = bytes;
    request.begun = true;
  }
  const std::size_t end = std::min(request.moved + layout_.chunk_bytes, request.message_bytes);
  if (request.message_bytes <= request.bytes) {
    // A get from this rank's own part: a copy, to whatever memory it is.
    for_each_piece(request.blocks, request.moved, end,
                   [&](std::byte* data, std::size_t bytes, std::size_t at) {
                     check(rwGet(data, bytes, self_, offset + RingLayout::kLine + at, window_,
                                 nullptr, nullptr));
                   });
  }
  request.moved = end;
  ++taken_;
  if (taken_ - announced_ < kAnnounced) return;
  check(rwSignal(peer_, kSlotConsumed, taken_ - announced_, window_, nullptr, nullptr));
  announced_ = taken_;
}

void PeerChannel::fail(const std::string& text) {
  for (std::deque<mp_request*>* const requests : {&sends_, &receives_}) {
    for (mp_request* const request : *requests) request->end(text);
    requests->clear();
  }
}

}  // namespace ropewalk::mp
