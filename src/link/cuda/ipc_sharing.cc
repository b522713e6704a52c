#include "link/cuda/ipc_sharing.h"

#include <bit>
#include <utility>

#include "core/log.h"
#include "executor/cuda/cuda_error.h"
#include "transport/window/device/ipc_memory.h"

namespace ropewalk::link {
namespace {

namespace gpus = transport::window;

// @return false for managed memory, which the driver migrates between GPU and host
bool check_address(const void* address, int device) {
  cudaPointerAttributes attributes{};
  executor::check_cuda(cudaPointerGetAttributes(&attributes, address), "cudaPointerGetAttributes");
  if (attributes.type == cudaMemoryTypeManaged) return false;
  if (attributes.type != cudaMemoryTypeDevice) {
    throw Error(Errc::kInvalidArgument, "buffer: {} is not in GPU memory", address);
  }
  if (attributes.device != device) {
    throw Error(Errc::kInvalidArgument, "buffer: {} is on GPU {}, the communicator works on GPU {}",
                address, attributes.device, device);
  }
  return true;
}

}  // namespace

std::optional<MemorySharing::Location> IpcSharing::location_of(const BufferRange& buffer) {
  const auto* first = static_cast<const std::byte*>(buffer.begin);
  const std::byte* last = first + (buffer.bytes - 1);
  if (!check_address(first, gpu_.ordinal()) || !check_address(last, gpu_.ordinal())) return {};
  if (!gpus::is_ipc_capable(gpu_.cuda(), first)) return {};
  const auto begin = reinterpret_cast<gpus::CuPointer>(first);
  const gpus::Allocation allocation = gpus::allocation_of(gpu_, begin);
  Location location;
  location.offset = begin - allocation.base;
  if (buffer.bytes > allocation.bytes - location.offset) {
    throw Error(Errc::kInvalidArgument, "buffer: {} bytes at {} leave their allocation of {} bytes",
                buffer.bytes, buffer.begin, allocation.bytes);
  }
  try {
    location.handle = std::bit_cast<Handle>(gpus::ipc_handle_of(gpu_, allocation.base));
  } catch (const Error& error) {
    log::info(log::kAlloc, "sharing the memory at {}: {}", buffer.begin, error.what());
    return {};
  }
  return location;
}

std::shared_ptr<std::byte> IpcSharing::open(int rank, const Handle& handle) {
  auto opened = std::make_shared<gpus::IpcMemory>(gpu_, std::bit_cast<gpus::CuIpcHandle>(handle),
                                                  fmt::format("rank {}", rank));
  // NOLINTNEXTLINE(performance-no-int-to-ptr): an address of the GPU
  auto* const base = reinterpret_cast<std::byte*>(opened->base());
  return {std::move(opened), base};
}

}  // namespace ropewalk::link
