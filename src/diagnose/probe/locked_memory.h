// The limit of locked memory (ulimit -l), which adapters with a kernel bypass need.
#pragma once

#include "diagnose/probe/probe.h"

namespace ropewalk::diagnose::probe {

/// @param needed whether a used transport locks memory; else the limit is only reported
Check locked_memory(bool needed);

}  // namespace ropewalk::diagnose::probe
