// One host thread as a Team of the step walker (executor/walker.h).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "executor/call_history.h"
#include "executor/chunk.h"
#include "executor/host/lending.h"
#include "executor/host/shared_copy.h"
#include "executor/host/slot_readers.h"
#include "executor/host/waiter.h"
#include "executor/traffic.h"
#include "executor/walker.h"

namespace ropewalk::executor {

/// Waits return at once: a host thread drives several strands, and decides between walks how to
/// spend its time (host/waiter.h). Threads: one per object.
class HostTeam {
 public:
  /// `rank` is only for messages.
  explicit HostTeam(int rank) : rank_(rank) {}

  /// How to wait within a transfer, for a peer that shares it. Without, it spins and yields.
  void wait_with(Waiter* waiter) noexcept { waiter_ = waiter; }

  /// From now on counts the bytes of the chunks that it writes into memory which `size` ranks
  /// share: what their readers copy from this rank's buffers, apart.
  void count_in(Traffic& traffic, int size) {
    traffic_ = &traffic;
    counters_.resize(static_cast<std::size_t>(size));
  }

  /// Takes part in the copies that readers of this rank's buffers make now. For threads that wait
  /// for anything.
  /// @return true when it copied
  /// @throws Error kPeerLost if a reader has died
  bool help() { return !offers_.empty() && help_readers(); }

  /// The rank whose part of a shared copy is waited for now, or -1.
  [[nodiscard]] int sharing_with() const noexcept { return sharing_with_; }

  bool wait_arrival(ReceiveEnd& link, std::size_t bytes) const noexcept {
    const std::uint64_t next = link.received + 1;
    // The header's second line is asked for together with the first, or it would be a second miss
    // after it. (For long chunks, too, though nothing of theirs lies there: broadcasts of 1 KiB
    // took 1.05 times as long without, why is not known.) Not lines of slots: who asks for them
    // while the writer writes takes them from it.
    if (bytes > kFirstLineBytes && (bytes <= kInlineBytes || bytes > kPrefetchBytes)) {
      __builtin_prefetch(link.header(next)->inline_data + kFirstLineBytes);
    }
    const bool there = has_come(link);
    link.waited |= !there;
    return there;
  }

  /// Withdraws the destination of a chunk that is only copied from a network link, if the chunk has
  /// not arrived: the step may be waiting for room only, and the link would use the destination for
  /// the chunk after it.
  void expect(Strand& strand, const Call& call, const StepRecord& step,
              Slice slice) const noexcept {
    const std::size_t bytes = slice.count * call.element_bytes;
    const bool plain = bytes >= kPostedBytes && is_plain(step, call);
    for (std::uint32_t k = 0; k < step.num_operands; ++k) {
      const std::int32_t operand = strand.operand(step.first_operand + k);
      if (operand < 0) continue;
      ReceiveEnd& link = strand.receive_end(operand);
      link.destination = plain && !has_come(link)
                             ? call.output + slice_offset(call, step.output_index, slice)
                             : nullptr;
      link.destination_bytes = bytes;
    }
  }

  /// Where the step is a long plain receive, its writer may begin while this rank still copies.
  void foresee(Strand& strand, const Call& call, const StepRecord& step, Slice slice) noexcept;

  /// Ends the copy that is shared with a writer, if one is: nothing is written after this. For a
  /// call that ends with an error.
  void give_up_copy() noexcept { shared_copy_.reset(); }

  bool wait_room(SendEnd& link, std::size_t bytes) const noexcept {
    const std::uint64_t window = link.shape.window(bytes);
    if (link.published - link.consumed_seen >= window) {
      link.consumed_seen = std::atomic_ref(*link.consumed_at).load(std::memory_order_acquire);
      if (link.published - link.consumed_seen >= window) return false;
    }
    return link.lent_slots < 0 || bytes <= kInlineBytes || bytes <= link.shape.short_bytes ||
           slot_readers_.room(link);
  }

  /// The ranks, beside the link's reader, that wait_room() waits for.
  [[nodiscard]] std::vector<int> other_readers(const SendEnd& link) const {
    return slot_readers_.awaited(link);
  }

  bool wait_consumed(SendEnd& link, std::uint64_t number) const noexcept {
    if (link.consumed_seen >= number) return true;
    link.consumed_seen = std::atomic_ref(*link.consumed_at).load(std::memory_order_acquire);
    return link.consumed_seen >= number;
  }

  /// The number of a memory link's `slots` that the writer certainly has when the reader has
  /// consumed all earlier chunks: release() acknowledges half the slots at once.
  static constexpr std::uint32_t certain_slots(std::uint32_t slots) noexcept {
    return slots - slots / 2 + 1;
  }

  /// @throws Error kPeerLost when the writer has taken its buffer back
  Source arrived(const ReceiveEnd& link, const Call& call, std::size_t bytes) const {
    Source source = arrived_chunk(*this, link, call, bytes);
    if (lent(link, link.received + 1) && !borrow(link)) taken_back(link);
    source.link = &link;
    return source;
  }

  Destination describe(SendEnd& link, const Call& call, std::size_t bytes,
                       const std::byte* given) const {
    return describe_chunk(*this, link, call, bytes, given);
  }

  /// Whether what a step of the strand sends over these links may lie in the slot of `owner`. Not
  /// short chunks: each reader costs a line with its acknowledgement, which takes as long as a
  /// copy.
  static bool may_share(const Strand& strand, const SendEnd& owner, const SendEnd& link,
                        std::size_t bytes) noexcept {
    return bytes >= strand.common_slot_bytes && bytes > owner.shape.short_bytes &&
           bytes > kPrefetchBytes && !owner.drain_all && !link.drain_all;
  }

  /// Describes the next chunk of `link`: its reader finds the data where the one of `owner` does.
  /// @pre may_share(), and the chunk of `owner` is described, and not published
  void share(SendEnd& link, const Call& call, std::size_t bytes, SendEnd& owner);

  /// Copies or combines. Data in another process is pulled piece by piece through a scratch buffer
  /// that stays in the core's cache, or straight into the destination when nothing is combined.
  /// @throws Error kPeerLost if the other process has died
  void transfer(Strand& strand, const Call& call, const Transfer& transfer) {
    const Source& source = strand.sources[0];
    const std::size_t bytes = transfer.count * call.element_bytes;
    const bool plain = transfer.num_sources == 1 && transfer.scaled_source < 0 &&
                       transfer.divisor == 1 && source.process == 0;
    if (!plain || bytes > kInlineBytes) {
      transfer_any(strand, call, transfer);
      return;
    }
    for (std::uint32_t d = 0; d < transfer.num_destinations; ++d) {
      std::byte* destination = strand.destinations[d].data;
      if (destination != nullptr && destination != source.data) {
        copy_short(destination, source.data, bytes);
      }
    }
  }

  void publish(SendEnd& link) noexcept {
    const std::uint64_t next = ++link.published;
    SlotHeader* header = link.header(next);
    // What moves network links counts for itself.
    if (!counters_.empty() && !link.drain_all) count(link.peer, *header);
    const bool shared =
        header->kind == SlotKind::kAddress && link.process != 0 && is_shared_copy(header->bytes);
    if (shared && !link.offered) {
      offers_.push_back(&link);
      link.offered = true;
    }
    std::atomic_ref(header->sequence).store(next, std::memory_order_release);
    ++moves_;
    if (header->kind == SlotKind::kStaged) {
      // Where the reader is done with that slot: it would only fetch its lines again.
      const bool free = next - link.consumed_seen < link.shape.window(header->bytes);
      if (header->bytes <= kPrefetchBytes || free) {
        own_next_lines(link, next + 1, std::min<std::size_t>(header->bytes, kAheadBytes));
      }
    }
    // Two lines to own for each chunk are what holds back a writer that runs ahead. One line is
    // not, and where the two ranks wait for each other it is better left with the reader.
    if (header->kind == SlotKind::kInline && header->bytes > kFirstLineBytes) {
      auto* later = reinterpret_cast<std::byte*>(link.header(next + kOwnAhead));
      prefetch_for_writing(later);
      prefetch_for_writing(later + kLineBytes);
    }
  }

  void release(ReceiveEnd& link, const Source& /*source*/) noexcept {
    const std::uint64_t chunk = ++link.received;
    ++moves_;
    // The writer waits for this very chunk only if it sent an address or a slot elsewhere.
    // Otherwise it needs room now and then, and acknowledging half the slots at once saves both
    // ends most transfers of that line. The writer cannot stall: fewer than half the slots are
    // unacknowledged (certain_slots()).
    const SlotHeader* done = link.header(chunk);
    const bool given = done->kind == SlotKind::kAddress;
    // Whoever writes the slot again may have no more chunks for this rank.
    const bool wanted = given || done->kind == SlotKind::kElsewhere;
    const bool two_lines = done->kind == SlotKind::kInline && done->bytes > kFirstLineBytes;
    if (wanted || (chunk & (link.shape.slots / 2 - 1)) == 0) {
      // From here on the header may be the writer's again.
      std::atomic_ref(*link.consumed_at).store(chunk, std::memory_order_release);
      if (given && link.process == 0) give_back(link);
    }
    // A writer that runs ahead has filled later headers already, with chunks like this one. Those
    // of a writer that was waited for are its own still, and better left to it.
    const bool waited = link.waited;
    link.waited = false;
    if (waited) return;
    const SlotHeader* later = link.header(chunk + kReadAhead);
    __builtin_prefetch(later);
    if (two_lines) __builtin_prefetch(later->inline_data + kFirstLineBytes);
  }

  /// For chunk.h. Takes the note that a chunk brings, where it is all that differs and notes are
  /// listened for.
  /// @throws Error kInvalidUsage naming both ranks and the fields that differ
  void mismatch(int peer, const CallTag& theirs, const Call& call) const;

  /// From now on a note that comes with a chunk of the call `tag` is put into it, if it has none:
  /// chunks that are sent later bring it to others. Null: no notes are listened for.
  void listen(CallTag* tag) noexcept { listening_ = tag; }

  /// For chunk.h.
  /// @throws Error kInternal
  [[noreturn]] void wrong_size(int peer, std::size_t got, std::size_t expected) const;

  /// Chunks sent and received so far: a waiting thread sees by it whether anything moves.
  [[nodiscard]] std::uint64_t moves() const noexcept { return moves_; }

  [[nodiscard]] CallHistory& history() noexcept { return history_; }

  /// Asks for a line that will be written.
  static void prefetch_for_writing(std::byte* line) noexcept {
#if defined(__x86_64__)
    // The compiler emits this instruction only for given processors; others ignore it.
    asm volatile("prefetchw %0" : : "m"(*line));
#else
    __builtin_prefetch(line, 1);
#endif
  }

  /// Copies up to kInlineBytes. Inline: the call of memcpy would take most of the time of a copy of
  /// some bytes.
  static void copy_short(std::byte* to, const std::byte* from, std::size_t bytes) noexcept {
    const auto whole = [&](auto word) {
      constexpr std::size_t kWord = sizeof word;
      // The last word may overlap the one before it.
      for (std::size_t at = 0; at + kWord <= bytes; at += kWord) {
        std::memcpy(&word, from + at, kWord);
        std::memcpy(to + at, &word, kWord);
      }
      std::memcpy(&word, from + bytes - kWord, kWord);
      std::memcpy(to + bytes - kWord, &word, kWord);
    };
    struct Pair {
      std::uint64_t words[2];
    };
    if (bytes >= sizeof(Pair)) {
      whole(Pair{});
    } else if (bytes >= 8) {
      whole(std::uint64_t{});
    } else if (bytes >= 4) {
      whole(std::uint32_t{});
    } else {
      for (std::size_t at = 0; at < bytes; ++at) to[at] = from[at];
    }
  }

 private:
  // Up to here latency counts and not bandwidth, so cache lines are asked for ahead.
  static constexpr std::size_t kPrefetchBytes = 512;
  // Of longer ones as much travels while the caller goes on: with 4 KiB, scatters of 2 and 4 KiB
  // take half of the time, all-reduces of 2 KiB two thirds.
  static constexpr std::size_t kAheadBytes = 4096;
  // How many chunks ahead: a call takes less time than a line takes to come from another core.
  static constexpr std::uint64_t kReadAhead = 4;
  static constexpr std::uint64_t kOwnAhead = 8;
  // From here on a copy is worth sparing.
  static constexpr std::size_t kPostedBytes = 4096;
  // Of shorter pieces of a cold output the fence behind them costs more than they save.
  static constexpr std::size_t kStreamedBytes = 4096;
  // Inline data that lies in the flag's own line.
  static constexpr std::size_t kFirstLineBytes = 32;

  // Of a peer: chunks that were staged, and those that were given by address.
  struct Counters {
    Traffic::Counter* staged = nullptr;
    Traffic::Counter* by_address = nullptr;
  };
  void count(int peer, const SlotHeader& chunk) noexcept {
    Counters& counters = counters_[static_cast<std::size_t>(peer)];
    if (counters.staged == nullptr) [[unlikely]]
      find_counters(peer);
    (chunk.kind == SlotKind::kAddress ? counters.by_address : counters.staged)->add(chunk.bytes);
  }
  void find_counters(int peer);

  // Whether the next chunk is there, with its data.
  static bool has_come(const ReceiveEnd& link) noexcept {
    const std::uint64_t next = link.received + 1;
    return std::atomic_ref(link.header(next)->sequence).load(std::memory_order_acquire) == next;
  }

  // Asks for the lines of the next chunk, supposing it like the last one: when its data is written,
  // this core has them already, and the reader's miss is the only one.
  static void own_next_lines(const SendEnd& link, std::uint64_t chunk, std::size_t bytes) noexcept {
    std::byte* data = link.data(chunk, bytes);
    for (std::size_t line = 0; line < bytes; line += kLineBytes) prefetch_for_writing(data + line);
  }

  // Whether a step copies one operand, as it is, into the output.
  static bool is_plain(const StepRecord& step, const Call& call) noexcept {
    return step.num_operands == 1 && step.write_output && !(step.finished && call.divisor != 1);
  }

  // Whether the writer may take part in copying a chunk. A rank that also sends is read by another
  // one at this time, or by the same: then every core copies already, and a rank that copied for
  // another would only move lines between caches.
  static bool is_shared(const Strand& strand, const Call& call, std::size_t bytes) noexcept {
    return bytes >= call.share_bytes && is_shared_copy(bytes) && strand.sends.empty();
  }

  // Whether a chunk is in a buffer of another rank of this process.
  static bool lent(const ReceiveEnd& link, std::uint64_t chunk) noexcept {
    return link.process == 0 && link.header(chunk)->kind == SlotKind::kAddress;
  }
  [[noreturn]] static void taken_back(const ReceiveEnd& link);

  // Whether the step at work writes an output that no cache holds.
  static bool is_cold_output(const Strand& strand, const Call& call, std::size_t bytes) noexcept {
    if (!call.cold_output || bytes < kStreamedBytes) return false;
    const StepRecord& step = strand.step_record(strand.step);
    // In place, the block's former input is in the cache, since this rank has read it.
    return step.write_output && !(call.in_place && step.input_index != kNowhere);
  }
  void transfer_any(Strand& strand, const Call& call, Transfer transfer);
  void transfer_local(Strand& strand, const Call& call, const Transfer& transfer,
                      std::size_t offset, std::size_t count, bool to_output);
  void transfer_remote(Strand& strand, const Call& call, const Transfer& transfer, bool to_output);
  void copy_with_writer(const Source& source, std::byte* destination, std::size_t bytes);
  void finish_copy(const Source& source, std::byte* destination);

  // A receive that comes next, and where it goes.
  struct NextReceive {
    const ReceiveEnd* link = nullptr;
    std::byte* destination = nullptr;
    std::size_t bytes = 0;
  };
  void copy_looking_ahead(const NextReceive& ahead, std::byte* destination, const std::byte* source,
                          std::size_t bytes);
  // @return whether the chunk has come, so that there is no need to look again
  bool post_if_there(const NextReceive& ahead);
  bool help_readers();

  Traffic* traffic_ = nullptr;
  std::vector<Counters> counters_;  // by peer; empty where nothing is counted
  int rank_;
  std::uint64_t moves_ = 0;
  Waiter* waiter_ = nullptr;
  int sharing_with_ = -1;
  CallTag* listening_ = nullptr;
  std::vector<SendEnd*> offers_;
  SlotReaders slot_readers_;
  NextReceive ahead_;                      // of the transfer at work
  std::optional<SharedCopy> shared_copy_;  // from its post until it is complete
  CallHistory history_;
  std::vector<std::byte> scratch_;
  std::vector<const void*> piece_sources_;
  std::vector<void*> piece_destinations_;
};

}  // namespace ropewalk::executor
