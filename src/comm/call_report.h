// A communicator's records (call_records.h) as JSON, and as the file of the setting TRACE_FILE.
#pragma once

#include <cstddef>
#include <limits>
#include <string>
#include <string_view>

#include "core/settings.h"

namespace ropewalk::comm {

class Communicator;

/// Records that the settings TRACE and TRACE_RECORDS ask for: a power of two, or 0.
std::size_t records_kept(const Config& config);

/// schema "ropewalk-calls", version 1, communicator (its identity in hexadecimal), rank, ranks,
/// host, process, written_ns (CLOCK_REALTIME), begun (operations so far), failure (null, or why the
/// communicator is broken), waiting (null, or of a rank in which nothing has moved for a while: for
/// (the ranks it waits for), in (the operation), seconds, since nothing moved), records[]: id, call
/// (null of a message), operation, count, type, op, root, peer, algorithm (null where there is
/// none), protocol (of links between GPUs, else null), stream (of operations on GPUs: the address
/// of CUDA's, "0x0" of its default one), memory ("host", "GPU"), state ("scheduled", "started",
/// "completed"), scheduled_ns, started_ns, completed_ns (CLOCK_REALTIME; null: not yet). Any
/// thread, any time. Takes 10 ms in a communicator's first ones.
/// @param newest  no more records than these
std::string call_report(const Communicator& comm,
                        std::size_t newest = std::numeric_limits<std::size_t>::max());

/// Writes it to the file that `pattern` (setting TRACE_FILE) names. What fails is logged.
void write_call_report(const Communicator& comm, std::string_view pattern) noexcept;

}  // namespace ropewalk::comm
