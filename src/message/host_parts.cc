#include "message/host_parts.h"

#include <functional>

#include "message/device_part.h"

namespace ropewalk::message {

namespace gpus = transport::window;

HostParts::HostParts(gpus::Gpu& gpu, const SharedMemory& segment, std::span<const Part> parts)
    : gpu_(gpu),
      begin_(segment.data()),
      bytes_(segment.size()),
      parts_(parts),
      registration_(gpu, segment),
      of_users_(parts.size(), nullptr) {
  // What links carry for streams is copied by the messenger's thread, which must not wait for
  // kernels.
  gpu.warm_up();
}

bool HostParts::in_segment(const void* address) const noexcept {
  const auto* const at = static_cast<const std::byte*>(address);
  return !std::less<>()(at, begin_) && std::less<>()(at, begin_ + bytes_);
}

std::byte* HostParts::data(int rank) {
  const Part& part = parts_[static_cast<std::size_t>(rank)];
  if (in_segment(part.data)) return moved(part.data);
  std::byte*& known = of_users_[static_cast<std::size_t>(rank)];
  if (known == nullptr && is_known(gpu_.cuda(), part.data)) {
    const gpus::CurrentContext current(gpu_.cuda(), gpu_.context());
    gpus::CuPointer device = 0;
    gpu_.cuda().check(gpu_.cuda().host_pointer(&device, part.data, 0), "cuMemHostGetDevicePointer");
    known = reinterpret_cast<std::byte*>(device);  // NOLINT(performance-no-int-to-ptr)
  }
  return known;
}

SignalLine* HostParts::signals(int rank) const {
  return reinterpret_cast<SignalLine*>(moved(parts_[static_cast<std::size_t>(rank)].signals));
}

}  // namespace ropewalk::message
