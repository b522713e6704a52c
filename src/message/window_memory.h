// The memory behind a window: each rank's part, and the counters of the signals that reach it.
//
// The parts of one host's ranks lie in one segment of shared memory, which the host's first rank
// makes and the others map, at equal distances: [counters of rank 0][data of rank 0][counters of
// rank 1]... Memory that the user brings stays where it is; then the segment holds that rank's
// counters alone.
//
// A counter is a 64-bit number in a cache line of its own, one for each source rank and slot. Only
// the source raises it, with release; its owner waits for it with acquire. It is never reset. So
// there are never two writers of one word, and what a GPU needs to write or to wait for it (its
// address and a value) is plain data.
//
// A window in GPU memory (device_part.h) has each counter twice: in the owner's GPU memory, where
// its streams and kernels look, and in the segment, where its host threads look. Who signals raises
// both, the one on the GPU first. All ranks of a window give memory of one kind. A window of the
// user's GPU memory may have no counters, and then has no segment either: who puts to it signals on
// another window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "core/deadline.h"
#include "core/error.h"
#include "core/shared_memory.h"
#include "link/links.h"
#include "transport/window/device/gpu.h"
#include "transport/window/device/segment_registration.h"

namespace ropewalk::message {

class DevicePart;
class ReachedPart;

/// Nothing was done; the communicator is whole. Of collective calls: the same on all ranks.
class Refused : public Error {
 public:
  using Error::Error;
};

/// One counter.
struct alignas(64) SignalLine {
  std::uint64_t count = 0;
};

/// One rank's part of a window, as this rank reaches it. Plain data.
struct Part {
  std::byte* data = nullptr;      ///< null where this rank cannot address it
  std::uint64_t bytes = 0;        ///< as that rank gave it
  SignalLine* signals = nullptr;  ///< of the part's owner; null likewise, and without counters
  /// Puts, gets and signals are loads and stores of this rank. Else a link carries them.
  bool mapped = false;
  /// That rank reaches this rank's part by a link.
  bool served = false;
  /// Of a window in GPU memory: that rank is another process on this rank's GPU, where the kernels
  /// of processes take turns, so that one which waits takes the other's time.
  bool takes_turns = false;
  /// Of a window in GPU memory, as this rank's GPU addresses them: the counters' home there, and
  /// `signals`. `data` is an address of that kind, too.
  SignalLine* device_signals = nullptr;
  SignalLine* signals_on_device = nullptr;
};

/// What a rank brings to a window.
struct WindowSpec {
  bool registers = false;  ///< `memory` is the user's; else the library allocates
  void* memory = nullptr;
  std::size_t bytes = 0;
  int slots = 1;  ///< counters for each source; the same on all ranks
  /// Of a window of queues (kernel_queues.h): each has room for so many bytes; the same on all
  /// ranks. `bytes` is that of the queues then.
  std::optional<std::size_t> queue_bytes;
  /// Without: memory of a GPU that is put to and got from, nothing of the library's beside it, so
  /// that a rank may let go of it by itself (Messenger::release_window). `slots` is 0.
  bool counters = true;
  /// Without counters: where this rank's GPU addresses the parts, by rank, if the caller has mapped
  /// them all; they stay mapped as long as the window.
  std::vector<void*> mapped;
  /// In whose memory it is, or for whose streams, where `bytes` is 0; null: the host's.
  transport::window::Gpu* gpu = nullptr;
  transport::window::Gpus* gpus = nullptr;  ///< that `gpu` is one of
  /// Why this rank cannot give what it was asked for: all ranks are told.
  std::optional<Error> fault;
};

inline constexpr int kMostSlots = 4096;
/// Larger sums of parts would not fit an address space.
inline constexpr std::size_t kMostWindowBytes = std::size_t{1} << 44;

class WindowMemory {
 public:
  /// Collective. `reach` by rank. Before another rank may use this one's part, all must agree that
  /// they have what they need: see failure().
  /// @throws Refused for what a rank gave that cannot be right; Error as Bootstrap's collectives
  static WindowMemory create(bootstrap::Bootstrap& bootstrap,
                             std::span<const link::PeerReach> reach, const WindowSpec& spec,
                             ShmBacking backing, Deadline deadline);

  /// Why this rank does not have its memory; nothing when it has.
  [[nodiscard]] const std::optional<Error>& failure() const noexcept { return failure_; }
  [[nodiscard]] const std::vector<Part>& parts() const noexcept { return parts_; }

  /// Where a part's data lies in the shared memory, for a mapping of its own.
  struct Location {
    int fd = -1;
    std::size_t offset = 0;
  };
  /// Nothing where this rank does not map it, or it is the user's memory.
  [[nodiscard]] std::optional<Location> location(int rank) const;

  /// With the counters, and the parts that the library allocated; null without.
  [[nodiscard]] const SharedMemory* segment() const noexcept {
    return segment_.has_value() ? &*segment_ : nullptr;
  }

  /// The memory is the library's own: no range of a part is anybody's to put to or get from.
  void hide() noexcept {
    for (Part& part : parts_) part.bytes = 0;
  }

  /// Lets go of the other ranks' GPU memory; their parts are as if not mapped.
  void close_reached() noexcept;

 private:
  WindowMemory() = default;
  void share_segment(bootstrap::Bootstrap& bootstrap, const std::vector<int>& local,
                     std::size_t total, ShmBacking backing, Deadline deadline);
  std::optional<SharedMemory> segment_;
  // Of GPU memory. Destroyed bottom up: what this rank reaches before what it gives.
  std::optional<transport::window::SegmentRegistration> registration_;
  std::shared_ptr<DevicePart> device_;
  std::vector<std::shared_ptr<ReachedPart>> reached_;
  std::vector<Part> parts_;
  std::optional<Error> failure_;
};

}  // namespace ropewalk::message
