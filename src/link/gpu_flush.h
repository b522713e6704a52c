// Whether what a NIC wrote into a GPU's memory must be flushed before a kernel that runs is told of
// it.
//
// The data goes from the NIC to the GPU; the word that a kernel polls is in the host's memory, and
// the progress thread stores it when the NIC has reported the message. A kernel that sees the word
// must find the data in place. A flush is a read from the GPU's memory behind the writes
// (transport::ReceiveConnection::flush).
#pragma once

#include "transport/window/device/gpu.h"

namespace ropewalk::link {

/// What the rule depends on.
struct GpuOrdering {
  int capability = 0;          ///< 90: compute capability 9.0; 0: unknown
  int writes_ordering = 0;     ///< window::kCuAttributeWritesOrdering; 0 also where unknown
  bool coherent_host = false;  ///< joined to the CPU by a coherent link (NVLink-C2C)
};

/// Asks CUDA; waits for nothing.
GpuOrdering ordering_of(const transport::window::Gpu& gpu);

/// By architecture: GPUs from compute capability 9.0 on, and those of which CUDA says that they see
/// writes of other devices in order, need no flush. One that is joined to the CPU by a coherent
/// link needs it whatever it is, as the word then comes over that link and the data over PCIe.
[[nodiscard]] bool needs_flush(const GpuOrdering& ordering) noexcept;

}  // namespace ropewalk::link
