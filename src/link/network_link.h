// Network links: a transport carries the slots of a link between two hosts.
//
// Each end has the link's FIFO in memory of its own; the walker sees no difference to a memory
// link. A NetworkSender is the reader of the sending rank's FIFO: it sends filled slots and marks
// them consumed when the transport is done with them. A NetworkReceiver is the writer of the
// receiving rank's: it posts receives into free slots and publishes them when they are filled. On
// the wire a chunk is its slot without the sequence number, which each end keeps itself.
//
// Where the transport can, data that is given by address is sent from there, and data of a chunk
// that the receiving rank waits for already is received straight into its place.
//
// Threads: poll() by one thread at a time, the one that waits on the communicator.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "executor/fifo.h"
#include "transport/transport.h"

namespace ropewalk::link {

/// Page-aligned, zeroed memory of one link end. The system gives a page when it is first used.
class FifoMemory {
 public:
  explicit FifoMemory(const executor::FifoShape& shape);
  [[nodiscard]] std::byte* data() const noexcept { return memory_.get(); }
  [[nodiscard]] std::size_t bytes() const noexcept { return memory_.get_deleter().bytes; }

 private:
  struct Unmap {
    std::size_t bytes;
    void operator()(std::byte* memory) const noexcept;
  };
  std::unique_ptr<std::byte, Unmap> memory_;
};

/// What both ends of a network link have: a FIFO of their own, which is registered with the
/// connection, and the requests under way.
template <typename Connection, typename End>
class NetworkEnd {
 public:
  [[nodiscard]] End& end() noexcept { return end_; }

 protected:
  /// `connection` is ready().
  NetworkEnd(const executor::FifoShape& shape, int peer, std::unique_ptr<Connection> connection);

  // Destroyed bottom up: requests before the registration that they use.
  FifoMemory memory_;
  End end_;
  std::unique_ptr<Connection> connection_;
  std::unique_ptr<transport::Registration> registration_;
  std::uint64_t started_ = 0;                                 // slots given to the transport
  std::deque<std::unique_ptr<transport::Request>> requests_;  // in order; front is finished next
};

class NetworkSender : public NetworkEnd<transport::SendConnection, executor::SendEnd> {
 public:
  NetworkSender(const executor::FifoShape& shape, int peer,
                std::unique_ptr<transport::SendConnection> connection);

  /// Moves what can be moved. @return true when anything moved
  /// @throws Error kPeerLost naming the peer
  bool poll();

 private:
  std::unique_ptr<transport::Request> send(executor::SlotHeader& slot);
};

class NetworkReceiver : public NetworkEnd<transport::ReceiveConnection, executor::ReceiveEnd> {
 public:
  NetworkReceiver(const executor::FifoShape& shape, int peer,
                  std::unique_ptr<transport::ReceiveConnection> connection)
      : NetworkEnd(shape, peer, std::move(connection)) {}

  /// As NetworkSender::poll.
  bool poll();

 private:
  std::uint64_t finished_ = 0;
};

}  // namespace ropewalk::link
