// Small services around GPU memory that callers of collectives need beside them.
//
// Builds with CUDA only. Errors: kCuda with CUDA's own words.
#pragma once

#include <cstddef>

#include "comm/device_group.h"

namespace ropewalk::comm {

/// Memory of the current GPU, which its peers may be given access to, as the process's setting
/// MEM_ALLOC says. nullptr for 0 bytes.
void* take_device_memory(std::size_t bytes);
void give_device_memory(void* memory);

/// Copies `bytes` from GPU-visible memory to the host after all that `stream` holds now, and waits
/// for it. @throws Error kInvalidUsage while the stream is captured
void read_in_order(void* to, const void* from, std::size_t bytes, int device, DeviceStream stream);

}  // namespace ropewalk::comm
