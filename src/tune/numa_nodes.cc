#include "tune/numa_nodes.h"

#include <cstddef>
#include <cstdint>
#include <string>

#include "core/first_line.h"

namespace ropewalk::tune {

NumaNodes NumaNodes::read(const std::filesystem::path& sysfs) {
  const std::filesystem::path folder = sysfs / "devices" / "system" / "node";
  // Node numbers have the form of processors' numbers: a list of ranges.
  const Processors online = Processors::of_list(first_line(folder / "online"));
  if (online.count() < 2) return {};
  std::vector<std::pair<int, Processors>> nodes;
  constexpr std::size_t kBits = 64;
  for (std::size_t n = 0; n < online.bits.size() * kBits; ++n) {
    if ((online.bits[n / kBits] >> n % kBits & 1U) == 0) continue;
    const Processors processors =
        Processors::of_list(first_line(folder / ("node" + std::to_string(n)) / "cpulist"));
    if (processors.count() > 0) nodes.emplace_back(static_cast<int>(n), processors);
  }
  return nodes.size() < 2 ? NumaNodes() : NumaNodes(std::move(nodes));
}

int NumaNodes::node_of(const Processors& usable) const noexcept {
  for (const auto& [number, processors] : nodes_) {
    if (usable.within(processors)) return number;
  }
  return -1;
}

}  // namespace ropewalk::tune
