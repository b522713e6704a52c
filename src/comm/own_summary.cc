#include "comm/own_summary.h"

#include <unistd.h>

#include "comm/communicator.h"
#include "core/file_pattern.h"

namespace ropewalk::comm {

monitor::RankSummary own_summary(const Communicator& comm) {
  monitor::RankSummary summary;
  summary.rank = comm.rank();
  summary.host = short_host_name();
  summary.process = getpid();
  summary.device = comm.device_number();
  const trace::RollCall::Position position = trace::RollCall::position_in(comm.records());
  summary.call = position.call;
  summary.inside = position.inside;
  summary.operation = position.operation;
  if (comm.failure().broken()) summary.failure = comm.failure().error().what();
  if (const auto stall = comm.stall().now()) summary.stalled_seconds = stall->seconds;
  summary.counts = comm.records().counts();
  summary.links = comm.traffic().read();
  return summary;
}

}  // namespace ropewalk::comm
