// PCIe bridges: the window driver for two hosts, or two processes of one, over adapters that
// libsisci drives.
//
// The library is found at run time (setting SISCI_LIBRARY). Without it, without its driver, or
// without an adapter that has a link, there is no device, which the log says and which is not an
// error.
//
// Each adapter with a link is a device. What a connection is made of, and how it finds out which of
// its methods work, is in path.h; what registration does, in memory.h; how GPU memory goes that the
// adapter does not reach, in gpu_side.h. GPU memory is taken where CUDA is (setting CUDA_LIBRARY).
#pragma once

#include <memory>

#include "core/settings.h"
#include "transport/provider.h"
#include "transport/transport.h"
#include "transport/window/driver.h"

namespace ropewalk::transport::window {

std::unique_ptr<Driver> make_sisci_driver(const Config& config);

/// The engine over that driver.
std::unique_ptr<Transport> make_sisci_transport(const Config& config);

/// An adapter is what NCCL takes it for; but neither its DMA nor copies of what is staged promise
/// that lines of 128 bytes arrive in order.
inline constexpr Provider kSisciProvider{
    .name = "sisci",
    .make = make_sisci_transport,
    .channel_use = ChannelUse{},
    .make_window_driver = make_sisci_driver,
};

}  // namespace ropewalk::transport::window
