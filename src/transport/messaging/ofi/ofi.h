// Any fabric that libfabric reaches: InfiniBand and RoCE (verbs), EFA, Slingshot (cxi), Omni-Path
// (psm3, opx), and in software sockets (tcp) and shared memory (shm).
//
// One device for each NIC of one provider (devices.h). Messages: connection.h. All connections of a
// device share an endpoint, or with OFI_ENDPOINTS=separate each has one of its own. Memory: host.
//
// Safety: as the provider `tcp`, by whose handshake the side channel is made (side_channel.h). Small
// messages carry a number that their connection drew; memory is open to the fabric only while it is
// registered. The network itself is trusted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/settings.h"
#include "transport/transport.h"

namespace ropewalk::transport::ofi {

/// A transport without devices where there is no usable libfabric or no provider; why is logged.
/// @throws Error kInvalidArgument when SOCKET_IFNAME leaves no interface
std::unique_ptr<Transport> make_transport(const Config& config);

/// Whether data goes through a NIC of its own and not over this host's sockets or memory.
[[nodiscard]] bool has_rdma(const Transport& ofi);

}  // namespace ropewalk::transport::ofi
