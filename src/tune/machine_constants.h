// The cost model's constants for this machine: from the tuning file, or measured and kept there.
#pragma once

#include <string>

#include "core/settings.h"
#include "tune/cost_model.h"

namespace ropewalk::tune {

/// Where the constants are kept: the setting TUNING_FILE, else $XDG_CACHE_HOME or ~/.cache.
std::string tuning_file(const Config& config);

/// The constants: from the file; else measured (about a tenth of a second) and written to it; else
/// built in, when TUNE is 0. Later jobs measure again now and then, eight times in all, and the
/// best of each constant is kept, since the machine may have been busy. A file that cannot be read
/// or written is logged, not an error.
MachineConstants machine_constants(const Config& config);

/// JSON of the constants and where they came from ("file", "measured", "built in").
std::string describe_constants(const Config& config, bool measure);

}  // namespace ropewalk::tune
