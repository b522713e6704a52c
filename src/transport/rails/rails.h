// One connection over several devices, of any providers, of different kinds and speeds, that
// survives the loss of all but one.
//
// A rail joins a device of each end: a connection of the device's provider in each direction, one
// forward for messages, one back for what the receiver reports. The sender is the one that makes
// rails, judges them and makes them again; the receiver follows.
//
// The wire (wire.h). A message has a number, in the order in which messages were started, and is
// cut into pieces at multiples of 64 KiB. Each piece is one message of the provider's: a head
// (message, tag, length of the message, offset, checksum) and its bytes. The first pieces of a
// message go at once, up to 128 KiB; the rest when the receiver has said that the message has its
// receive. What a receiver holds for messages without one is bounded by credits (4 MiB); a message
// that finds none is only introduced. So no message blocks another of a different tag.
//
// Who sends over which rail. Each rail has a bounded number of bytes outstanding, some 10 ms at its
// measured rate. The next piece goes to the rail that will deliver it first, of those with room;
// none goes to a slow rail that the others would have delivered by then. Messages up to 16 KiB go
// over the fastest rail alone. A rail slower than a quarter of the fastest (less 15 % for what the
// measurement may be off) is left out: it carries nothing while there are others, and is measured
// again every 2 s with bytes of no meaning.
//
// Order. The receiver matches messages in the order of their numbers, whatever order they come in:
// what comes before an earlier message's first piece waits. A provider keeps the order of a rail's
// messages, so the receiver's record of arrival is one count for each rail, besides the pieces that
// it has of each message.
//
// The record of arrival. The receiver sends snapshots over the connections back: counts of all
// rails, credits, messages that have their receive. Each is complete, so that the latest is enough
// and one may be lost; counts only grow, so an old one that comes late changes nothing.
//
// Why sending again is safe.
//  - A piece is known by its message's number and its offset, and both are used once in the life of
//    a connection. The receiver takes each once, and drops it when it comes again.
//  - Providers write pieces into memory of the rail's, never into the receive's buffer. The
//    receiver copies a piece from there under the connection's lock, after it has looked whether
//    the message still has that receive and lacks that piece. So nothing is written when the
//    receive has been completed or given up, however late the piece.
//  - A rail that is lost is closed with all its requests before its pieces go elsewhere. So the
//    provider does not read a send's buffer any more, and a send is finished only when each of its
//    pieces is in the receiver's record and no request reads its buffer.
//  - Short messages (4 KiB) are copied, and their sends finished at once; the copy is kept, also
//    beyond the end of the connection's object, until it is in the receiver's record.
//
// Loss. A rail is lost when its provider reports an error, when the system tells that the network
// interface under it is down (netlink), when what came over it was wrong, or when it is silent:
// probes go over all rails every 75 ms while anything is outstanding, and one that has answered
// none of three that another rail has answered, and nothing else for 250 ms, is lost. Silence of
// all rails proves nothing of any: the peer may be stopped. There providers' errors decide, of
// `tcp` after 10 s. When no rail has been left for PEER_LOSS_TIME, the connection ends with an
// error that names the rails and why each was lost.
//
// Return. A lost rail is connected again after 50 ms, then twice as long each time, up to 5 s, and
// at once when its interface comes up; without end. It is verified by patterns of both sizes
// (VERIFY=off: not) before it carries anything.
//
// A thread for each Transport answers probes, watches links, and makes rails again, while the
// program is elsewhere; it looks every 10 ms, and is started by the first listener or connection.
//
// Memory: host. On the transport's one device; which devices are under it: the setting RAILS.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/settings.h"
#include "transport/provider.h"
#include "transport/transport.h"

namespace ropewalk::transport::rails {

/// Over the devices that the setting RAILS names. FAULTY is for the transports below.
/// @throws Error kInvalidArgument when it names none that is there
std::unique_ptr<Transport> make_transport(const Config& config);

inline constexpr Provider kProvider{.name = "rails", .make = make_transport, .faults_below = true};

/// The same over all devices of the transports given, whose names are those of providers.
std::unique_ptr<Transport> make_over(std::vector<std::unique_ptr<Transport>> transports,
                                     const Config& config);

/// A handle that says all it can in its first `room` bytes; one that is not of `rails` as it is.
Handle shortened(const Handle& handle, std::size_t room);

/// How it stands with one rail, and what it has carried.
struct RailReport {
  std::string name;         ///< "tcp eth0"
  bool up = false;          ///< verified, and not lost since
  bool left_out = false;    ///< up, and too slow to be used beside the others
  std::string why;          ///< why it is left out, or was lost the last time; empty: never
  std::uint64_t bytes = 0;  ///< of messages' data that it delivered (sender), or brought (receiver)
  std::uint64_t again = 0;  ///< of those, in pieces that had been lost with another (sender), or
                            ///< that had come before (receiver)
  std::uint64_t losses = 0;
  double rate = 0;  ///< bytes/s, as measured; 0: not yet
};

/// @pre the connection is one of `rails`, else nothing is returned
std::vector<RailReport> report(const SendConnection& connection);
std::vector<RailReport> report(const ReceiveConnection& connection);
/// For a line of a log or a terminal.
std::string text_of(const std::vector<RailReport>& rails);

}  // namespace ropewalk::transport::rails
