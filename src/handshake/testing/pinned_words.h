// GPUs of the software that stands in for CUDA's driver, and memory of the host that their streams
// reach.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "handshake/shared_words.h"
#include "transport/window/device/gpu.h"

namespace ropewalk::handshake::testing {

inline transport::window::Gpus& stand_in_gpus() {
  static const transport::window::CudaApi cuda(RW_STAND_IN_CUDA);
  // Never destroyed: the stand-in's state of the main thread is gone by then.
  static auto* const all = new transport::window::Gpus(cuda);
  return *all;
}

/// Zeroed.
class PinnedWords {
 public:
  explicit PinnedWords(std::size_t bytes) : gpu_(stand_in_gpus().at(0)) {
    const transport::window::CurrentContext current(gpu_.cuda(), gpu_.context());
    gpu_.cuda().check(gpu_.cuda().host_allocate(&data_, bytes, transport::window::kCuHostPortable),
                      "pinned");
    std::memset(data_, 0, bytes);
  }
  ~PinnedWords() { gpu_.cuda().warn(gpu_.cuda().host_free(data_), "pinned"); }
  PinnedWords(const PinnedWords&) = delete;
  PinnedWords& operator=(const PinnedWords&) = delete;
  [[nodiscard]] std::uint64_t* data() const { return static_cast<std::uint64_t*>(data_); }
  [[nodiscard]] std::uint64_t address() const { return reinterpret_cast<std::uint64_t>(data_); }
  [[nodiscard]] std::uint64_t at(std::size_t i) const { return SharedWords::load(data()[i]); }

 private:
  transport::window::Gpu& gpu_;
  void* data_ = nullptr;
};

}  // namespace ropewalk::handshake::testing
