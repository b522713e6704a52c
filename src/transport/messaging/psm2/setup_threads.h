// Two threads that help endpoints while connections are being made.
//
// psm2_ep_connect() waits until the peer's process has made progress on its endpoint, and neither
// may the caller wait nor can the peer's user be relied on to call. So one thread connects, and
// another polls the endpoints that are being connected to. They run only while there is something
// to do, and end with the process.
#pragma once

#include "transport/messaging/psm2/endpoint.h"

namespace ropewalk::transport::psm2 {

/// Polls it from now on, until Endpoint::in_setup is 0. Any thread.
void poll_while_in_setup(Endpoint& endpoint);

/// Calls Endpoint::connect(id) until it is done. Any thread.
void connect_in_background(Endpoint& endpoint, abi::EndpointId id);

}  // namespace ropewalk::transport::psm2
