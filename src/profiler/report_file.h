// A communicator's records as the file of the setting TRACE_FILE.
#pragma once

#include <string>

#include "profiler/recorder.h"

namespace ropewalk::profiler {

/// Writes the report to the file that `pattern` (setting TRACE_FILE) names.
/// @throws Error kSystem
void write_report(const Recorder& recorder, const std::string& pattern);

}  // namespace ropewalk::profiler
