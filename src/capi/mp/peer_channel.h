// Sends and receives between this rank and one peer, over a window.
//
// Each rank's part of the window has a ring of kChunks chunks for each source. A sender puts a
// message into the peer's ring, chunk by chunk, and signals each; the receiver copies them to the
// buffer of the receive and signals back how many it has consumed. So a message may come before its
// receive is posted, and no function here waits: a caller that waits calls poll() again.
//
// A chunk begins with a line for the length of the message, which only a message's first chunk
// fills in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <set>

#include "capi/mp/request.h"

namespace ropewalk::mp {

/// Slots of the window.
inline constexpr int kSlotArrived = 0;   ///< chunks put
inline constexpr int kSlotConsumed = 1;  ///< chunks copied out
inline constexpr int kSlotBarrier = 2;
inline constexpr int kSlots = 3;

/// Where the chunks of a window lie. The same on all ranks.
struct RingLayout {
  static constexpr std::size_t kChunks = 8;
  static constexpr std::size_t kLine = 64;
  std::size_t chunk_bytes = 0;

  /// Chunks as large as keep the part of one rank within 32 MiB: 4 to 64 KiB.
  static RingLayout for_ranks(int size);
  [[nodiscard]] std::size_t part_bytes(int size) const {
    return static_cast<std::size_t>(size) * kChunks * (kLine + chunk_bytes);
  }
  [[nodiscard]] std::size_t offset(int source, std::uint64_t chunk) const {
    return (static_cast<std::size_t>(source) * kChunks + chunk % kChunks) * (kLine + chunk_bytes);
  }
};

/// Threads: one at a time.
class PeerChannel {
 public:
  PeerChannel(int self, int peer, RingLayout layout, rwMessageWindow_t window)
      : self_(self), peer_(peer), layout_(layout), window_(window) {}

  void send(mp_request& request);
  void receive(mp_request& request) { receives_.push_back(&request); }
  /// A put of this rank to `window` at the peer: sends from now on are seen after it.
  void put_before(rwMessageWindow_t window) { unflushed_.insert(window); }

  [[nodiscard]] bool idle() const noexcept { return sends_.empty() && receives_.empty(); }
  /// Moves what can be moved, a ring of chunks each way at most. @return whether anything did.
  /// @throws Failure
  bool poll();
  /// Ends all with an error.
  void fail(const std::string& text);

 private:
  bool poll_sends();
  bool poll_receives();
  bool flushed();
  void put_chunk(mp_request& request);
  void take_chunk(mp_request& request);

  int self_;
  int peer_;
  RingLayout layout_;
  rwMessageWindow_t window_;
  std::deque<mp_request*> sends_;
  std::deque<mp_request*> receives_;
  std::set<rwMessageWindow_t> unflushed_;
  rwRequest_t flush_ = nullptr;

  std::uint64_t put_ = 0;        // chunks put to the peer
  std::uint64_t consumed_ = 0;   // of those, consumed by it as last seen
  std::uint64_t arrived_ = 0;    // chunks of the peer, as last seen
  std::uint64_t taken_ = 0;      // of those, copied out
  std::uint64_t announced_ = 0;  // of those, told to the peer
};

}  // namespace ropewalk::mp
