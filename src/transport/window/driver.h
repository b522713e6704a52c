// Drivers: what the window engine (engine.h) needs of a technology that lets one end write into
// memory which the other end exposed.
//
// A driver makes Paths. A path joins two ends; each end has a window of its own, which the other
// end writes. Two things write: the CPU (put, put_word: small, ordered) and copy queues (large,
// asynchronous: a DMA engine, a copy engine, or the calling CPU). A path that can also pull lets
// the receiving end copy straight out of the sender's registered memory.
//
// What this asks of hardware is little: the sender never needs the address of the receiver's
// buffers, so receivers need no registration (a bridge without IOMMU copies into the window, and
// the receiver copies on); and no queue is shared between paths.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transport/transport.h"

namespace ropewalk::transport::window {

struct Capabilities {
  int queues = 1;  ///< copies that may be in progress at once, in each direction
  std::size_t piece_bytes = 64 << 10;  ///< largest copy; bounds how long a synchronous one blocks
  bool pull = false;                   ///< start_pull() works
  std::string why_no_pull;             ///< in words, when it does not
  /// Pulls are unsafe once the sender's memory is freed (a memcpy within one process, a DMA
  /// engine): the sender waits for a pull in progress before it gives the memory up.
  bool pull_needs_owner = false;
  /// put_word() may be seen before earlier puts: mailbox entries are then checked for completeness.
  bool puts_may_tear = false;
};

/// Registered memory of the end that states it, which the other end may write. Plain bytes.
struct Target {
  std::uint64_t region = 0;  ///< 0: none
  std::uint64_t offset = 0;
};

/// The part of a path that writes registered memory of the other end, past the windows. Optional.
///
/// A path states a target in the CPU's memory only after a write to such memory was verified. Where
/// one of two locations (see DeviceCopies) is device memory, the sender tries a write first: a
/// pattern goes to memory that the receiver names, and the receiver compares. Threads: the path's.
class DirectWrites {
 public:
  [[nodiscard]] virtual std::size_t direct_piece_bytes() const = 0;
  /// Shorter messages into the CPU's memory are faster through the window.
  [[nodiscard]] virtual std::size_t smallest_direct() const = 0;
  /// What the other end calls this end's memory.
  /// @return none where it cannot be written from there
  [[nodiscard]] virtual Target target_of(const void* data, std::size_t bytes,
                                         const Registration& registration) = 0;
  /// Whether start_direct() works, to that target and out of that registration or none.
  [[nodiscard]] virtual bool reach(const Target& target, const void* source, std::size_t bytes,
                                   const Registration* registration) = 0;
  /// Starts a copy of at most direct_piece_bytes on an idle queue, as Path's copies; copy_done()
  /// tells when it has arrived. In device memory, kernels that run already see it then.
  virtual void start_direct(int queue, const Target& target, const void* source,
                            const Registration* registration, std::size_t bytes) = 0;
  /// Returns when the other end can no longer write that memory.
  virtual void revoke(Registration& registration) = 0;

  // Trials. `locations` has the sender's above, the receiver's below. These wait for their copies.
  /// Memory of this end to which the other end may write a pattern; it holds another.
  /// @return none where that cannot be
  [[nodiscard]] virtual Target trial_target(std::uint64_t locations) = 0;
  /// Writes DeviceCopies' pattern to a trial target of the other end, on an idle queue.
  /// @return why that failed, empty for success
  [[nodiscard]] virtual std::string try_direct(int queue, const Target& target,
                                               std::uint64_t locations) = 0;
  /// Copies the contents of this end's trial target.
  virtual void fetch_trial(std::uint64_t locations, std::span<std::byte> seen) = 0;
  /// The result of a trial, for the log: why it failed, empty for success.
  virtual void tried(std::uint64_t locations, const std::string& why_not) = 0;

 protected:
  ~DirectWrites() = default;
};

/// The part of a path that copies straight out of device memory which the other end offered, once,
/// over the driver's own channel. Optional. Threads: as DeviceCopies.
class DevicePulls {
 public:
  [[nodiscard]] virtual std::size_t piece_bytes() const = 0;
  /// Names a registration; no two of a process have had the same. Neither 0 nor all ones.
  [[nodiscard]] virtual std::uint64_t key(const Registration& registration) const = 0;
  /// What the other end calls `data` in start_pull().
  [[nodiscard]] virtual std::uint64_t offset(const Registration& registration,
                                             const void* data) const = 0;
  /// Starts a copy of at most piece_bytes on an idle queue of DeviceCopies.
  virtual void start_pull(int queue, void* destination, const Registration& registration,
                          std::uint64_t key, std::uint64_t offset, std::size_t bytes) = 0;
  /// Hands memory to the other end, once however often it is called.
  /// @return nothing when that is not possible just now; else why not, empty for success
  virtual std::optional<std::string> offer(const Registration& registration) = 0;
  /// Whether a registration was ended.
  [[nodiscard]] virtual bool ended(std::uint64_t key) const = 0;
  /// Makes offered memory ready for start_pull() into a location of this end.
  /// @return nothing when that takes longer; else why not, empty for success
  virtual std::optional<std::string> open(std::uint64_t key, std::uint32_t location) = 0;
  /// @return the bytes of an open registration; nothing when it is not open for that location
  [[nodiscard]] virtual std::optional<std::uint64_t> opened(std::uint64_t key,
                                                            std::uint32_t location) const = 0;
  /// Verification: copies a pattern into memory of `location`, and from there to the CPU's. Waits.
  virtual void pull_pattern(std::uint64_t key, std::uint32_t location,
                            std::span<std::byte> seen) = 0;

 protected:
  ~DevicePulls() = default;
};

/// The part of a path that moves registered device memory, which the CPU cannot touch. Optional.
///
/// There are three methods for such a message. Staged: a copy from the sender's memory into the
/// bounce ring of the receiver's window, and one from there. Pulled: by DevicePulls, where they
/// are. Direct: by DirectWrites, where the path has them.
///
/// A *location* says where memory lies at one end: 0 is the CPU's, others are the driver's to
/// choose, such that what works for one registration at a location works for all.
///
/// Threads: one at a time, and the path's. Only functions that say so wait, for a bounded time.
class DeviceCopies {
 public:
  virtual ~DeviceCopies() = default;
  /// Allocates what messages of a new registration will need. Allocating it later could deadlock:
  /// allocations of pinned or device memory may wait for kernels, which may wait for messages. Any
  /// thread, at any time; what fails is tried again when it is needed.
  virtual void prepare(const Registration& registration, bool receives) noexcept = 0;
  [[nodiscard]] virtual int queues() const = 0;
  /// @throws Error kInvalidArgument when it is not a registration of device memory of this driver,
  /// or
  ///         `data` and `bytes` are not within it
  [[nodiscard]] virtual std::uint32_t location(const Registration& registration, const void* data,
                                               std::size_t bytes) const = 0;

  /// Start a copy of at most a piece of the bounce ring on an idle queue: from this end's device
  /// memory into the other end's window, and from this end's window into its device memory. When
  /// done() is true, kernels that run already see what was copied.
  virtual void start_write(int queue, std::size_t offset, const void* source,
                           const Registration& registration, std::size_t bytes) = 0;
  virtual void start_read(int queue, void* destination, const Registration& registration,
                          std::size_t offset, std::size_t bytes) = 0;
  /// @throws Error kCuda when the copy failed
  [[nodiscard]] virtual bool done(int queue) = 0;

  /// Null where device memory is not pulled.
  [[nodiscard]] virtual DevicePulls* pulls() { return nullptr; }

  // Verification. These wait for their copies.
  /// A random pattern, and memory of the location of `like` that holds it.
  [[nodiscard]] virtual std::span<const std::byte> pattern() const = 0;
  [[nodiscard]] virtual const Registration& pattern_memory(const Registration& like) = 0;
  /// Writes the pattern from `pattern_memory` into the other end's window.
  virtual void write_pattern(const Registration& pattern_memory, std::size_t offset) = 0;
  /// Copies a pattern from this end's window into memory of `location`, and from there to the
  /// CPU's.
  virtual void read_pattern(std::size_t offset, std::uint32_t location,
                            std::span<std::byte> seen) = 0;
  /// Copies device memory to the CPU's, for checksums.
  virtual void fetch(void* destination, const void* source, const Registration& registration,
                     std::size_t bytes) = 0;
};

/// One end of a path. Threads: one at a time.
class Path {
 public:
  virtual ~Path() = default;

  /// True once the other end is joined; nothing below but window() may be used before.
  /// @throws Error kPeerLost when it never will be
  [[nodiscard]] virtual bool ready() = 0;
  [[nodiscard]] virtual const Capabilities& capabilities() const = 0;

  /// This end's window, zero at first, written by the other end.
  [[nodiscard]] virtual std::byte* window() const = 0;
  /// The other end's window in this process's addresses, where plain stores write it; those of one
  /// processor or GPU that a fence puts in order arrive in that order. Once ready().
  /// @return null where it is not mapped, or not in one piece
  [[nodiscard]] virtual std::byte* other_window() const { return nullptr; }

  /// Writes into the other end's window with the CPU. Not ordered among themselves.
  virtual void put(std::size_t offset, const void* data, std::size_t bytes) = 0;
  /// Writes 8 aligned bytes at once; they are seen after all earlier puts and all copies of this
  /// end that copy_done() reported.
  virtual void put_word(std::size_t offset, std::uint64_t value) = 0;
  /// Reads 8 aligned bytes of this end's window; what the other end wrote before them is seen by
  /// later reads.
  [[nodiscard]] virtual std::uint64_t read_word(std::size_t offset) const = 0;

  /// Orders earlier put_word() calls before later reads of words: for a handshake in which each end
  /// writes one word and then reads another.
  virtual void order_puts_before_reads() = 0;

  /// What the other end calls `data` in start_pull().
  [[nodiscard]] virtual std::uint64_t address_of(const void* data,
                                                 Registration* registration) const = 0;

  /// Starts a copy of at most piece_bytes on an idle queue: into the other end's window, or out of
  /// the other end's memory. Memory must stay until copy_done().
  virtual void start_write(int queue, std::size_t offset, const void* source,
                           std::size_t bytes) = 0;
  virtual void start_pull(int queue, void* destination, std::uint64_t source,
                          std::size_t bytes) = 0;
  /// @throws Error when the copy failed
  [[nodiscard]] virtual bool copy_done(int queue) = 0;

  /// Null where only windows are written.
  [[nodiscard]] virtual DirectWrites* direct_writes() { return nullptr; }
  /// Null where memory is the CPU's alone.
  [[nodiscard]] virtual DeviceCopies* device_copies() { return nullptr; }

  /// Why the other end has ended, if it has. Its earlier writes stay readable in window().
  [[nodiscard]] virtual std::optional<std::string> peer_lost() = 0;
  /// Whether words and puts since the last call were lost in transit, and why; may take a while.
  [[nodiscard]] virtual std::optional<std::string> stores_lost() { return std::nullopt; }
  /// Notifies the other end that this one ends. Called once, last.
  virtual void disconnect() noexcept = 0;
};

/// Bytes of both ends' windows, which both ends know.
struct WindowSizes {
  std::size_t own = 0;
  std::size_t other = 0;
};

/// Waits for the other ends of paths.
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  [[nodiscard]] virtual const Handle& handle() const = 0;
  /// @return nullptr when nobody is there; otherwise a path that is ready
  [[nodiscard]] virtual std::unique_ptr<Path> accept() = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual int num_devices() const = 0;
  /// As Transport::why_no_devices().
  [[nodiscard]] virtual std::string why_no_devices() const { return {}; }
  /// Without what the engine decides (requests in flight, grouped receives, message sizes).
  [[nodiscard]] virtual DeviceProperties properties(int device) const = 0;
  virtual std::unique_ptr<Registration> register_memory(int device, void* data, std::size_t bytes,
                                                        MemoryKind kind) = 0;
  [[nodiscard]] virtual std::unique_ptr<Acceptor> open_acceptor(int device, WindowSizes sizes) = 0;
  /// Never waits for the other end; the path becomes ready later.
  /// @throws Error kInvalidArgument when this is not a handle of this driver; kPeerLost
  [[nodiscard]] virtual std::unique_ptr<Path> connect(int device, const Handle& handle,
                                                      WindowSizes sizes) = 0;
  /// As Transport::settle().
  virtual void settle() {}
};

}  // namespace ropewalk::transport::window
