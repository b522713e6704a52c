#include "message/window.h"

#include <cstring>

#include "message/device_part.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::message {

namespace gpus = transport::window;

const std::uint64_t* Window::arrivals(int source) const noexcept {
  const Part& mine = own();
  const SignalLine* lines = gpu_ == nullptr       ? mine.signals
                            : part(source).served ? mine.signals_on_device
                                                  : mine.device_signals;
  return &lines[index(source, 0)].count;
}

void Window::copy(void* to, const void* from, std::size_t bytes) const {
  if (bytes == 0) return;
  gpus::Gpu* const gpu = streams_gpu();
  // Between the host's memory, pinned or not, the processor copies.
  if (gpu == nullptr ||
      (gpu_ == nullptr && !is_on_gpu(gpu->cuda(), from) && !is_on_gpu(gpu->cuda(), to))) {
    std::memcpy(to, from, bytes);
    return;
  }
  // The driver copies to and from pageable memory through buffers of its own, which it makes when
  // they are first needed: that waits for kernels, which may wait for this very copy.
  const bool from_pageable = !is_known(gpu->cuda(), from);
  const bool to_pageable = !is_known(gpu->cuda(), to);
  if (from_pageable && to_pageable) {
    std::memcpy(to, from, bytes);
    return;
  }
  if (from_pageable) {
    gpu->fill(reinterpret_cast<gpus::CuPointer>(to), from, bytes);
    return;
  }
  if (to_pageable) {
    gpu->fetch(to, reinterpret_cast<gpus::CuPointer>(from), bytes);
    return;
  }
  gpu->now("a copy to or from a window", [&](gpus::CuStream stream) {
    return gpu->cuda().copy(reinterpret_cast<gpus::CuPointer>(to),
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
