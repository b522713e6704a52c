#include "executor/host/host_team.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <thread>
#include <utility>

#include "core/error.h"
#include "core/process_memory.h"
#include "executor/host/kernels.h"
#include "executor/note.h"

namespace ropewalk::executor {
namespace {

// Pulled data is combined in pieces that stay in a core's own cache; a larger piece costs fewer
// system calls. 128 KiB: between the L1 and the L2 of every server core of the last ten years.
constexpr std::size_t kPieceBytes = std::size_t{128} << 10U;
// A plain copy needs no cache; pieces bound the time between two checks of the abort flag.
constexpr std::size_t kPlainPieceBytes = std::size_t{1} << 20U;
// How often a rank that copies its own memory looks whether the next chunk has come.
constexpr std::size_t kLookBytes = std::size_t{32} << 10U;
// Shorter chunks are copied before the writer has seen the post.
constexpr std::size_t kPostedAhead = std::size_t{128} << 10U;
constexpr std::size_t kLooks = 16;

}  // namespace

// Notes cost the chunks of other calls nothing: without one in either tag the tags are equal.
void HostTeam::mismatch(int peer, const CallTag& theirs, const Call& call) const {
  if (without_note(theirs) == without_note(call.tag) && listening_ != nullptr) {
    const std::uint8_t note = note_of(theirs);
    const std::uint8_t known = note_of(*listening_);
    if (known == 0) *listening_ = with_note(*listening_, note);
    if (known == 0 || note == 0 || note == known) return;
    throw Error(Errc::kInternal, "rank {} has the note {} from rank {}, where {} is known", rank_,
                note, peer, known);
  }
  throw Error(
      Errc::kInvalidUsage, "{}",
      describe_difference(rank_, without_note(call.tag), history_, peer, without_note(theirs)));
}

void HostTeam::wrong_size(int peer, std::size_t got, std::size_t expected) const {
  // With equal tags the two ends cut their data differently: the ranks' settings or choices differ.
  throw Error(Errc::kInternal,
              "rank {} has a chunk of {} bytes for or from rank {}, where {} is right", rank_, got,
              peer, expected);
}

void HostTeam::share(SendEnd& link, const Call& call, std::size_t bytes, SendEnd& owner) {
  slot_readers_.add(owner, link);
  describe_elsewhere(link, call, bytes, owner);
}

void HostTeam::taken_back(const ReceiveEnd& link) {
  give_back(link);
  throw Error(Errc::kPeerLost, "rank {} ended its call while its buffer was read", link.peer);
}

void HostTeam::transfer_any(Strand& strand, const Call& call, Transfer transfer) {
  const bool to_output = strand.destinations[0].data != nullptr;
  std::uint32_t kept = 0;
  for (std::uint32_t d = 0; d < transfer.num_destinations; ++d) {
    if (strand.destinations[d].data != nullptr) {
      strand.destinations[kept++] = strand.destinations[d];
    }
  }
  if (kept == 0) return;
  transfer.num_destinations = kept;
  for (std::uint32_t s = 0; s < transfer.num_sources; ++s) {
    if (strand.sources[s].process != 0) {
      transfer_remote(strand, call, transfer, to_output);
      return;
    }
  }
  transfer_local(strand, call, transfer, 0, transfer.count, to_output);
}

void HostTeam::transfer_local(Strand& strand, const Call& call, const Transfer& transfer,
                              std::size_t offset, std::size_t count, bool to_output) {
  const NextReceive ahead = std::exchange(ahead_, NextReceive{});
  const std::size_t offset_bytes = offset * call.element_bytes;
  const std::size_t bytes = count * call.element_bytes;
  if (transfer.num_sources == 1 && transfer.scaled_source < 0 && transfer.divisor == 1) {
    const std::byte* source = strand.sources[0].data + offset_bytes;
    piece_destinations_.clear();
    for (std::uint32_t d = 0; d < transfer.num_destinations; ++d) {
      std::byte* destination = strand.destinations[d].data + offset_bytes;
      if (destination == source) continue;  // in place
      piece_destinations_.push_back(destination);
    }
    const bool all = piece_destinations_.size() == transfer.num_destinations;
    if (all && to_output && is_cold_output(strand, call, bytes)) {
      copy_streaming(piece_destinations_, source, bytes);
    } else if (ahead.link != nullptr && piece_destinations_.size() == 1) {
      copy_looking_ahead(ahead, static_cast<std::byte*>(piece_destinations_[0]), source, bytes);
    } else if (!piece_destinations_.empty()) {
      copy(piece_destinations_, source, bytes);
    }
    return;
  }
  piece_sources_.clear();
  piece_destinations_.clear();
  for (std::uint32_t s = 0; s < transfer.num_sources; ++s) {
    piece_sources_.push_back(strand.sources[s].data + offset_bytes);
  }
  for (std::uint32_t d = 0; d < transfer.num_destinations; ++d) {
    piece_destinations_.push_back(strand.destinations[d].data + offset_bytes);
  }
  CombineArgs args;
  args.type = call.type;
  args.op = call.op;
  args.sources = piece_sources_;
  args.destinations = piece_destinations_;
  args.count = count;
  args.scaled_source = transfer.scaled_source;
  args.scalar = call.scalar;
  args.divisor = transfer.divisor;
  args.streaming_output = to_output && is_cold_output(strand, call, bytes);
  combine(args);
}

void HostTeam::transfer_remote(Strand& strand, const Call& call, const Transfer& transfer,
                               bool to_output) {
  const bool plain = transfer.num_sources == 1 && transfer.divisor == 1;
  const std::size_t piece_bytes =
      plain && transfer.num_destinations == 1 ? kPlainPieceBytes : kPieceBytes;
  const std::size_t piece_count = std::max<std::size_t>(1, piece_bytes / call.element_bytes);
  if (plain) {
    const Source source = strand.sources[0];
    const std::size_t whole = transfer.count * call.element_bytes;
    if (transfer.num_destinations == 1 && is_shared(strand, call, whole)) {
      copy_with_writer(source, strand.destinations[0].data, whole);
      return;
    }
    for (std::size_t offset = 0; offset < transfer.count; offset += piece_count) {
      const std::size_t count = std::min(piece_count, transfer.count - offset);
      const std::size_t offset_bytes = offset * call.element_bytes;
      std::byte* first = strand.destinations[0].data + offset_bytes;
      const std::size_t bytes = count * call.element_bytes;
      read_process(source.process, first, source.remote + offset_bytes, bytes);
      for (std::uint32_t d = 1; d < transfer.num_destinations; ++d) {
        std::memcpy(strand.destinations[d].data + offset_bytes, first, bytes);
      }
    }
    return;
  }
  std::size_t num_remote = 0;
  for (std::uint32_t s = 0; s < transfer.num_sources; ++s) {
    if (strand.sources[s].process != 0) ++num_remote;
  }
  scratch_.resize(std::max(scratch_.size(), num_remote * kPieceBytes));
  for (std::size_t offset = 0; offset < transfer.count; offset += piece_count) {
    const std::size_t count = std::min(piece_count, transfer.count - offset);
    const std::size_t offset_bytes = offset * call.element_bytes;
    std::byte* room = scratch_.data();
    for (std::uint32_t s = 0; s < transfer.num_sources; ++s) {
      Source& source = strand.sources[s];
      if (source.process == 0) continue;
      read_process(source.process, room, source.remote + offset_bytes, count * call.element_bytes);
      // transfer_local adds the offset; data points so that the sum is the scratch piece.
      source.data = room - offset_bytes;
      room += kPieceBytes;
    }
    transfer_local(strand, call, transfer, offset, count, to_output);
  }
}

void HostTeam::foresee(Strand& strand, const Call& call, const StepRecord& step,
                       Slice slice) noexcept {
  ahead_ = {};
  const std::size_t bytes = slice.count * call.element_bytes;
  if (bytes < kPostedAhead || !is_shared(strand, call, bytes) || !is_plain(step, call)) return;
  const std::int32_t operand = strand.operand(step.first_operand);
  if (operand < 0 || step.num_sends != 0) return;
  ahead_ = {&strand.receive_end(operand),
            call.output + slice_offset(call, step.output_index, slice), bytes};
}

void HostTeam::copy_looking_ahead(const NextReceive& ahead, std::byte* destination,
                                  const std::byte* source, std::size_t bytes) {
  const auto apart = [&ahead](const std::byte* begin, std::size_t size) {
    return begin + size <= ahead.destination || ahead.destination + ahead.bytes <= begin;
  };
  const bool may = apart(destination, bytes) && apart(source, bytes);
  const std::size_t piece = may ? std::max(kLookBytes, bytes / kLooks) : bytes;
  for (std::size_t done = 0; done < bytes;) {
    const bool posted = may && post_if_there(ahead);
    const std::size_t part = posted ? bytes - done : std::min(piece, bytes - done);
    void* const to = destination + done;
    copy(std::span(&to, 1), source + done, part);
    done += part;
  }
}

bool HostTeam::post_if_there(const NextReceive& ahead) {
  const ReceiveEnd& link = *ahead.link;
  if (!has_come(link)) return false;
  const SlotHeader* header = link.header(link.received + 1);
  // Whether the two ends' calls fit is seen when the step is run; here only that it does no harm.
  if (header->kind == SlotKind::kAddress && link.process != 0 && header->bytes == ahead.bytes) {
    shared_copy_.emplace(link, link.process, ahead.destination, ahead.bytes);
  }
  return true;
}

void HostTeam::copy_with_writer(const Source& source, std::byte* destination, std::size_t bytes) {
  if (!shared_copy_) shared_copy_.emplace(*source.link, source.process, destination, bytes);
  try {
    finish_copy(source, destination);
  } catch (...) {
    give_up_copy();
    throw;
  }
  shared_copy_.reset();
}

void HostTeam::finish_copy(const Source& source, std::byte* destination) {
  SharedCopy& copy = *shared_copy_;
  const auto read = [&](SharedCopy::Range range) {
    // Pieces bound the time between two checks of the abort flag.
    read_process(source.process, destination + range.begin, source.remote + range.begin,
                 range.bytes);
  };
  for (SharedCopy::Range range = copy.claim(); range.bytes > 0; range = copy.claim()) read(range);
  sharing_with_ = source.link->peer;
  while (copy.rest() == SharedCopy::Rest::kPending) {
    if (waiter_ != nullptr) {
      waiter_->idle(moves_);
    } else {
      std::this_thread::yield();
    }
  }
  sharing_with_ = -1;
  if (copy.rest() == SharedCopy::Rest::kFailed) read(copy.writers_part());
}

bool HostTeam::help_readers() {
  bool helped = false;
  for (std::size_t k = 0; k < offers_.size();) {
    SendEnd& link = *offers_[k];
    // All that was offered is consumed; or writing failed, and the reader copies alone.
    if (link.consumed_seen == link.published || link.process == 0) {
      link.offered = false;
      offers_[k] = offers_.back();
      offers_.pop_back();
      continue;
    }
    helped |= help_copying(link);
    ++k;
  }
  if (helped) ++moves_;
  return helped;
}

void HostTeam::find_counters(int peer) {
  Counters& counters = counters_[static_cast<std::size_t>(peer)];
  counters.staged = &traffic_->to(peer, "shared memory");
  counters.by_address = &traffic_->to(peer, "memory by address");
}

}  // namespace ropewalk::executor
