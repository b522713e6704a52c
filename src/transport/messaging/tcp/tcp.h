// TCP over plain sockets: works between any two hosts, with nothing installed.
//
// One device per network interface (SOCKET_IFNAME). A connection is TCP_STREAMS sockets; how
// messages travel over them is described in connection.h. Memory: host.
//
// Safety. A handle carries an address and two random 128-bit secrets. The connecting side sends the
// first secret, and the listener reads nothing else before; the listener answers with the second,
// and nothing else is sent to it before. A connection is closed at its first wrong byte. Silent
// ones are bounded in number and time, and never delay a peer that proves itself. The secrets do
// not hide the data: the network itself is trusted not to be listened to.
#pragma once

#include <memory>

#include "core/settings.h"
#include "transport/provider.h"
#include "transport/transport.h"

namespace ropewalk::transport::tcp {

/// @throws Error kInvalidArgument when SOCKET_IFNAME leaves no interface
std::unique_ptr<Transport> make_transport(const Config& config);

inline constexpr Provider kProvider{.name = "tcp", .make = make_transport};

}  // namespace ropewalk::transport::tcp
