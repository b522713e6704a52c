// Transport: a network technology, in the shape of NCCL's network plugin interface, in C++.
//
// Nothing here blocks. "Not yet" is a value (nullptr, nullopt, false), never an Error; failure is
// an Error and ends the connection it names. The runtime's network links and the network plugin
// both sit on this interface, and one contract suite (contract_test.cc) runs over every provider.
//
// Order: messages with equal tags on one connection match in the order in which they were started;
// completions may come in any order. Threads: an object is used by one thread at a time, save that
// register_memory() may be called, and a registration that no request uses destroyed, by another
// thread meanwhile; different objects of one Transport may be used by different threads at once.
// Lifetime: a Transport outlives its listeners and connections, a connection its requests and
// registrations.
#pragma once

#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace ropewalk::transport {

/// Kinds of memory that a provider can take as source or destination. kDmaBuf: that it can make use
/// of a descriptor of GPU memory (register_dma_buf); only together with kCuda.
enum class MemoryKind : std::uint8_t { kHost = 1, kCuda = 2, kDmaBuf = 4 };

/// DeviceProperties::joined_bytes of a TCP socket.
inline constexpr std::size_t kSocketJoinedBytes = std::size_t{64} << 10;

/// A provider's statements about a device. The contract suite checks them.
struct DeviceProperties {
  std::string name;        ///< "shm0", "eth0"
  std::string pci_path;    ///< sysfs path, empty when there is none
  std::uint64_t guid = 0;  ///< equal for equal hardware
  /// The network to which it is attached, such as a subnet: devices of one fabric reach each other
  /// without a router. Empty: unknown.
  std::string fabric;
  std::string address;    ///< within the fabric, where it has one: "10.0.0.1"
  double speed_mbps = 0;  ///< Mbit/s, as NCCL counts
  double latency_us = 0;  ///< one way; 0 when not known
  /// How much a message costs the processors of both ends, as a multiple of one over a TCP socket.
  /// The same on all ends of a transport.
  double message_weight = 1;
  /// The longest messages that leave together, for the price of one, where they follow each other
  /// at once (SendConnection::more_follow()); 0: none do. The same on all ends of a transport.
  std::size_t joined_bytes = 0;
  /// How much longer connections take that share a device in one direction, for each one more than
  /// one, as a share of their time.
  double sharing_cost = 0.02;
  int port = 0;
  int max_connections = 65536;
  std::size_t max_message_bytes = std::size_t{1} << 40;
  int max_requests = 32;  ///< in flight on one connection
  int max_grouped_receives = 1;
  unsigned memory_kinds = static_cast<unsigned>(MemoryKind::kHost);
  bool registration_is_global = true;  ///< registered memory serves every connection of the device
  /// Where it takes GPU memory: a message there may need copies by CUDA, and a registration calls
  /// of CUDA that allocate, which may wait for kernels.
  bool gpu_memory_by_cuda = false;
  /// Such calls also follow when the connection and all registrations are made: the receiver maps
  /// memory of the sender when it is told of it.
  bool gpu_memory_mapped_later = false;
};

/// A listener's address, which the caller sends to the connecting side. Opaque.
inline constexpr std::size_t kHandleBytes = 128;
using Handle = std::array<std::byte, kHandleBytes>;

/// Memory made known to a connection. Destroying it ends the registration.
class Registration {
 public:
  virtual ~Registration() = default;
  [[nodiscard]] virtual MemoryKind kind() const noexcept { return MemoryKind::kHost; }
};

/// One started send or receive. Destroying an unfinished request closes the connection's use of
/// its memory: the destructor returns only when the provider no longer touches it.
class Request {
 public:
  virtual ~Request() = default;
  /// Drives progress.
  /// @return the bytes moved (for grouped receives see sizes()), once finished
  /// @throws Error kPeerLost when the connection broke
  [[nodiscard]] virtual std::optional<std::size_t> test() = 0;
  /// False if test() must first drive progress, which may cost a useless system call.
  [[nodiscard]] virtual bool at_hand() const { return true; }
  /// After test() returned a value: the bytes of each message of a grouped receive.
  [[nodiscard]] virtual std::span<const std::size_t> sizes() const = 0;
  /// Of an unfinished receive of one buffer: should its message have exactly `offset` + `bytes`
  /// bytes, of which none has come, then those from `offset` on may go to `data` instead of the
  /// buffer. The last call holds; with no `data`, all go to the buffer again.
  virtual void place_rest(std::size_t /*offset*/, void* /*data*/, std::size_t /*bytes*/) {}
  /// After test() returned a value: whether they did.
  [[nodiscard]] virtual bool placed() const { return false; }
};

/// A Linux dma-buf descriptor of GPU memory, which the caller owns. A provider that needs it beyond
/// the call makes a duplicate.
struct DmaBuf {
  int descriptor = -1;
  std::uint64_t offset = 0;  ///< bytes from the descriptor's begin to the memory
};

/// The largest head of a message that is sent from two buffers.
inline constexpr std::size_t kMaxHeadBytes = 128;

/// The sending end.
class SendConnection {
 public:
  virtual ~SendConnection() = default;
  /// Drives the connection until it has been verified and messages can pass.
  /// @throws Error when it broke; before true was returned, no message has passed
  [[nodiscard]] virtual bool ready() { return true; }
  virtual std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                        MemoryKind kind) = 0;
  /// As register_memory() with kCuda, for GPU memory of which there is a descriptor, too. A
  /// provider that has no use for the descriptor takes the memory by its address.
  virtual std::unique_ptr<Registration> register_dma_buf(void* data, std::size_t bytes,
                                                         const DmaBuf& buffer);
  /// Starts a send. `data` must stay unchanged until the request is finished.
  /// @return nullptr when no request can be started now (none free, or the receiver has not yet
  ///         asked for this tag): call again
  [[nodiscard]] virtual std::unique_ptr<Request> send(const void* data, std::size_t bytes,
                                                      std::uint32_t tag,
                                                      Registration* registration) = 0;
  /// Whether further sends follow at once: if so, messages may stay here until a request of theirs
  /// is tested, so that several leave together.
  virtual void more_follow(bool /*follow*/) {}
  /// Whether send_split() works here, and Request::place_rest() at the other end. Known once
  /// ready() was true: a connection may have taken one of several paths.
  [[nodiscard]] virtual bool splits_messages() const { return false; }
  /// As send(), for a message in two buffers: `head`, which is copied at once, followed by `data`.
  /// @pre splits_messages(), and at most kMaxHeadBytes of `head`
  [[nodiscard]] virtual std::unique_ptr<Request> send_split(std::span<const std::byte> head,
                                                            const void* data, std::size_t bytes,
                                                            std::uint32_t tag);
  /// Adds what a thread may sleep on (poll(2)) instead of driving the connection: with a request
  /// that is not finished, or a send() that gave nullptr, nothing goes on before one of them is
  /// ready.
  /// @return false if there is nothing such: it must be driven all the time
  [[nodiscard]] virtual bool add_descriptors(std::vector<pollfd>& /*to*/) const { return false; }
  /// What it waits for, for the log; empty if unknown.
  [[nodiscard]] virtual std::string describe() const { return {}; }
};

struct ReceiveBuffer {
  void* data = nullptr;
  std::size_t bytes =
      0;  ///< capacity; a shorter message is fine, a longer one breaks the connection
  std::uint32_t tag = 0;
  Registration* registration = nullptr;
};

/// The receiving end.
class ReceiveConnection {
 public:
  virtual ~ReceiveConnection() = default;
  /// As SendConnection::ready(). The sender must call its own, or send(), for it to become true.
  [[nodiscard]] virtual bool ready() { return true; }
  virtual std::unique_ptr<Registration> register_memory(void* data, std::size_t bytes,
                                                        MemoryKind kind) = 0;
  /// As SendConnection::register_dma_buf().
  virtual std::unique_ptr<Registration> register_dma_buf(void* data, std::size_t bytes,
                                                         const DmaBuf& buffer);
  /// Starts a receive of one message per buffer, at most max_grouped_receives of them.
  /// @return nullptr when no request can be started now: call again
  [[nodiscard]] virtual std::unique_ptr<Request> receive(
      std::span<const ReceiveBuffer> buffers) = 0;
  /// Starts making received data visible to the memory's device. Host memory needs nothing: the
  /// request is finished at once.
  [[nodiscard]] virtual std::unique_ptr<Request> flush(std::span<const ReceiveBuffer> buffers) = 0;
  /// As SendConnection::add_descriptors().
  [[nodiscard]] virtual bool add_descriptors(std::vector<pollfd>& /*to*/) const { return false; }
  /// As SendConnection::describe().
  [[nodiscard]] virtual std::string describe() const { return {}; }
};

class Listener {
 public:
  virtual ~Listener() = default;
  [[nodiscard]] virtual const Handle& handle() const = 0;
  /// @return nullptr until a connection is there; may be called for several connections
  [[nodiscard]] virtual std::unique_ptr<ReceiveConnection> accept() = 0;
};

/// A connection attempt in progress. Call poll() until it returns the connection.
class Connector {
 public:
  virtual ~Connector() = default;
  [[nodiscard]] virtual std::unique_ptr<SendConnection> poll() = 0;
};

class Transport {
 public:
  virtual ~Transport() = default;
  [[nodiscard]] virtual std::string name() const = 0;
  [[nodiscard]] virtual int num_devices() const = 0;
  /// Why there is no device, for an error's text; empty where there are some, or it is not known.
  [[nodiscard]] virtual std::string why_no_devices() const { return {}; }
  [[nodiscard]] virtual DeviceProperties properties(int device) const = 0;
  [[nodiscard]] virtual std::unique_ptr<Listener> listen(int device) = 0;
  [[nodiscard]] virtual std::unique_ptr<Connector> connect(int device, const Handle& handle) = 0;
  /// Releases resources of closed connections, such as sockets whose last bytes are in flight. For
  /// use when no connection is left that would do so; unlike all other functions this may wait, for
  /// a bounded time.
  virtual void settle() {}
};

}  // namespace ropewalk::transport
