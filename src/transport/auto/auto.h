// The best path for each connection: the provider `auto`.
//
// Where both ends are on one host: CUDA memory handles if there are GPUs, else shared memory.
// Between hosts: a PCIe bridge if there is one, else libpsm2 if it has an adapter, else libfabric
// if it has a NIC (or OFI_PROVIDER names a provider), else TCP. A listener has an acceptor for
// each; its handle holds as many of their handles as fit, the best first. The connecting end tries
// them in that order. If a path fails verification, both ends drop it with one line in the log, and
// TCP replaces it; no message has been sent over it by then. Until a path is decided on, send() and
// receive() return nullptr.
//
// Devices: those of the PCIe bridge, else libpsm2's, else libfabric's, else the NICs that TCP runs
// over.
//
//   sender                                   receiver
//   connect to the first that answers        accept: a connection, not yet decided
//   ready(): the path's own verification     ready(): the same
//   it fails: connect to the TCP acceptor,   it fails: wait for what comes to the TCP acceptor
//   first message "in place of another"      with that message
#pragma once

#include <cstddef>
#include <memory>

#include "core/settings.h"
#include "transport/provider.h"
#include "transport/transport.h"

namespace ropewalk::transport {

/// @throws Error kSystem when no provider is there at all
std::unique_ptr<Transport> make_auto_transport(const Config& config);

/// Within a host, and between containers of one, it takes what copies as shared memory does.
inline constexpr Provider kAutoProvider{
    .name = "auto",
    .make = make_auto_transport,
    .channel_use = ChannelUse{.flagged_bytes = 4 << 10,
                              .channel_bytes = 64 << 10,
                              .fewest_channels = 2,
                              .most_channels = 8},
    .chooses = true,
};

/// A handle that says all it can in its first `room` bytes; the rest is zero. Of a handle of `auto`
/// the paths that do not fit are left out.
/// @throws Error kInvalidUsage when the handle needs more
Handle shortened(const Handle& handle, std::size_t room);

}  // namespace ropewalk::transport
