// Why a kernel of this rank ended before its operation was done, in words.
#pragma once

#include <optional>
#include <vector>

#include "core/error.h"
#include "executor/block/launch.h"
#include "trace/call_records.h"
#include "trace/roll_call.h"

namespace ropewalk::comm {

/// The error of what a block wrote down; nothing where none stopped, or all were told to. Kernels
/// may run.
[[nodiscard]] std::optional<Error> stop_error(const executor::StopRecord& stop, int rank);
/// The collective whose kernel waited too long; nothing for a message, and where none did.
[[nodiscard]] std::optional<executor::CallTag> stop_call(const executor::StopRecord& stop);

/// What the rank waited in, for missing().
/// @param call  as stop_call() gave it. Without one it waited for messages: with the peers of those
/// that its GPU has begun and not ended
[[nodiscard]] trace::Waiting waiting_on_device(const std::optional<executor::CallTag>& call,
                                               const trace::CallRecords& records, int rank,
                                               int size, const std::vector<int>& left);

}  // namespace ropewalk::comm
