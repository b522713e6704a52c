// Ranges for NVIDIA's tools (Nsight Systems and others), by NVTX 3: a tool that is to see them is
// named by NVTX_INJECTION64_PATH, which it sets itself for the programs that it starts. Without
// one, and in a build without NVTX's headers, a range costs one load and one branch.
#pragma once

#include <cstdint>
#include <string_view>

namespace ropewalk::nvtx {

namespace detail {
/// A tool is there, and it takes ranges.
extern const bool kWanted;
void push(std::string_view name, std::uint64_t bytes) noexcept;
void pop() noexcept;
}  // namespace detail

/// A range of the calling thread in the domain "Ropewalk", from here to the end of the block:
/// ranges of one thread nest. `bytes` is its payload.
class Range {
 public:
  /// @param describe  gives the name and the bytes; called where a tool is there. Names are of few:
  /// each is registered with the tool once
  template <typename Describe>
  explicit Range(const Describe& describe) noexcept {
    if (!detail::kWanted) [[likely]]
      return;
    const auto& [name, bytes] = describe();
    detail::push(name, bytes);
  }
  ~Range() {
    if (detail::kWanted) [[unlikely]]
      detail::pop();
  }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
};

}  // namespace ropewalk::nvtx
