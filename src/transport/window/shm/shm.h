// Shared memory: the window driver for two ends on one host, in containers too as long as they
// share a network namespace and a user.
//
// A connection is two segments (core/shared_memory.h), one per end, exchanged with their
// descriptors over a Unix socket. The socket's abstract name and a secret are random and travel in
// the handle; both ends check that the other has their user id. The socket stays open: its end is
// how a dead peer is noticed (and the peer's pidfd, where its process can be seen: a child that the
// peer forked may hold the socket open).
//
// Large messages are copied once, by process_vm_readv, where the system lets the receiver read the
// sender's memory. That is found out when a connection is made (setting SINGLE_COPY). Within one
// process it is a memcpy.
#pragma once

#include <memory>

#include "core/settings.h"
#include "transport/provider.h"
#include "transport/transport.h"
#include "transport/window/driver.h"

namespace ropewalk::transport::window {

/// A path of this driver, for drivers that build on it.
class HostPath : public Path {
 public:
  /// A socket to the other end, of packets with descriptors, free for use once ready().
  [[nodiscard]] virtual int socket() const = 0;
};

std::unique_ptr<Driver> make_shm_driver(const Config& config);

/// The engine over that driver.
std::unique_ptr<Transport> make_shm_transport(const Config& config);

/// The thread that moves NCCL's proxies copies every message. Measured on two H200 with NCCL 2.28.9
/// (benchmarks/results/nccl-net-*).
inline constexpr Provider kShmProvider{
    .name = "shm",
    .make = make_shm_transport,
    .channel_use = ChannelUse{.flagged_bytes = 4 << 10,
                              .channel_bytes = 64 << 10,
                              .fewest_channels = 2,
                              .most_channels = 8},
    .joins_processes = true,
    .make_window_driver = make_shm_driver,
};

}  // namespace ropewalk::transport::window
