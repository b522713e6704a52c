#include "executor/host/kernels.h"

#include <cstring>

#include "executor/host/kernels_table.h"

namespace ropewalk::executor {
namespace {

struct Kernels {
  detail::CombineTable combine{};
  detail::CopyKernel copy = nullptr;
  const char* target = "";
};

Kernels select_kernels() {
  Kernels kernels;
  detail::add_integer_kernels(kernels.combine);
  detail::add_wide_integer_kernels(kernels.combine);
  detail::add_float_kernels(kernels.combine);
  detail::add_small_float_kernels(kernels.combine);
  kernels.copy = detail::copy_kernel();
  kernels.target = detail::target_name();
  return kernels;
}

Kernels& selected_kernels() {
  static Kernels kernels = select_kernels();
  return kernels;
}

}  // namespace

void combine(const CombineArgs& args) {
  if (args.count == 0) return;
  if (args.sources.size() == 1 && args.scaled_source != 0 && args.divisor <= 1) {
    const std::size_t bytes = args.count * size_of(args.type);
    bool in_place = false;
    for (void* destination : args.destinations) in_place |= destination == args.sources[0];
    if (!in_place) {
      if (args.destinations.size() == 1 && !args.streaming_output) {
        std::memcpy(args.destinations[0], args.sources[0], bytes);
      } else {
        selected_kernels().copy(args.destinations.data(), args.destinations.size(),
                                args.streaming_output ? 1 : 0, args.sources[0], bytes);
      }
      return;
    }
    for (void* destination : args.destinations) {
      if (destination != args.sources[0]) std::memcpy(destination, args.sources[0], bytes);
    }
    return;
  }
  selected_kernels()
      .combine[static_cast<std::size_t>(args.type)][static_cast<std::size_t>(args.op)](args);
}

void copy(std::span<void* const> destinations, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  const bool streaming = bytes >= kStreamingCopyBytes;
  if (destinations.size() == 1) {
    if (destinations[0] == source) return;
    if (!streaming) {
      std::memcpy(destinations[0], source, bytes);
      return;
    }
  }
  for (void* destination : destinations) {
    if (destination != source) continue;
    for (void* other : destinations) {
      if (other != source) selected_kernels().copy(&other, 1, streaming ? 1 : 0, source, bytes);
    }
    return;
  }
  selected_kernels().copy(destinations.data(), destinations.size(),
                          streaming ? destinations.size() : 0, source, bytes);
}

void copy_streaming(std::span<void* const> destinations, const void* source, std::size_t bytes) {
  if (bytes == 0) return;
  selected_kernels().copy(destinations.data(), destinations.size(), 1, source, bytes);
}

const char* vector_target() { return selected_kernels().target; }

void detail::select_kernels_again() { selected_kernels() = select_kernels(); }

}  // namespace ropewalk::executor
