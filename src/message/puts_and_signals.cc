#include "message/puts_and_signals.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "message/device_batch.h"

namespace ropewalk::message {

namespace gpus = transport::window;

namespace {

// What tests/stand_ins/cuda.cc calls a kernel: a function over a copy of the launch's argument,
// which may ask where threads of the host use memory of the GPU.
struct HostKernel {
  using Find = void* (*)(const void* context, gpus::CuPointer address, std::size_t bytes);
  std::size_t argument_bytes;
  void (*run)(void* argument, Find find, const void* context);
};

void run_on_host(void* argument, HostKernel::Find find, const void* context) {
  auto& call = *static_cast<PutsAndSignals*>(argument);
  const auto there = [&](auto* memory, std::size_t bytes) {
    return static_cast<decltype(memory)>(
        find(context, reinterpret_cast<gpus::CuPointer>(memory), bytes));
  };
  for (DeviceCopy& copy : std::span(call.copies, call.num_copies)) {
    copy.to = there(copy.to, copy.bytes);
    copy.from = there(const_cast<std::byte*>(copy.from), copy.bytes);
  }
  for (PutsAndSignals::Signal& signal : std::span(call.signals, call.num_signals)) {
    signal.word = there(signal.word, sizeof *signal.word);
    signal.host_word = there(signal.host_word, sizeof *signal.host_word);
  }
  for (PutsAndSignals::Wait& wait : std::span(call.waits, call.num_waits)) {
    wait.word = there(const_cast<std::uint64_t*>(wait.word), sizeof *wait.word);
    wait.began = there(wait.began, sizeof *wait.began);
  }
  call.passed = there(call.passed, sizeof *call.passed);
  put_and_signal(device::Thread{}, call);
}

// The part of a CUlaunchConfig that a stand-in looks at.
struct LaunchConfig {
  unsigned sizes[7] = {1, 1, 1, 1, 1, 1, 0};
  gpus::CuStream stream = nullptr;
  void* attributes = nullptr;
  unsigned num_attributes = 0;
};

}  // namespace

std::uint32_t lanes_of_arguments(std::uint64_t most_bytes, std::size_t num_copies) noexcept {
  // Threads of a warp that read different entries of the arguments do so one after the other: eight
  // copies a warp at most, as far as a block has the threads.
  constexpr std::uint32_t kLeast = 4;
  constexpr std::size_t kThreadsOfABlock = 512;
  const std::uint32_t lanes = lanes_of(most_bytes, num_copies);
  return num_copies * kLeast <= kThreadsOfABlock ? std::max(lanes, kLeast) : lanes;
}

void* kernel_on_host(const gpus::Gpu& gpu) {
  static constexpr HostKernel kKernel{sizeof(PutsAndSignals), run_on_host};
  Dl_info library{};
  if (gpu.cuda().launch == nullptr ||
      dladdr(reinterpret_cast<void*>(gpu.cuda().launch), &library) == 0) {
    return nullptr;
  }
  void* const open = dlopen(library.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (open == nullptr) return nullptr;
  const bool stands_in = dlsym(open, "stand_in_cuda_launches") != nullptr;
  dlclose(open);
  return stands_in ? const_cast<HostKernel*>(&kKernel) : nullptr;
}

void launch_on_host(void* kernel, const gpus::Gpu& gpu, const PutsAndSignals& call,
                    gpus::CuStream stream) {
  LaunchConfig config;
  config.stream = stream;
  void* arguments[] = {const_cast<PutsAndSignals*>(&call)};
  gpu.cuda().check(gpu.cuda().launch(&config, kernel, arguments, nullptr), "cuLaunchKernelEx");
}

}  // namespace ropewalk::message
