// Which algorithm serves which sizes of an operation, for people who read the log.
#pragma once

#include <bitset>
#include <string>

#include "core/types.h"
#include "tune/tuner.h"

namespace ropewalk::comm {

/// "all_reduce of 4 ranks: one_shot below 64 KiB, ring from there on; bytes in a unit". By the cost
/// model, for units of 8 bytes to 1 GiB, each power of two by its middle, as the tuner chooses; on
/// a machine, whose links take long to price, every fourth.
/// @throws Error as Tuner::priced()
std::string served_sizes(tune::Tuner& tuner, Collective collective, int root, int num_ranks);

/// Logs that at INFO, when an operation is first called. Threads: one at a time.
class ServedSizesLog {
 public:
  void first_call(tune::Tuner& tuner, Collective collective, int root, int num_ranks);

 private:
  std::bitset<kNumCollectives> told_;
};

}  // namespace ropewalk::comm
