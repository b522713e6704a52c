// Any fabric that libfabric reaches: InfiniBand and RoCE (verbs), EFA, Slingshot (cxi), Omni-Path
// (psm3, opx), and in software sockets (tcp) and shared memory (shm).
//
// One device for each NIC of one provider (devices.h). Messages: connection.h. All connections of a
// device share an endpoint, or with OFI_ENDPOINTS=separate each has one of its own. Memory: host;
// and that of GPUs where the provider offers it, promises not to call CUDA, and moves a pattern
// right (endpoint.h).
//
// Safety: as the provider `tcp`, by whose handshake the side channel is made (messaging/meeting.h).
// Small messages carry a number that their connection drew; memory is open to the fabric only while
// it is registered. The network itself is trusted.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/settings.h"
#include "transport/messaging/gpus.h"
#include "transport/provider.h"
#include "transport/transport.h"

namespace ropewalk::transport::ofi {

/// A transport without devices where there is no usable libfabric or no provider; why is logged.
/// @throws Error kInvalidArgument when SOCKET_IFNAME leaves no interface
std::unique_ptr<Transport> make_transport(const Config& config);

inline constexpr Provider kProvider{
    .name = "ofi",
    .make = make_transport,
    // libfabric's tcp;ofi_rxm moves messages of 64 and 256 KiB at a quarter of the rate of 1 MiB.
    // (All-reduces of 256 KiB and more take 0.70 to 0.94 of the time that pieces of 128 KiB took.)
    .piece_bytes = std::size_t{512} << 10U,
    // NICs are what NCCL takes them for; but EFA's packets arrive in any order.
    .channel_use = ChannelUse{},
};

/// The result of discovery when the transport was created.
struct Summary {
  std::string library;                  ///< "libfabric 1.17"; empty when it cannot be used
  std::string provider;                 ///< as libfabric names it; empty without devices
  std::string large;                    ///< how messages above 8 KiB go
  std::string why_none;                 ///< why there is no device
  bool rdma = false;                    ///< data goes through NICs of its own
  std::vector<std::string> gpu_memory;  ///< of each device: "taken", or why not
};
[[nodiscard]] const Summary& summary(const Transport& ofi);

/// For diagnosis: tries memory of each GPU of this process, and makes a context on each for that.
[[nodiscard]] messaging::GpuTrials try_gpu_memory(Transport& ofi, int device);

/// For `auto`. Whether libfabric is worth loading: OFI_PROVIDER names a provider, or the system
/// knows adapters of a kind that libfabric drives. Loading takes up to half a second.
[[nodiscard]] bool worth_a_look(const Config& config);

/// For `auto`. Whether data goes through a NIC of its own and not over this host's sockets or
/// memory, or OFI_PROVIDER asks for it.
[[nodiscard]] bool better_than_tcp(const Transport& ofi, const Config& config);

}  // namespace ropewalk::transport::ofi
