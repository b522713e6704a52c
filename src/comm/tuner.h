// Which algorithm, how many channels, which chunk: chosen by a cost model (cost_model.h).
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "core/settings.h"
#include "core/types.h"

namespace ropewalk::comm {

/// What all ranks of a communicator know alike. Choices follow from it and from the call alone, so
/// all ranks choose alike without a word.
struct GroupFacts {
  int num_ranks = 1;
  int num_hosts = 1;
  int max_ranks_per_host = 1;
  int min_cores_per_host = 1;
  bool all_by_address = false;  ///< every pair of ranks can copy from each other's memory
  bool same_process = false;    ///< all ranks are threads of one process
  std::size_t slot_bytes = 32768;
};

struct Choice {
  std::string algorithm;
  int channels = 1;
  std::size_t chunk_bytes = 0;          ///< largest chunk that is staged; at most slot_bytes
  std::size_t address_bytes = 0;        ///< smallest chunk that goes by address
  std::size_t address_chunk_bytes = 0;  ///< chunk where everything goes by address
};

}  // namespace ropewalk::comm
