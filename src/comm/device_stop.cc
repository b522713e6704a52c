#include "comm/device_stop.h"

#include <atomic>

#include "core/types.h"
#include "executor/block/handshake.h"
#include "executor/call_history.h"

namespace ropewalk::comm {
namespace {

using executor::StopReason;
using executor::StopRecord;

StopReason reason_of(const StopRecord& stop) {
  // Kernels store it last.
  return static_cast<StopReason>(std::atomic_ref(const_cast<StopRecord&>(stop).reason).load());
}

}  // namespace

std::optional<Error> stop_error(const StopRecord& stop, int rank) {
  switch (reason_of(stop)) {
    case StopReason::kTimeout: {
      const std::optional<executor::CallTag> call = stop_call(stop);
      const unsigned carried = call.has_value() ? call->collective : kNumCollectives;
      const unsigned collective = carried & ~unsigned{executor::kByCopyEngines};
      const bool known = collective < kNumCollectives;
      // By copy engines a kernel waits, or the stream itself.
      return Error(Errc::kTimeout, "{}{} of rank {} waited longer than ROPEWALK_TIMEOUT",
                   known ? fmt::format("{}: ", name(static_cast<Collective>(collective))) : "",
                   known && collective != carried ? "the copies" : "a kernel", rank);
    }
    case StopReason::kMismatch:
      return Error(Errc::kInvalidUsage, "{}",
                   executor::describe_difference(rank, stop.own, executor::CallHistory(), stop.peer,
                                                 stop.theirs));
    case StopReason::kWrongSize:
      return Error(Errc::kInternal,
                   "rank {} has a chunk of {} bytes for or from rank {}, where {} is right", rank,
                   stop.got, stop.peer, stop.expected);
    case StopReason::kWrongLocation: {
      const auto own = executor::OutputLocation::unpacked(stop.expected);
      const auto theirs = executor::OutputLocation::unpacked(stop.got);
      return Error(
          Errc::kInvalidUsage,
          "{} by copy engines, call {}: the output of rank {} is {} bytes into window {}, "
          "that of rank {} is {} bytes into window {}; windows that are registered as "
          "symmetric must be used alike by all ranks",
          name(static_cast<Collective>(stop.own.collective & ~unsigned{executor::kByCopyEngines})),
          stop.own.call, rank, own.offset, own.window, stop.peer, theirs.offset, theirs.window);
    }
    case StopReason::kMessageTimeout:
      return Error(Errc::kTimeout,
                   "rank {} waited longer than ROPEWALK_TIMEOUT for rank {} in a message by copy "
                   "engines",
                   rank, stop.peer);
    case StopReason::kNone:
    case StopReason::kAborted: break;
  }
  return {};
}

std::optional<executor::CallTag> stop_call(const StopRecord& stop) {
  if (reason_of(stop) != StopReason::kTimeout || stop.own.count == 0) return std::nullopt;
  return stop.own;
}

trace::Waiting waiting_on_device(const std::optional<executor::CallTag>& call,
                                 const trace::CallRecords& records, int rank, int size,
                                 const std::vector<int>& left) {
  trace::Waiting waiting{rank, size, std::nullopt, {}, left};
  if (call.has_value()) {
    waiting.call = call->call;
    return waiting;
  }
  for (const trace::CallRecords::Record& record : records.read()) {
    const bool at_work = record.timed && record.state == trace::CallRecords::State::kStarted;
    if (record.on_device && record.peer >= 0 && at_work) waiting.peers.push_back(record.peer);
  }
  return waiting;
}

}  // namespace ropewalk::comm
