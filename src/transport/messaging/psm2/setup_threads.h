// Two threads that help endpoints while connections are being made.
//
// psm2_ep_connect() waits until the peer's process has made progress on its endpoint. But the
// caller must not wait, and the peer's user may not call. So one thread connects, and another polls
// the endpoints that are being connected to. They sleep while there is nothing to do.
#pragma once

#include <memory>

#include "transport/messaging/psm2/endpoint.h"

namespace ropewalk::transport::psm2 {

class SetupThreads;

/// Those of this process, which end when nobody holds them any more: each transport does.
std::shared_ptr<SetupThreads> setup_threads();

/// Polls it from now on, until Endpoint::in_setup is 0. Any thread.
void poll_while_in_setup(Endpoint& endpoint);

/// Calls Endpoint::connect(id) until it is done. Any thread.
void connect_in_background(Endpoint& endpoint, abi::EndpointId id);

}  // namespace ropewalk::transport::psm2
