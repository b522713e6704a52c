// A prepared batch as a stream does it outside of graphs: by one kernel, which copies, then raises
// counters to values that the host has counted, then waits for others, then tells the host that the
// stream has passed it.
//
// All of it is in the launch's argument, which the driver copies: the batch has no memory on the
// GPU, so that its first launch allocates none (cuMemAlloc waits for streams that wait for
// signals), and the next one may have other values while this one has not run. Between two streams
// of one H200, 64 puts of 8 bytes and a signal take 3.5 us so, 3.3 us with the copies in a table of
// the GPU's memory, where threads of a warp read different entries at once.
//
// The host watches over the waits as over those of the driver, and ends them in the same way, by
// writing to their counters (stream_calls.h). Between two H200 a wait of the driver takes some 6 us
// longer from the signal to what follows it in the stream.
#pragma once

#include <cstddef>
#include <cstdint>

#include "message/device_kernels.h"
#include "ropewalk/device.cuh"

namespace ropewalk::message {

/// As the driver launches it.
struct PutsAndSignals {
  struct Signal {
    std::uint64_t* word = nullptr;       ///< the counter on its owner's GPU
    std::uint64_t* host_word = nullptr;  ///< its other home, for the owner's host threads
    std::uint64_t value = 0;
  };
  struct Wait {
    const std::uint64_t* word = nullptr;  ///< the counter
    std::uint64_t target = 0;             ///< until it is at least that
    std::uint64_t* began = nullptr;       ///< where `began` of the call says that it is waited for
  };
  static constexpr std::size_t kMostSignals = 32;
  static constexpr std::size_t kMostWaits = 32;
  static constexpr std::size_t kMostCopies = 96;

  std::uint32_t num_copies = 0;
  std::uint32_t num_signals = 0;
  std::uint32_t num_waits = 0;
  std::uint32_t lanes = 1;          ///< a power of two: how many threads share a copy
  std::uint64_t* passed = nullptr;  ///< where `number` says that all of it is done
  std::uint64_t number = 0;
  Signal signals[kMostSignals];
  Wait waits[kMostWaits];
  DeviceCopy copies[kMostCopies];
};
static_assert(sizeof(PutsAndSignals) <= 4096, "of a kernel's arguments");

/// What its kernel does. The text is compiled for host threads, too, for GPUs of a library that
/// stands in for the driver.
template <typename Scope>
RW_DEVICE_FUNCTION void put_and_signal(const Scope& scope, const PutsAndSignals& call) {
  namespace functions = ropewalk::device::detail;
  std::size_t lanes = call.lanes;
  while (lanes > scope.size()) lanes /= 2;
  const std::size_t groups = scope.size() / lanes;
  const functions::Lanes within{scope.rank() % lanes, lanes};
  for (std::size_t k = scope.rank() / lanes; k < call.num_copies; k += groups) {
    const DeviceCopy& copy = call.copies[k];
    functions::copy<true>(within, reinterpret_cast<unsigned char*>(copy.to),
                          reinterpret_cast<const unsigned char*>(copy.from), copy.bytes);
  }
  scope.sync();  // all have copied
  const std::size_t first = scope.rank();
  if (first < call.num_signals) functions::fence();
  for (std::size_t k = first; k < call.num_signals; k += scope.size()) {
    const PutsAndSignals::Signal& signal = call.signals[k];
    // The one on the GPU first, where streams and kernels wait.
    functions::store_relaxed(signal.word, signal.value);
    functions::store_relaxed(signal.host_word, signal.value);
  }
  // The host may let go of what this writes to once it hears that the stream has passed. All of it
  // has arrived by then: a thread sees to that which need not wait below, since it takes as long.
  if (call.num_copies > 0 || call.num_signals > 0) {
    scope.sync();  // all have signalled
    if (first == scope.size() - 1) functions::fence();
  }
  for (std::size_t k = first; k < call.num_waits; k += scope.size()) {
    const PutsAndSignals::Wait& wait = call.waits[k];
    functions::store_relaxed(wait.began, call.number);
    while (functions::load_acquire(wait.word) < wait.target) {
#ifndef __CUDA_ARCH__
      std::this_thread::yield();
#endif
    }
  }
  scope.sync();  // all have waited, and one for what was written
  if (first == 0) functions::store_relaxed(call.passed, call.number);
}

/// Threads that share one of `num_copies` copies of `most_bytes` at most.
std::uint32_t lanes_of_arguments(std::uint64_t most_bytes, std::size_t num_copies) noexcept;

/// By one block. @throws Error kCuda
void launch(const LoadedKernels& kernels, const transport::window::Gpu& gpu,
            const PutsAndSignals& call, transport::window::CuStream stream);
/// Null but for GPUs of a library that stands in for the driver and runs this on threads of the
/// host: then what its launch is to be given as the kernel.
void* kernel_on_host(const transport::window::Gpu& gpu);
/// @param kernel as above
void launch_on_host(void* kernel, const transport::window::Gpu& gpu, const PutsAndSignals& call,
                    transport::window::CuStream stream);

}  // namespace ropewalk::message
