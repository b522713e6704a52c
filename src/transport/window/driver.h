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
#include <string>

#include "transport/transport.h"

namespace ropewalk::transport::window {

struct Capabilities {
  int queues = 1;                      ///< copies that may be under way at once, each way
  std::size_t piece_bytes = 64 << 10;  ///< largest copy; bounds how long a synchronous one blocks
  bool pull = false;                   ///< start_pull() works
  std::string why_no_pull;             ///< in words, when it does not
  /// Pulls touch the sender's memory in a way that is unsafe once that is freed (a memcpy within
  /// one process, a DMA engine). Then the sender waits for a pull under way before it lets go.
  bool pull_needs_owner = false;
  /// put_word() may be seen before what it was to follow: mailbox entries are checked for being
  /// whole.
  bool puts_may_tear = false;
};

/// Registered memory of the end that states it, which the other end may write. Plain bytes.
struct Target {
  std::uint64_t region = 0;  ///< 0: none
  std::uint64_t offset = 0;
};

/// The part of a path that writes registered memory of the other end, past the windows. Optional.
///
/// A path states a target only for memory that it has seen to be reached. Threads: the path's.
class DirectWrites {
 public:
  [[nodiscard]] virtual std::size_t direct_piece_bytes() const = 0;
  /// Shorter messages are better off in the window.
  [[nodiscard]] virtual std::size_t smallest_direct() const = 0;
  /// What the other end calls this end's memory. @return none where it cannot be written from there
  [[nodiscard]] virtual Target target_of(const void* data, std::size_t bytes,
                                         const Registration& registration) = 0;
  /// Whether start_direct() works, to that target and out of that registration or none.
  [[nodiscard]] virtual bool reach(const Target& target, const void* source,
                                   const Registration* registration) = 0;
  /// Starts a copy of at most direct_piece_bytes on an idle queue, as Path's copies; copy_done()
  /// tells when it has arrived.
  virtual void start_direct(int queue, const Target& target, const void* source,
                            const Registration* registration, std::size_t bytes) = 0;
  /// Returns when the other end writes that memory no more, ever.
  virtual void revoke(Registration& registration) = 0;

 protected:
  ~DirectWrites() = default;
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

  /// Writes into the other end's window with the CPU. Not ordered among themselves.
  virtual void put(std::size_t offset, const void* data, std::size_t bytes) = 0;
  /// Writes 8 aligned bytes at once; they are seen after all earlier puts and all copies of this
  /// end that copy_done() reported.
  virtual void put_word(std::size_t offset, std::uint64_t value) = 0;
  /// Reads 8 aligned bytes of this end's window; what the other end wrote before them is seen by
  /// later reads.
  [[nodiscard]] virtual std::uint64_t read_word(std::size_t offset) const = 0;

  /// Words put before are written when words are read after: for a handshake in which each end
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

  /// Why the other end is gone, if it is. What it wrote before stays readable in window().
  [[nodiscard]] virtual std::optional<std::string> peer_lost() = 0;
  /// Lets the other end know that this one is gone. Called once, last.
  virtual void disconnect() noexcept = 0;
};

/// Bytes of both ends' windows, which both ends know.
struct WindowSizes {
  std::size_t own = 0;
  std::size_t other = 0;
};

/// Waits for the other ends of paths.
class Door {
 public:
  virtual ~Door() = default;
  [[nodiscard]] virtual const Handle& handle() const = 0;
  /// @return nullptr when nobody is there; otherwise a path that is ready
  [[nodiscard]] virtual std::unique_ptr<Path> accept() = 0;
};

class Driver {
 public:
  virtual ~Driver() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual int num_devices() const = 0;
  /// Without what the engine decides (requests in flight, grouped receives, message sizes).
  [[nodiscard]] virtual DeviceProperties properties(int device) const = 0;
  virtual std::unique_ptr<Registration> register_memory(int device, void* data, std::size_t bytes,
                                                        MemoryKind kind) = 0;
  [[nodiscard]] virtual std::unique_ptr<Door> open_door(int device, WindowSizes sizes) = 0;
  /// Never waits for the other end; the path becomes ready later.
  /// @throws Error kInvalidArgument when this is no handle of this driver; kPeerLost
  [[nodiscard]] virtual std::unique_ptr<Path> connect(int device, const Handle& handle,
                                                      WindowSizes sizes) = 0;
};

}  // namespace ropewalk::transport::window
