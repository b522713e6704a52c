// Shared memory that GPUs read and write.
//
// CUDA registers an address once in a process, and ranks that are threads of one process have one
// mapping of a segment (SharedMemory::map_once()). So they have one registration, too.
#pragma once

#include <memory>

#include "core/shared_memory.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::transport::window {

/// One user's share in the registration of a segment with CUDA's driver (cuMemHostRegister), which
/// holds for all contexts. The first user of the mapping registers the whole of it, in the primary
/// context of its GPU, which is retained meanwhile; the last one to let go unregisters it. Users
/// may have different GPUs, and come from different Gpus.
///
/// Threads: one at a time per object; those of other users may be made and destroyed meanwhile.
/// Lifetime: it keeps the mapping. `gpu` is used by the constructor alone.
class SegmentRegistration {
 public:
  /// @throws Error kCuda: "cuMemHostRegister: ..."; nothing is registered that was not before
  SegmentRegistration(Gpu& gpu, const SharedMemory& segment);

  /// Where `gpu` addresses the segment's first byte.
  [[nodiscard]] CuPointer on_device() const noexcept { return on_device_; }

 private:
  std::shared_ptr<SharedMemory::Attachment> registration_;
  CuPointer on_device_ = 0;
};

}  // namespace ropewalk::transport::window
