// The window engine: messages over any Driver (driver.h).
//
// The ends talk by mailboxes: rings of 64-byte entries in each other's window, a sequence number
// last in each. A message:
//
//   receiver  RECV_REQUESTED (receive id, tag, room)             ->
//   sender    matches its k-th send of a tag with the k-th request of that tag, then
//    <-       SEND_NOTIFIED with the message in the entry           up to 32 bytes
//    <-       pieces copied to the bounce ring in the receiver's window, SEND_NOTIFIED for each
//    <-       SEND_NOTIFIED with the address of the message         where the path can pull, above
//                                                                   SINGLE_COPY_BYTES
//    <-       pieces copied to the receiver's memory, SEND_NOTIFIED where the path can write that,
//                                                                   and the request named it
//   receiver  copies the message out in pieces, COMPLETED        ->
//
// All receives are requested ahead, so in a steady state a request costs nothing; send() returns
// nullptr while its tag is not asked for. Nothing is ever held for a receive that is not posted, so
// the memory of a connection is its two windows. The protocol bounds the entries that may be
// unread (kRingEntries), so mailboxes need no flow control of their own.
//
// Copies by the CPU go in pieces, at most about 1 MiB per call, so no call takes long.
//
// Device memory (driver.h, DeviceCopies). A request says in which memory its buffer lies. Before
// the first message from or to such memory the sender asks how it goes:
//
//   sender    TRY: would write such memory directly              ->
//    <-       TARGET for a pattern                         receiver
//   sender    writes the pattern there, TRIED                    ->
//   sender    OFFER of memory to pull from, which the driver hands over, or of staging; with a
//             pattern                                            ->
//    <-       ANSWER: yes or no                            receiver
//
// Where the path writes registered memory and the request named it, the message goes so, if the
// trial was right; from device memory into device memory it is a pull, where that may be; both
// however short the message. All else is staged: it goes through the bounce ring, to and from which
// both ends' devices copy. The CPU touches no device memory, so nothing of it is in a mailbox.
//
// Verified connections (setting VERIFY). Before its first message the sender moves a random pattern
// through everything that it will use (mailbox, bounce ring, pull), and the receiver compares. A
// method that fails is not used, and the log says why; when none is left, the connection fails by
// name, as it does where the two ends have different values of VERIFY. The sender closes the
// exchange by OPEN, from which on both ends' ready() is true. Device memory's methods are tried
// when they are first asked for, once for each pair of locations. VERIFY=all adds a checksum to
// every message. (That of a pulled message is made at once in send(), which then takes as long as
// reading it.)
//
// A request that is destroyed unfinished breaks the connection.
#pragma once

#include <memory>

#include "core/settings.h"
#include "transport/transport.h"
#include "transport/window/driver.h"

namespace ropewalk::transport::window {

std::unique_ptr<Transport> make_transport(std::unique_ptr<Driver> driver, const Config& config);

}  // namespace ropewalk::transport::window
