// The NUMA nodes of this machine, and on which of them a rank runs.
#pragma once

#include <filesystem>
#include <utility>
#include <vector>

#include "tune/processors.h"

namespace ropewalk::tune {

class NumaNodes {
 public:
  /// One node, or none known.
  NumaNodes() = default;
  /// Made nodes, for tests: number and processors of each.
  explicit NumaNodes(std::vector<std::pair<int, Processors>> nodes) : nodes_(std::move(nodes)) {}
  /// As the kernel tells: one file is read where there is a single node, else one for each. Nodes
  /// without processors are left out.
  /// @param sysfs  the system's "/sys"
  static NumaNodes read(const std::filesystem::path& sysfs = "/sys");

  /// The number of the node that has all of these processors: that of a rank which is bound to
  /// them. -1 for a rank that may run on several nodes, and where there are fewer than two nodes.
  [[nodiscard]] int node_of(const Processors& usable) const noexcept;

 private:
  std::vector<std::pair<int, Processors>> nodes_;  // fewer than two: empty
};

}  // namespace ropewalk::tune
