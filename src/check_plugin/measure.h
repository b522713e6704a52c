// How fast messages go between two processes through the plugin.
#pragma once

#include <cstddef>
#include <nlohmann/json.hpp>
#include <vector>

#include "check_plugin/session.h"

namespace ropewalk::check_plugin {

/// Latency and bandwidth per size, and the rates of the same memory without the plugin in the same
/// run: one memcpy from memory that the other process wrote, and one process_vm_readv. For two
/// children; the receiving one leaves numbers in its page, which measured() reads.
///
/// Rounds of all kinds take turns, so that other load affects all equally.
void measure(Session& session, const std::vector<std::size_t>& sizes, std::byte* shared);

/// As measure(), of GPU memory.
/// @throws Skipped where it cannot be
void measure_gpu(Session& session, const std::vector<std::size_t>& sizes);

/// The most sizes at once.
constexpr std::size_t kMostSizes = 64;
/// Bytes of `shared`, which the caller maps before it forks, for the largest of `sizes`.
std::size_t shared_bytes(const std::vector<std::size_t>& sizes);

/// What measure() left: one object per size with bytes, latency_us (half round trip: min, median),
/// bandwidth, memcpy and kernel_copy (GB/s: median, max; null where it was not measured), and of
/// the first two to the third the ratio of medians.
nlohmann::json measured(const ProcessPage& page, const std::vector<std::size_t>& sizes);

}  // namespace ropewalk::check_plugin
