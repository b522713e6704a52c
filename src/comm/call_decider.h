// The rank that decides something about the next call of a shape for all ranks, without a message
// of its own.
//
// Before a call begins it decides about the *next* call of that shape, and writes it as a note into
// the tag of each chunk that it sends (executor/note.h). A rank that has received the note writes
// it into what it sends from then on. There is such a rank only where every rank receives a chunk
// with the note before its call is over, in any run of the schedule (schedule/reach.h). So nothing
// is sent for it, no call waits for it, and all ranks change at the same call of a shape.
//
// - Where every output has data of every rank (all-reduce, all-gather, reduce-scatter, all-to-all)
//   rank 0 decides, and in a sendrecv between two ranks. It is not done before every rank has
//   begun, so that it judges by the time of each call.
// - In a broadcast and a scatter the root decides, since its data goes to all. It is done before
//   the others, so that it judges by the periods of many calls (tune/period_meter.h).
// - In a reduce and a gather data goes to the root alone. There is a decider where the schedule
//   leads the data of some rank through all others: between two ranks, along a chain. That rank
//   decides, by periods. In other trees and in direct sends no rank's data passes all others:
//   whatever the root measures, it cannot tell the others with the data of such calls.
//
// Calls with another root are of another shape.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "comm/collective_call.h"
#include "tune/choice.h"

namespace ropewalk::comm {

/// Nothing for barriers, for schedules that the user gave, where no rank's data reaches all others,
/// and for operations with a root among more than `most_rooted_ranks`: finding it takes time with
/// the square of them. The same on all ranks.
std::optional<int> decider_of(const CollectiveCall& call, const tune::Choice& choice,
                              const Extent& extent, int most_rooted_ranks);

/// Bytes of a rank's larger buffer; the same on all ranks.
std::size_t largest_bytes(const CollectiveCall& call, const Extent& extent, int num_ranks) noexcept;

/// What is known of each shape of call of a communicator: of calls of one operation, size in bytes
/// and root, whatever the type.
///
/// A `Shape` is made of a choice, the terms on which ranks agree, and whether this rank decides
/// (Terms::decider); serves() says whether it was made of the same.
///
/// Threads: one at a time.
template <typename ShapeOfCalls, typename Terms>
class CallShapes {
 public:
  using Shape = ShapeOfCalls;

  explicit CallShapes(int rank) : rank_(rank) {}

  /// Of a call that begins; null when there are too many shapes for this one. A shape begins anew
  /// when its algorithm or terms are not what they were. The pointer holds for ever.
  Shape* of(const CollectiveCall& call, const Extent& extent, const tune::Choice& choice,
            const Terms& terms) {
    const Key key = key_of(call, extent);
    const auto found = shapes_.find(key);
    if (found != shapes_.end() && found->second.serves(choice, terms)) {
      return &found->second;
    }
    Shape fresh(choice, terms, rank_ == terms.decider);
    if (found != shapes_.end()) {
      found->second = std::move(fresh);
      return &found->second;
    }
    if (shapes_.size() == kMostShapes) return nullptr;
    return &shapes_.emplace(key, std::move(fresh)).first->second;
  }

  /// The shape's report; nullopt for one that has not been called.
  [[nodiscard]] auto report(const CollectiveCall& call, const Extent& extent) const {
    const auto found = shapes_.find(key_of(call, extent));
    return found == shapes_.end() ? std::nullopt : std::optional(found->second.report());
  }

 private:
  // Calls of a program that never calls twice alike are not worth remembering.
  static constexpr std::size_t kMostShapes = 1024;
  using Key = std::tuple<Collective, std::size_t, int>;
  static Key key_of(const CollectiveCall& call, const Extent& extent) noexcept {
    return {call.collective, call.count * extent.element_bytes,
            has_root(call.collective) ? call.root : 0};
  }

  int rank_;
  std::map<Key, Shape> shapes_;
};

}  // namespace ropewalk::comm
