// Buffers of a communicator's ranks in GPU memory that ranks of other processes of the host read
// directly.
//
// Registering is collective. Every rank offers a buffer, opens those of the ranks of other
// processes, and sends each owner the address at which it has mapped the buffer, so that the owner
// can translate addresses for that rank (executor/block/launch.h, Shift). Whether a message goes by
// address is the writer's choice for each peer, so ranks need not agree on what is visible: a
// buffer that a rank could not open is staged to that rank, as any other memory is.
//
// A buffer may be registered as symmetric: then operations may write other ranks' parts of it at
// addresses that follow from this rank's own (comm/cuda/copy_engines.h).
//
// Deregistering is local and waits for nothing, as with NCCL's windows: from then on this rank
// gives no address in the buffer. It tells the others when its operations have run, since they may
// be reading it until then, and they close it when they hear of that: when they register or
// deregister something themselves, when they are between operations, or when they leave. CUDA keeps
// the memory until then, also after its owner has freed it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "bootstrap/bootstrap.h"
#include "executor/block/launch.h"
#include "link/buffer_range.h"

namespace ropewalk::link {

/// How the memory of one process's GPU comes into another process.
class MemorySharing {
 public:
  /// Names an allocation on this host.
  using Handle = std::array<std::byte, 64>;
  /// Where a buffer lies in an allocation that others can open.
  struct Location {
    Handle handle{};
    std::uint64_t offset = 0;  ///< bytes from the allocation's start
  };

  virtual ~MemorySharing() = default;
  /// @return nothing for memory of this rank's GPU that cannot be shared
  /// @throws Error kInvalidArgument for what is not memory of this rank's GPU, or leaves its
  /// allocation
  virtual std::optional<Location> location_of(const BufferRange& buffer) = 0;
  /// The start of an allocation of `rank`, in another process. It is closed when all who opened it
  /// have let go.
  /// @throws Error kCuda naming the function that failed, and the rank
  virtual std::shared_ptr<std::byte> open(int rank, const Handle& handle) = 0;
};

/// The registered buffers of one communicator, as one rank sees them.
///
/// Threads: one at a time. Lifetime: within the bootstrap's. Before its destruction no kernel of
/// this rank may read what it has opened.
class RegisteredBuffers {
 public:
  /// @param elsewhere by rank: whether it is in another process, whose memory this one can open
  /// @param beyond by rank: whether its memory is out of reach, on another host or without peer
  ///        access; empty: nobody's is
  /// @param opens false: no memory is opened, so that the other ranks stage what is for this one
  RegisteredBuffers(bootstrap::Bootstrap& bootstrap, std::unique_ptr<MemorySharing> sharing,
                    std::vector<bool> elsewhere, bool opens, std::vector<bool> beyond = {});

  /// Collective: every rank registers a buffer, of whatever size; ranks of one communicator
  /// register in the same order. A buffer may lie in another one, or beside it in one allocation.
  ///
  /// @param mapped where this rank has mapped the ranks' buffers by other means, with what keeps
  /// them mapped: they are not opened then, but let go of as what was opened is. Empty on ranks
  /// that have not, which neither open nor are read by those that have.
  /// @param symmetric this rank promises to use the buffer as all others use theirs: what is given
  /// to one operation lies equally far behind the start of each rank's (symmetric_location()). It
  /// holds if all ranks promise it, and all reach all
  /// @return its number, the same on all ranks, from 1
  /// @throws Error on all ranks, with nothing registered: kInvalidArgument, kCuda naming the rank
  /// whose buffer cannot be right; kTimeout, kPeerLost, kAborted as Bootstrap: then ranks may be
  /// out of step
  std::uint64_t add(const BufferRange& buffer, Deadline deadline, MappedBuffers mapped = {},
                    bool symmetric = false);

  /// By rank: where this rank reaches the buffers of one registration; of no bytes where it does
  /// not. An owner's part holds until that rank removes it.
  /// @throws Error kInvalidArgument for a number that is not registered
  [[nodiscard]] const std::vector<BufferRange>& reached(std::uint64_t number) const;

  /// Where the ranks have what lies at `buffer` on this one.
  struct SymmetricLocation {
    std::uint64_t number = 0;                           ///< of the registration
    std::uint64_t offset = 0;                           ///< of the range in each rank's buffer
    const std::vector<BufferRange>* reached = nullptr;  ///< as reached()
  };
  /// Nothing unless all of it lies in a buffer whose symmetry holds, and in those of all other
  /// ranks. While the ranks keep their promise, and have removed the same buffers, the same on all.
  [[nodiscard]] std::optional<SymmetricLocation> symmetric_location(
      const BufferRange& buffer) const noexcept;

  /// No address in the buffer is given from now on. Local.
  /// @throws Error kInvalidArgument for a number that is not registered
  void remove(std::uint64_t number);
  /// Announces this rank's removals to the others, and closes buffers that they have removed. Does
  /// not wait.
  ///
  /// @pre no kernel of this rank is at work that may have given an address in what it has removed:
  /// a kernel ends only when the data behind the addresses that it sent has been read
  /// @return whether a rank had removed something: what symmetric_location() said may not hold any
  /// more
  bool settle() noexcept;
  /// settle() has something to do, or will have: what this rank has removed is open elsewhere, or
  /// the others' parts of it are open here.
  [[nodiscard]] bool unsettled() const noexcept {
    return !untold_.empty() || !awaited_.empty() || !retired_.empty();
  }
  /// Before the communicator is left.
  /// @pre no kernel of this rank is at work
  void close_all() noexcept;

  /// The offsets to add to addresses in `input` and `output` for `peer`, of another process; empty
  /// unless it has mapped all of both.
  [[nodiscard]] std::optional<executor::Shift> seen_by(int peer, const BufferRange& input,
                                                       const BufferRange& output) const noexcept;
  /// The same for one buffer.
  [[nodiscard]] std::optional<std::int64_t> seen_by(int peer,
                                                    const BufferRange& buffer) const noexcept;

 private:
  struct Own {
    std::uint64_t begin;
    std::uint64_t bytes;
    std::vector<std::uint64_t> seen_at;  // by rank: its address there; 0: not seen
    std::vector<BufferRange> reached;
    std::uint64_t symmetric_bytes = 0;  // that all ranks' buffers have; 0: it is not symmetric
    MappedBuffers mapped;               // of ranks of this process, too
  };
  // By rank; null where nothing was opened.
  struct Offer;

  [[nodiscard]] Offer offer_of(const BufferRange& buffer, bool mapped);
  // This rank's address of an offered buffer; null if it cannot open it.
  std::shared_ptr<std::byte> opened_from(std::size_t rank, const Offer& offer);
  // Closes all that `rank` had told of when it made its offer, before anything is opened: memory
  // that was freed and taken again may have the address of what is still open.
  void await_removals(std::size_t rank, std::uint64_t count, Deadline deadline);
  void note_removal(std::size_t rank, const std::vector<std::byte>& message);

  bootstrap::Bootstrap& bootstrap_;
  std::unique_ptr<MemorySharing> sharing_;
  std::vector<bool> elsewhere_;
  std::vector<bool> beyond_;
  bool opens_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, Own> own_;
  std::map<std::uint64_t, MappedBuffers> opened_;
  std::set<std::uint64_t> awaited_;     // of opened_: those that this rank has removed
  std::vector<MappedBuffers> retired_;  // of removed ones; operations may be writing there
  std::vector<std::uint64_t> untold_;   // removals
  std::uint64_t told_ = 0;              // removals that this rank has announced so far
  std::vector<std::uint64_t> heard_;    // by rank: the same of the others
};

}  // namespace ropewalk::link
