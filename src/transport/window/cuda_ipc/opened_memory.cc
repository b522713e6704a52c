#include "transport/window/cuda_ipc/opened_memory.h"

#include <utility>

#include "core/error.h"
#include "core/log.h"

namespace ropewalk::transport::window {

OpenedMemory::OpenedMemory(Gpus& gpus, Gpu& gpu, const OfferedMemory& offer, bool same_process)
    : gpu_(gpu), bytes_(offer.bytes) {
  const CurrentContext current(gpu.cuda(), gpu.context());
  if (offer.virtual_memory) {
    map_descriptors(offer);
  } else if (same_process) {
    open_in_process(gpus, offer);
  } else {
    by_handle_ = IpcMemory(gpu, offer.segments.at(0).handle, "the sender");
    data_ = by_handle_.base() + offer.offset;
  }
  // One such memory of each GPU and kind is offered before any other.
  if (!offer.constant) return;
  try {
    gpu.touch(data_, context_, bytes_);
  } catch (const Error&) {
    close();
    throw;
  }
}

OpenedMemory::~OpenedMemory() { close(); }

void OpenedMemory::close() noexcept {
  try {
    const CurrentContext current(gpu_.cuda(), gpu_.context());
    unmap();
  } catch (const Error&) {
    // CUDA has ended before this did, and its mappings with it.
  }
}

void OpenedMemory::open_in_process(Gpus& gpus, const OfferedMemory& offer) {
  data_ = offer.address;
  Gpu* owner = gpus.find(offer.gpu);
  if (owner == nullptr || owner == &gpu_) return;
  context_ = owner->context();
  // Without it the driver stages the copy, which is slower and right as well.
  const CuResult result = gpu_.cuda().enable_peer(context_, 0);
  if (result != kCuSuccess && result != kCuPeerAccessAlreadyEnabled) {
    log::info(log::kP2p, "{} has no peer access to {}: {}", gpu_.name(), owner->name(),
              gpu_.cuda().words(result));
  }
}

void OpenedMemory::map_descriptors(const OfferedMemory& offer) {
  const CudaApi& cuda = gpu_.cuda();
  if (!cuda.has_virtual_memory()) {
    throw Error(Errc::kCuda, "{}", "this process's CUDA has no virtual-memory management");
  }
  std::size_t total = 0;
  for (const Segment& segment : offer.segments) total += segment.bytes;
  cuda.check(cuda.reserve_addresses(&reserved_, total, 0, 0, 0), "cuMemAddressReserve");
  reserved_bytes_ = total;
  try {
    CuPointer at = reserved_;
    for (const Segment& segment : offer.segments) {
      CuAllocation allocation = 0;
      // The descriptor itself is passed as the pointer argument, as CUDA requires.
      const auto descriptor = static_cast<std::intptr_t>(segment.descriptor.get());
      cuda.check(cuda.import_allocation(
                     &allocation,
                     reinterpret_cast<void*>(descriptor),  // NOLINT(performance-no-int-to-ptr)
                     kCuHandleFileDescriptor),
                 "cuMemImportFromShareableHandle");
      const CuResult result = cuda.map(at, segment.bytes, 0, allocation, 0);
      cuda.release_allocation(allocation);  // the mapping keeps it
      cuda.check(result, "cuMemMap");
      mapped_.push_back(segment.bytes);
      at += segment.bytes;
    }
    const CuAccess access{{kCuLocationDevice, gpu_.ordinal()}, kCuAccessReadWrite};
    cuda.check(cuda.set_access(reserved_, total, &access, 1), "cuMemSetAccess");
  } catch (const Error&) {
    unmap();
    throw;
  }
  data_ = reserved_ + offer.offset;
}

void OpenedMemory::unmap() noexcept {
  const CudaApi& cuda = gpu_.cuda();
  CuPointer at = reserved_;
  for (const std::size_t bytes : mapped_) {
    cuda.warn(cuda.unmap(at, bytes), "cuMemUnmap");
    at += bytes;
  }
  mapped_.clear();
  if (reserved_bytes_ != 0) {
    cuda.warn(cuda.free_addresses(reserved_, reserved_bytes_), "cuMemAddressFree");
  }
  reserved_bytes_ = 0;
}

std::shared_ptr<Opening> start_opening(Worker& worker, Gpus& gpus, Gpu& gpu,
                                       std::shared_ptr<const OfferedMemory> offer,
                                       bool same_process) {
  auto opening = std::make_shared<Opening>();
  worker.run([opening, &worker, &gpus, &gpu, offer = std::move(offer), same_process] {
    try {
      auto memory = std::make_unique<OpenedMemory>(gpus, gpu, *offer, same_process);
      opening->memory = std::shared_ptr<const OpenedMemory>(
          memory.release(),
          [&worker](const OpenedMemory* gone) { worker.run([gone] { delete gone; }); });
    } catch (const Error& error) {
      opening->why_not = error.what();
    }
    opening->finished.store(true, std::memory_order_release);
  });
  return opening;
}

}  // namespace ropewalk::transport::window
