// Network links: a transport carries the slots of a link between two hosts.
//
// Each end has the link's FIFO in memory of its own; the walker sees no difference to a memory
// link. A NetworkSender is the reader of the sending rank's FIFO: it sends filled slots and marks
// them consumed when the transport is done with them. A NetworkReceiver is the writer of the
// receiving rank's: it posts receives into free slots and publishes them when they are filled. On
// the wire a chunk is its slot without the sequence number, which each end keeps itself.
//
// Where the transport can, data that is given by address is sent from there, and data of a chunk
// that the receiving rank waits for already is received directly into the output.
//
// Where the walker is a block of a GPU, the memory is of the host's that the GPU reaches, and all
// that passes between the two lies in it: slots' sequence numbers and the count of consumed chunks.
//
// Threads: one at a time, besides the walker's.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "core/error.h"
#include "executor/link_end.h"
#include "executor/traffic.h"
#include "transport/transport.h"

namespace ropewalk::link {

/// Page-aligned, zeroed memory of one link end.
using FifoMemory = std::unique_ptr<std::byte, std::function<void(std::byte*)>>;
/// Allocates this number of bytes.
/// @throws Error if there is no memory
using FifoMaker = std::function<FifoMemory(std::size_t bytes)>;
/// Memory of this process. The system gives a page when it is first used.
/// @throws Error kSystem
FifoMemory host_fifo(std::size_t bytes);
/// What an end of such a link asks its FifoMaker for.
[[nodiscard]] std::size_t network_end_bytes(executor::FifoShape shape) noexcept;

/// The wire form of a header leaves out the sequence number, which must appear only after the data.
inline constexpr std::size_t kHeaderSkip = sizeof(executor::SlotHeader::sequence);
inline constexpr std::size_t kHeaderWireBytes = sizeof(executor::SlotHeader) - kHeaderSkip;

/// The common part of both ends of a network link: a FIFO of their own, which is registered with
/// the connection, and the requests in progress.
template <typename Connection, typename End>
class NetworkEnd {
 public:
  /// The walker's, in memory of this process; a GPU's addresses may differ.
  [[nodiscard]] End& end() noexcept { return end_; }

  [[nodiscard]] bool connected() const noexcept { return connection_ != nullptr; }
  /// From now on this carries the link.
  /// @pre it is ready(); called once
  virtual void use(std::unique_ptr<Connection> connection);

 protected:
  /// `memory`: all of it is registered.
  NetworkEnd(FifoMemory memory, std::size_t bytes, int peer, bool by_blocks);
  virtual ~NetworkEnd() = default;
  NetworkEnd(const NetworkEnd&) = delete;
  NetworkEnd& operator=(const NetworkEnd&) = delete;

  // Destroyed bottom up: requests before the registration that they use.
  FifoMemory memory_;
  std::size_t memory_bytes_;
  End end_;
  bool by_blocks_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<transport::Registration> registration_;
  std::uint64_t started_ = 0;                                 // slots given to the transport
  std::deque<std::unique_ptr<transport::Request>> requests_;  // in order; front is finished next
};

class NetworkSender : public NetworkEnd<transport::SendConnection, executor::SendEnd> {
 public:
  NetworkSender(const executor::FifoShape& shape, int peer, const FifoMaker& make_memory,
                bool by_blocks);
  ~NetworkSender() override = default;
  void use(std::unique_ptr<transport::SendConnection> connection) override;
  /// Counts the bytes of its chunks there, from now on.
  void count_in(executor::Traffic::Counter& counter) noexcept { counter_ = &counter; }

  /// Moves what can be moved.
  /// @return true when anything moved
  /// @pre connected()
  /// @throws Error kPeerLost naming the peer
  virtual bool poll();
  /// Nothing is published that the transport is not done with.
  [[nodiscard]] virtual bool drained();
  /// What this thread may sleep on until poll() can move something; nothing where it waits for
  /// nothing.
  /// @return false if it must be polled
  [[nodiscard]] bool add_descriptors(std::vector<pollfd>& to);

 protected:
  using NetworkEnd::NetworkEnd;
  // Chunks that a block has published since.
  void count_published();
  // Takes finished requests away, and tells the walker of the chunks that were sent.
  // @return whether there were any
  bool take_finished();

  executor::Traffic::Counter* counter_ = nullptr;  // of bytes of data; null: nobody counts

 private:
  std::unique_ptr<transport::Request> send(executor::SlotHeader& slot);
};

class NetworkReceiver : public NetworkEnd<transport::ReceiveConnection, executor::ReceiveEnd> {
 public:
  NetworkReceiver(const executor::FifoShape& shape, int peer, const FifoMaker& make_memory,
                  bool by_blocks);
  ~NetworkReceiver() override = default;

  /// As NetworkSender::poll. Receives are posted ahead, so that a connection may break that nobody
  /// waits for: a rank that has done its part has left, and this one has all that it sent. The
  /// error is thrown when a chunk is wanted that did not come; with blocks, of which this is not
  /// known, at once.
  virtual bool poll();
  /// As NetworkSender::add_descriptors.
  [[nodiscard]] bool add_descriptors(std::vector<pollfd>& to) const {
    const bool idle = requests_.empty() || fault_.has_value();
    return !by_blocks_ && (idle || connection_->add_descriptors(to));
  }
  /// Whether the walker certainly waits for the next chunk.
  [[nodiscard]] bool wanted() const noexcept { return by_blocks_ || end_.waited; }

 protected:
  using NetworkEnd::NetworkEnd;

 private:
  bool take_chunks();
  // What waits for a chunk has nothing to go on with.
  [[nodiscard]] bool starved() const noexcept { return wanted() && end_.received == finished_; }

  std::uint64_t finished_ = 0;
  std::optional<Error> fault_;
};

}  // namespace ropewalk::link
