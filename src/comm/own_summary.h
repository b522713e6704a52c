// What a communicator tells the other ranks' monitoring of itself.
#pragma once

#include "monitor/rank_summaries.h"

namespace ropewalk::comm {

class Communicator;

/// Threads: any.
[[nodiscard]] monitor::RankSummary own_summary(const Communicator& comm);

}  // namespace ropewalk::comm
