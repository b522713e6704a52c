// copy(): to several destinations at once, and past the caches.
#include <hwy/cache_control.h>

#include <cstdint>
#include <cstring>

#include "executor/host/kernels_pages.h"
#include "executor/host/kernels_table.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "executor/host/kernels_copy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace ropewalk::executor {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

/// One destination, non-temporal.
void stream_bytes(std::uint8_t* destination, const std::uint8_t* source, std::size_t bytes) {
  const hn::ScalableTag<std::uint8_t> d;
  const std::size_t lanes = hn::Lanes(d);
  const std::size_t over = reinterpret_cast<std::uintptr_t>(destination) % lanes;
  const std::size_t head = over == 0 ? 0 : lanes - over;
  if (lanes < 16 || bytes < head + 4 * lanes) {
    std::memcpy(destination, source, bytes);
    return;
  }
  std::memcpy(destination, source, head);
  std::size_t i = head;
  PagesAhead pages;
  for (; i + 4 * lanes <= bytes; i += 4 * lanes) {
    if (pages.begins_one(4 * lanes)) {
      PagesAhead::ask_to_read(source + i);
      PagesAhead::ask_to_write(destination + i);
    }
    const auto v0 = hn::LoadU(d, source + i);
    const auto v1 = hn::LoadU(d, source + i + lanes);
    const auto v2 = hn::LoadU(d, source + i + 2 * lanes);
    const auto v3 = hn::LoadU(d, source + i + 3 * lanes);
    hn::Stream(v0, d, destination + i);
    hn::Stream(v1, d, destination + i + lanes);
    hn::Stream(v2, d, destination + i + 2 * lanes);
    hn::Stream(v3, d, destination + i + 3 * lanes);
  }
  std::memcpy(destination + i, source + i, bytes - i);
}

void copy_bytes(void* const* destinations, std::size_t num_destinations, std::size_t streamed,
                const void* source, std::size_t bytes) {
  const auto* from = static_cast<const std::uint8_t*>(source);
  if (num_destinations == 1) {
    auto* to = static_cast<std::uint8_t*>(destinations[0]);
    if (streamed > 0) {
      stream_bytes(to, from, bytes);
      hwy::FlushStream();
    } else {
      std::memcpy(to, from, bytes);
    }
    return;
  }
  // Block by block, so that the source is read from memory once.
  constexpr std::size_t kBlock = std::size_t{16} << 10;
  for (std::size_t begin = 0; begin < bytes; begin += kBlock) {
    const std::size_t part = bytes - begin < kBlock ? bytes - begin : kBlock;
    for (std::size_t k = 0; k < num_destinations; ++k) {
      auto* to = static_cast<std::uint8_t*>(destinations[k]) + begin;
      if (k < streamed) {
        stream_bytes(to, from + begin, part);
      } else {
        std::memcpy(to, from + begin, part);
      }
    }
  }
  if (streamed > 0) hwy::FlushStream();
}

detail::CopyKernel target_copy() { return copy_bytes; }
const char* target_spelling() { return hwy::TargetName(HWY_TARGET); }

}  // namespace HWY_NAMESPACE
}  // namespace ropewalk::executor
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace ropewalk::executor {

HWY_EXPORT(target_copy);
HWY_EXPORT(target_spelling);

detail::CopyKernel detail::copy_kernel() { return HWY_DYNAMIC_DISPATCH(target_copy)(); }
const char* detail::target_name() { return HWY_DYNAMIC_DISPATCH(target_spelling)(); }

std::vector<std::int64_t> detail::usable_targets() { return hwy::SupportedAndGeneratedTargets(); }

void detail::use_target(std::int64_t target) {
  hwy::SetSupportedTargetsForTest(target);
  select_kernels_again();
}

}  // namespace ropewalk::executor
#endif
