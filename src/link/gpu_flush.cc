#include "link/gpu_flush.h"

namespace ropewalk::link {
namespace {

namespace window = transport::window;

constexpr int kOrderedForOwner = 100;
constexpr int kOrderedFrom = 90;

int attribute(const window::Gpu& gpu, int which) {
  int value = 0;
  return gpu.cuda().device_attribute(&value, which, gpu.device()) == window::kCuSuccess ? value : 0;
}

}  // namespace

GpuOrdering ordering_of(const window::Gpu& gpu) {
  GpuOrdering ordering;
  ordering.capability = 10 * attribute(gpu, window::kCuAttributeCapabilityMajor) +
                        attribute(gpu, window::kCuAttributeCapabilityMinor);
  ordering.writes_ordering = attribute(gpu, window::kCuAttributeWritesOrdering);
  ordering.coherent_host = attribute(gpu, window::kCuAttributeHostPageTables) != 0;
  return ordering;
}

bool needs_flush(const GpuOrdering& ordering) noexcept {
  if (ordering.coherent_host) return true;
  return ordering.capability < kOrderedFrom && ordering.writes_ordering < kOrderedForOwner;
}

}  // namespace ropewalk::link
