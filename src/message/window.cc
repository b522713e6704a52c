#include "message/window.h"

#include <cstring>

#include "transport/window/device/gpu.h"

namespace ropewalk::message {

namespace gpus = transport::window;

void Window::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return;
  if (gpu_ == nullptr) {
    std::memcpy(to, from, bytes);
    return;
  }
  gpu_->now("a copy to or from a window", [&](gpus::CuStream stream) {
    return gpu_->cuda().copy(reinterpret_cast<gpus::CuPointer>(to),
                             reinterpret_cast<gpus::CuPointer>(from), bytes, stream);
  });
}

void Window::set_counter(int owner, int source, int slot, std::uint64_t value) const {
  if (gpu_ != nullptr) {
    // The one on the GPU first: who has seen the other one may tell a kernel.
    gpu_->now("a signal to a window", [&](gpus::CuStream stream) {
      return gpu_->cuda().stream_write64(stream, counter_on_gpu(owner, source, slot), value, 0);
    });
  }
  // Publishes the puts before it.
  std::atomic_ref(counter(owner, source, slot)).store(value, std::memory_order_release);
}

}  // namespace ropewalk::message
