// Splitting one message over classes of links that cannot be one graph, so that all end together.
//
// CUDA copies between two peers take NVLink where it is, and PCIe only when peer access is off:
// such classes are planned apart, and the message is split between the plans. Classes that share
// hardware (a NIC path and a PCIe path behind one x16 port) are not apart: plan them as one.
#pragma once

#include <vector>

namespace ropewalk::plan {

struct LinkClass {
  double bytes_per_us = 0;  ///< rate once it runs, above zero
  double setup_us = 0;      ///< before it runs, each call; not negative
};

struct LinkSplit {
  double time_us = 0;         ///< when all classes that are used end
  std::vector<double> bytes;  ///< of every class, in the given order; 0: not worth its set-up
};

/// Water-filling: the active classes A end at T = (bytes + sum_A rate x setup) / sum_A rate, and a
/// class is active exactly if its set-up is shorter than T. Taking classes by set-up time while
/// that holds finds A in one pass, since T never rises. For two classes this is the closed form of
/// Blink (arXiv 1910.04940, equation 8).
///
/// @throws Error kInvalidArgument for no classes, rates not above zero, negative or endless times
LinkSplit split_over_classes(const std::vector<LinkClass>& classes, double bytes);

}  // namespace ropewalk::plan
