// The registry of compilers: from (collective, ranks, root, algorithm) to a schedule.
//
// One algorithm, one file; adding one touches that file and one line of registry.cc.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "schedule/schedule.h"

namespace ropewalk::schedule {

struct Request {
  Collective collective = Collective::kAllReduce;
  int num_ranks = 1;
  int root = 0;      ///< 0 for collectives without a root
  int channels = 1;  ///< wanted number of channels; an algorithm may need more (double trees)
  /// The ranks as rings and chains visit them, from any of them on and around; empty: as numbered.
  std::vector<int> order = {};
  /// By rank, hosts numbered from 0; empty: all on one host. For `hierarchical`.
  std::vector<int> host_of_rank = {};
};

struct Algorithm {
  std::string_view name;  ///< "ring", "chain", "binary_tree", "double_binary_tree",
                          ///< "recursive_doubling", "one_shot", "two_shot", "direct",
                          ///< "hierarchical"
  std::string_view help;  ///< one line
  bool (*supports)(const Request&) noexcept;
  Schedule (*compile)(const Request&);  ///< num_ranks >= 2 only; use schedule::compile()
  std::string_view needs = {};          ///< of the ranks, for messages; empty: nothing particular
};

std::span<const Algorithm> algorithms() noexcept;

/// Compiles. One rank copies its input to its output, whatever the algorithm. @throws Error
/// kInvalidArgument for an unknown algorithm, one that does not support the request (the message
/// lists those that do), for ranks, root or channels out of range, an order that is none,
/// and hosts that are not one for each rank
Schedule compile(std::string_view algorithm, const Request& request);

}  // namespace ropewalk::schedule
